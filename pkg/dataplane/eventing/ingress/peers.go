package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Peers are the replicas of this server, each of which takes the events of some streams.
type Peers interface {
	// Owns tells whether this replica takes the events of a stream, which need not exist.
	Owns(to eventing.Key) bool
	// Forward has the replica answer a request that takes the events, and returns nil if it accepts them, or what else is
	// asked for. It fails with ErrHere if that is this one by now, and otherwise with a *Refusal, which may be the other's.
	Forward(ctx context.Context, method string, to eventing.Key, header http.Header, body []byte) error
}

var (
	// ErrHere is why a request is not forwarded: this replica takes the events.
	ErrHere = errors.New("this replica takes the events")
	// ErrElsewhere is why Accept does not take events: another replica does.
	ErrElsewhere = errors.New("another replica takes the events")
)

// Forwarded answers the requests that other replicas forward, which it forwards no further: those for the streams of
// others are answered 421.
func (h *Handler) Forwarded() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, true) })
}

// Path is that of the requests to a stream.
func Path(to eventing.Key) string {
	if to.Kind == eventing.Channel {
		return "/" + channelsPath + "/" + to.Namespace + "/" + to.Name
	}
	return "/" + to.Namespace + "/" + to.Name
}

// elsewhere tells whether a request is for another replica to answer: whether there are the streams of others, they know
// before us.
func (h *Handler) elsewhere(to eventing.Key, forwarded bool) bool {
	return h.peers != nil && !forwarded && !h.peers.Owns(to)
}

// forward has another replica answer a request. It returns false where that is this one.
func (h *Handler) forward(r *http.Request, to eventing.Key, data []byte) (bool, error) {
	err := h.peers.Forward(r.Context(), r.Method, to, r.Header, data)
	if errors.Is(err, ErrHere) {
		return false, nil
	}
	return true, err
}

// misdirected is the answer to requests for streams that another replica has.
func misdirected(to eventing.Key, forwarded bool) *Refusal {
	status := http.StatusServiceUnavailable
	if forwarded {
		status = http.StatusMisdirectedRequest
	}
	return &Refusal{Status: status, Message: fmt.Sprintf("another replica takes the events of %s", to)}
}
