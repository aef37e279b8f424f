// Package ingress accepts CloudEvents in HTTP requests to Brokers and Channels.
package ingress

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding/format"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	eventtrace "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Options are the dependencies and limits of a Handler. Accept and Exists are required.
type Options struct {
	// Accept makes events of an existing stream durable, all or none, and returns nil once they are. It must not use the
	// events' Data after it returned, because their memory is reused. RefusalOf returns the response to its errors. Its context has the
	// origin of the events for their trace (trace.OriginOf).
	Accept func(ctx context.Context, to eventing.Key, events []*event.Event) error
	// Exists reports whether a stream exists. Requests to other streams are answered 404.
	Exists func(eventing.Key) bool
	// Find returns the Channel with the shortened host name that a key has. Nil means that no host name is shortened.
	Find func(eventing.Key) (eventing.Key, bool)
	// Senders verifies who sends events. Nil admits all senders.
	Senders Senders
	// Peers are the replicas of this server. Nil means a single replica.
	Peers Peers
	// Serves reports whether requests with or without TLS are served. Others are answered 404. Nil serves all.
	Serves func(tls bool) bool

	// MaxBody is the maximum size of a body in bytes, by default 1 MiB.
	MaxBody int64
	// Budget bounds the bytes that requests hold, by default 256 MiB. Requests beyond it are answered 503. The bodies of
	// batches count eight times, because a parsed event needs more memory than its text.
	Budget *flow.Budget
	// StallTimeout is the maximum pause of a client within a body, ReadTimeout the maximum time for a body, by default 10 s and
	// 30 s. Slower clients are answered 408.
	StallTimeout, ReadTimeout time.Duration

	// TracerProvider creates the spans. Nil disables tracing. Traced reports whether they are exported; nil means that they are.
	TracerProvider trace.TracerProvider
	Traced         func() bool
	// Register registers metrics. Nil disables them.
	Register func(...metrics.Registerable)
}

// Handler serves requests to /<namespace>/<broker>, to /channels/<namespace>/<channel>, and to / of the hosts
// <channel>-kn-channel.<namespace>.svc.
type Handler struct {
	accept      func(ctx context.Context, to eventing.Key, events []*event.Event) error
	exists      func(eventing.Key) bool
	find        func(eventing.Key) (eventing.Key, bool)
	senders     Senders
	peers       Peers
	serves      func(tls bool) bool
	bodies      bodies
	admission   *admission
	tracer      trace.Tracer
	traces      func() bool
	instruments *instruments
	// retired is true if connections close after the next response.
	retired atomic.Bool
}

var _ http.Handler = (*Handler)(nil)

// New returns a Handler.
func New(options Options) *Handler {
	h := &Handler{
		accept: options.Accept, exists: options.Exists, find: options.Find, senders: options.Senders, peers: options.Peers, serves: options.Serves,
		admission: newAdmission(),
		bodies: bodies{
			max:          orDefault(options.MaxBody, defaultMaxBody),
			stallTimeout: orDefault(options.StallTimeout, 10*time.Second),
			readTimeout:  orDefault(options.ReadTimeout, 30*time.Second),
		},
		instruments: newInstruments(options.Register),
		traces:      options.Traced,
	}
	if h.bodies.memory = options.Budget; h.bodies.memory == nil {
		h.bodies.memory = flow.NewBudget(256<<20, LargestRequest(h.bodies.max))
	}
	if options.TracerProvider != nil {
		h.tracer = options.TracerProvider.Tracer("github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress")
	}
	return h
}

// orDefault returns value, or standard if value is zero.
func orDefault[T int64 | time.Duration](value, standard T) T {
	if value == 0 {
		return standard
	}
	return value
}

// batchWeight is the factor by which the body of a batch counts.
const batchWeight = 8

// LargestRequest returns the maximum number of bytes that a request holds of the Budget if its body has at most maxBody bytes
// (Options.MaxBody), including its head, a growing buffer and the weight of a batch.
func LargestRequest(maxBody int64) int64 {
	return batchWeight*(orDefault(maxBody, defaultMaxBody)+smallBody) + headCopies*maxHeaderBytes
}

// allowed are the methods of all paths (eventing HTTP Verbs).
const allowed = "POST, OPTIONS"

// Retire closes each client connection after its next response, so that clients move to other replicas before Serve closes
// idle connections: a client cannot know the outcome of an event that it sends on a connection as it is closed.
func (h *Handler) Retire() { h.retired.Store(true) }

// Close releases the resources of the Handler. It must be called after the last request.
func (h *Handler) Close() { h.admission.close() }

// ServeHTTP responds 202 once the events of the request are accepted (eventing Event Acknowledgement and Delivery Retry), and
// otherwise with the reason in plain text.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.serve(w, r, endHead(r), false) }

