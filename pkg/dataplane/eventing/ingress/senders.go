package ingress

import (
	"context"
	"net"
	"net/http"
	"net/url"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Senders verifies who sends events.
type Senders interface {
	// Restricted reports whether senders of events to a stream are verified. known is false for a stream that was not set.
	Restricted(stream eventing.Key) (restricted, known bool)
	// Check returns the name of a sender that may send events to a stream, which is empty if all may. authorization are the values of that
	// header field.
	Check(ctx context.Context, stream eventing.Key, authorization []string, events []*event.Event) (name string, err error)
}

// verifiedHeader is set in requests that a replica forwards after it has verified the sender. originHeader is set in all forwarded
// requests: the name and the address of the sender as a query string, for traces. Neither travels with the event.
const (
	verifiedHeader = "X-Sender-Verified"
	originHeader   = "X-Sender-Origin"
)

// sender is the sender of a request.
type sender struct {
	// authorization are the values of the header field.
	authorization []string
	// verified is true if the sender may send the events.
	verified bool
	// origin has the name of a verified sender, and the address of the client.
	origin trace.Origin
}

// senderOf removes the credentials of the sender from a request: nothing after verification needs them. forwarded is true if another
// replica forwarded the request; only those replicas may state that they have verified the sender.
func senderOf(r *http.Request, forwarded bool) *sender {
	s := &sender{authorization: r.Header.Values("Authorization"), verified: forwarded && r.Header.Get(verifiedHeader) != ""}
	if forwarded {
		// Replicas of earlier versions do not send it.
		if origin, err := url.ParseQuery(r.Header.Get(originHeader)); err == nil {
			s.origin.Sender, s.origin.Address = origin.Get("name"), origin.Get("address")
		}
	} else if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		s.origin.Address = host
	}
	r.Header.Del("Authorization")
	r.Header.Del(verifiedHeader)
	r.Header.Del(originHeader)
	return s
}

// verify verifies a sender once.
func (h *Handler) verify(ctx context.Context, to eventing.Key, from *sender, events []*event.Event) error {
	if h.senders == nil || from.verified {
		return nil
	}
	name, err := h.senders.Check(ctx, to, from.authorization, events)
	if err != nil {
		return err
	}
	from.verified, from.origin.Sender = true, name
	return nil
}

// verifyRemote verifies the sender of a request before it is forwarded, unless this replica does not know the stream yet: then the owner
// does.
func (h *Handler) verifyRemote(r *http.Request, to eventing.Key, body *body, from *sender) error {
	if h.senders == nil {
		return nil
	}
	if restricted, known := h.senders.Restricted(to); !known || !restricted {
		return nil
	}
	return h.parsed(r, to, body, func(ctx context.Context, events []*event.Event) error { return h.verify(ctx, to, from, events) })
}

// forwardEvents forwards a request to the owner of a stream, with the decision about its sender, or with its credentials if no replica has
// decided yet. It returns false if this replica is the owner.
func (h *Handler) forwardEvents(r *http.Request, to eventing.Key, data []byte, from *sender) (bool, error) {
	if from.verified {
		r.Header.Set(verifiedHeader, "true")
	} else {
		r.Header["Authorization"] = from.authorization
	}
	r.Header.Set(originHeader, url.Values{"name": {from.origin.Sender}, "address": {from.origin.Address}}.Encode())
	defer func() {
		r.Header.Del("Authorization")
		r.Header.Del(verifiedHeader)
		r.Header.Del(originHeader)
	}()
	return h.forward(r, to, data)
}
