package streams

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// EventsElement begins the paths of requests with events among the replicas. ingress.Handler.Forwarded answers them.
	EventsElement = "events"
	// forwardTimeout bounds the time that the owner of a stream takes.
	forwardTimeout = 15 * time.Second
	// askAgain is the time after which an owner is asked again that does not know it is, or cannot be reached.
	askAgain = 50 * time.Millisecond
	// maxMessage bounds what is passed on of an answer's text, in bytes.
	maxMessage = 4 << 10
)

// hopByHop are the headers that are of a connection.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "Content-Length",
}

// Forward implements ingress.Peers. While the members change, it waits for a moment to see who owns the stream.
func (s *Shards) Forward(ctx context.Context, method string, to eventing.Key, header http.Header, body []byte) error {
	header = header.Clone()
	for _, listed := range header.Values("Connection") {
		for name := range strings.SplitSeq(listed, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range hopByHop {
		header.Del(name)
	}
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	timeout := s.options.Clock.NewTimer(patience)
	defer timeout.Stop()
	for {
		changed := *s.changed.Load()
		current := s.options.Members.Current()
		owner := current.Owner(to.String())
		if owner.Name == current.Self() {
			return ingress.ErrOwner
		}
		again, err := s.send(ctx, owner, method, to, header, body)
		if !again {
			return err
		}
		select {
		case <-changed:
		case <-s.options.Clock.After(askAgain):
		case <-timeout.C():
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// send makes one attempt to forward a request. again tells that it was not accepted, and may be at once.
func (s *Shards) send(ctx context.Context, owner membership.Member, method string, to eventing.Key, header http.Header, body []byte) (again bool, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+owner.Address+"/"+EventsElement+ingress.Path(to), bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("forwarding events for %s to replica %s: %w", to, owner.Name, err)
	}
	r.Header = header
	response, err := s.options.Peers.RoundTrip(r)
	if err != nil {
		// Where the request was sent, the events may have been accepted: only the sender knows whether to send them again.
		return peer.IsUnreachable(err), &ingress.Refusal{
			Status: http.StatusServiceUnavailable, Message: fmt.Sprintf("the replica that takes the events of %s does not answer", to),
		}
	}
	defer response.Body.Close()
	if response.StatusCode/100 == 2 {
		return false, nil
	}
	said, err := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	if err != nil {
		said = []byte(response.Status)
	}
	refusal := &ingress.Refusal{Status: response.StatusCode, Message: strings.TrimSpace(string(said))}
	if after, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		refusal.RetryAfter = time.Duration(after) * time.Second
	}
	// The other may not have heard of the members, or of the stream, that are known here.
	if refusal.Status == http.StatusMisdirectedRequest || refusal.Status == http.StatusNotFound && s.Exists(to) {
		return true, &ingress.Refusal{Status: http.StatusServiceUnavailable, Message: to.String() + " is not ready to take events yet"}
	}
	return false, refusal
}