// serve serves a request. head is the size of its head, or 0 if it is small. forwarded is true if another replica forwarded it; that replica counts it.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, head int64, forwarded bool) {
	start := time.Now()
	code := http.StatusAccepted
	if h.retired.Load() && !forwarded {
		// For HTTP/2, net/http sends a GOAWAY frame.
		w.Header().Set("Connection", "close")
	}
	switch {
	case !forwarded && h.serves != nil && !h.serves(r.TLS != nil):
		code = answer(w, unserved(r.TLS != nil))
	case r.Method == http.MethodPost:
		if err := h.post(w, r, start, head, forwarded); err != nil {
			code = answer(w, err)
		} else {
			w.WriteHeader(code)
		}
	case r.Method == http.MethodOptions:
		code = h.options(w, r, forwarded)
	default:
		w.Header().Set("Allow", allowed)
		code = answer(w, &Refusal{Status: http.StatusMethodNotAllowed, Message: "events must be sent by POST"})
	}
	if !forwarded {
		h.instruments.done(code, time.Since(start))
	}
}

// options serves OPTIONS requests, and grants every origin that requests it an unlimited rate (CloudEvents HTTP 1.1 Web Hooks
// 1.0.2, 4).
func (h *Handler) options(w http.ResponseWriter, r *http.Request, forwarded bool) (code int) {
	to, err := h.target(r)
	if err == nil && !h.exists(to) {
		err = missing(to)
		if partition, remote := h.remote(to, forwarded); remote {
			if done, answer := h.forward(r, partition, nil); done {
				err = answer
			}
		}
	}
	if err != nil {
		return answer(w, err)
	}
	header := w.Header()
	header.Set("Allow", allowed)
	if origin := r.Header.Get("WebHook-Request-Origin"); origin != "" {
		header.Set("WebHook-Allowed-Origin", origin)
		header.Set("WebHook-Allowed-Rate", "*")
	}
	w.WriteHeader(http.StatusOK)
	return http.StatusOK
}

// post accepts the events of a request that began at start.
func (h *Handler) post(w http.ResponseWriter, r *http.Request, start time.Time, head int64, forwarded bool) error {
	to, err := h.target(r)
	if err != nil {
		return err
	}
	partition, remote := h.remote(to, forwarded)
	exists := h.exists(to)
	if !remote && !exists {
		return missing(to)
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		w.Header().Set("Accept-Encoding", "identity")
		return &Refusal{Status: http.StatusUnsupportedMediaType, Message: fmt.Sprintf("the content coding %.40q is not supported", coding)}
	}
	if exists {
		h.admission.queue.Observe(to.Namespace, 1)
	}
	if head > freeHead {
		if !h.bodies.memory.Reserve(to.Namespace, headCopies*head) {
			return errMemory
		}
		defer h.bodies.memory.Release(to.Namespace, headCopies*head)
	}
	body, err := h.bodies.read(w, r, to.Namespace)
	if err != nil {
		return err
	}
	defer h.bodies.release(body)
	sender := senderOf(r, forwarded)
	if remote {
		if err := h.verifyRemote(r, to, body, sender); err != nil {
			return err
		}
		if done, err := h.forwardEvents(r, partition, body.data, sender); done {
			return err
		}
	}
	err = h.acceptBody(r, start, to, body, sender)
	if !errors.Is(err, eventing.ErrNotOwner) {
		return err
	}
	if other := (eventing.OtherOwner{}); errors.As(err, &other) {
		// For example, the partition of the events' key.
		partition = other.Partition
	}
	if h.peers != nil && !forwarded {
		if done, err := h.forwardEvents(r, partition, body.data, sender); done {
			return err
		}
	}
	return misdirected(to, forwarded)
}

// acceptBody accepts the events of a body at this replica.
func (h *Handler) acceptBody(r *http.Request, start time.Time, to eventing.Key, body *body, from *sender) error {
	return h.parsed(r, to, body, func(ctx context.Context, events []*event.Event) error {
		if err := h.verify(ctx, to, from, events); err != nil || len(events) == 0 {
			return err
		}
		ctx = eventtrace.WithOrigin(ctx, &from.origin)
		if h.tracer == nil || h.traces != nil && !h.traces() {
			return h.accept(ctx, to, events)
		}
		return h.traced(ctx, r.Header, start, to, events)
	})
}

// parsed admits a request and calls do with its context and the events of its body.
func (h *Handler) parsed(r *http.Request, to eventing.Key, body *body, do func(context.Context, []*event.Event) error) error {
	batch := format.Lookup(r.Header.Get("Content-Type")) == format.JSONBatch
	if err := h.admission.admit(r.Context(), to.Namespace, costOf(batch, len(body.data))); err != nil {
		return err
	}
	defer h.admission.queue.Release(to.Namespace)
	if batch && !h.bodies.reserve(body, batchWeight-1) {
		return errMemory
	}
	events, err := event.FromRequest(r.Header, body.data) //nolint:contextcheck // it does not block
	if err != nil {
		status := http.StatusBadRequest
		switch {
		case errors.Is(err, event.ErrFormat):
			status = http.StatusUnsupportedMediaType
		case errors.Is(err, event.ErrHeaders):
			status = http.StatusRequestHeaderFieldsTooLarge
		}
		return &Refusal{Status: status, Message: "the request " + err.Error()}
	}
	return do(r.Context(), events)
}
