package ingress

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// ForwardedElement begins the paths of requests that replicas forward. Handler.Forwarded serves them.
	ForwardedElement = "events"
	// forwardTimeout bounds the time that the owner of a stream takes.
	forwardTimeout = 15 * time.Second
	// maxMessage bounds the text of a forwarded response, in bytes.
	maxMessage = 4 << 10
)

// pacing has the delays of a request to an owner that has not learned of its ownership yet, or cannot be reached.
var pacing = ownership.Pacing{Patience: 2 * time.Second, FirstPause: 50 * time.Millisecond, LastPause: 50 * time.Millisecond}

// hopByHop are the headers of a single connection.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "Content-Length",
}

// Forwarder forwards requests to the owners of partitions. It implements Peers.
type Forwarder struct {
	// Owners are the owners of all partitions.
	Owners *ownership.Table[eventing.Key]
	// Router returns a partition for the next request for a stream, as Peers does.
	Router func(to eventing.Key) (partition eventing.Key, self bool)
	// Transport sends requests to other replicas.
	Transport http.RoundTripper
	// Exists reports whether a stream exists.
	Exists func(eventing.Key) bool

	pipelines pipelines
}

var _ Peers = (*Forwarder)(nil)

// Route implements Peers.
func (f *Forwarder) Route(to eventing.Key) (partition eventing.Key, self bool) { return f.Router(to) }

// Forward implements Peers. While the membership changes, it waits for a moment for the owner of the stream.
func (f *Forwarder) Forward(ctx context.Context, method string, to eventing.Key, header http.Header, body []byte) error {
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
	attempts := ownership.Attempts{Pacing: pacing}
	for {
		changed := f.Owners.Changed()
		owner, self := f.Owners.Current().Owner(to)
		if self {
			return ErrOwner
		}
		retry, err := f.attempt(ctx, owner, method, to, header, body)
		if !retry || attempts.Wait(ctx, changed) != nil {
			return err
		}
	}
}

// attempt makes one attempt to forward a request. retry is true if the request was not accepted and may be soon.
func (f *Forwarder) attempt(ctx context.Context, owner membership.Member, method string, to eventing.Key, header http.Header, body []byte) (retry bool, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+owner.Address+"/"+ForwardedElement+Path(to), bytes.NewReader(body))
	if err != nil {
		return false, fmt.Errorf("forward events for %s to replica %s: %w", to, owner.Name, err)
	}
	r.Header = header
	reply, err := f.exchange(r, to, body)
	if err != nil {
		// If the request was sent, the events may have been accepted: only the sender knows whether to send them again.
		return peer.IsUnreachable(err), &Refusal{
			Status: http.StatusServiceUnavailable, Message: fmt.Sprintf("the replica that owns %s does not answer", to),
		}
	}
	if reply.status/100 == 2 {
		return false, nil
	}
	refusal := &Refusal{
		Status: reply.status, Challenge: reply.header.Get("WWW-Authenticate"), Message: strings.TrimSpace(string(reply.message)),
	}
	if after, err := strconv.Atoi(reply.header.Get("Retry-After")); err == nil {
		refusal.RetryAfter = time.Duration(after) * time.Second
	}
	// The other replica may not know the membership, or the stream, that this one knows.
	if refusal.Status == http.StatusMisdirectedRequest || refusal.Status == http.StatusNotFound && f.Exists(to.Whole()) {
		return true, &Refusal{Status: http.StatusServiceUnavailable, Message: to.String() + " is not ready to accept events yet"}
	}
	return false, refusal
}
