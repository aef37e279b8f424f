package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Peers are the replicas of this server. Each owns some streams.
type Peers interface {
	// Route returns a partition of a stream, which need not exist, for the next request, and whether this replica owns it: one of its own
	// if there is any.
	Route(to eventing.Key) (partition eventing.Key, self bool)
	// Forward forwards a request to the owner of a partition, and returns nil if the owner accepted it. It fails with ErrOwner if
	// this replica owns the partition by now, and otherwise with a *Refusal, possibly the owner's.
	Forward(ctx context.Context, method string, to eventing.Key, header http.Header, body []byte) error
}

// ErrOwner is returned instead of forwarding a request that this replica must handle.
var ErrOwner = errors.New("this replica owns the stream")

// Forwarded returns the handler of requests that other replicas forward. It does not forward again: requests for streams of
// other replicas are answered 421.
func (h *Handler) Forwarded() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, headSize(r), true) })
}

// Path returns the path of requests to a stream.
func Path(to eventing.Key) string {
	if to.Kind == eventing.Channel {
		return "/" + channelsPath + "/" + to.Namespace + "/" + to.Name
	}
	return "/" + to.Namespace + "/" + to.Name
}

// remote returns the partition to which a request for a stream is forwarded if this replica owns none: the owner of a stream is the first
// replica to learn that it exists.
func (h *Handler) remote(to eventing.Key, forwarded bool) (partition eventing.Key, remote bool) {
	if h.peers == nil || forwarded {
		return to, false
	}
	partition, self := h.peers.Route(to)
	return partition, !self
}

// forward forwards a request to the owner. It returns false if this replica is the owner.
func (h *Handler) forward(r *http.Request, to eventing.Key, data []byte) (bool, error) {
	err := h.peers.Forward(r.Context(), r.Method, to, r.Header, data)
	if errors.Is(err, ErrOwner) {
		return false, nil
	}
	return true, err
}

// misdirected returns the response to a request for a stream that another replica owns.
func misdirected(to eventing.Key, forwarded bool) *Refusal {
	status := http.StatusServiceUnavailable
	if forwarded {
		status = http.StatusMisdirectedRequest
	}
	return &Refusal{Status: status, Message: fmt.Sprintf("another replica owns %s", to)}
}
