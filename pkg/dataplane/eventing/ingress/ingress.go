// Package ingress takes events in: CloudEvents in HTTP requests to brokers and channels.
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
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Options are those of a Handler. Accept and Exists are required.
type Options struct {
	// Accept makes events durable, for a stream that exists; all of them or none. It returns nil once they are. It
	// may not use the events' Data after it returned, as their memory is used again. RefusalOf gives the response to its
	// errors.
	Accept func(ctx context.Context, to eventing.Key, events []*event.Event) error
	// Exists tells whether there is a stream. Requests to others are answered 404.
	Exists func(eventing.Key) bool
	// Find returns the channel whose shortened host name a key has; nil if there are none.
	Find func(eventing.Key) (eventing.Key, bool)
	// Peers are the replicas of this server; nil if there is just one.
	Peers Peers

	// MaxBody is how many bytes a body may have; 0 stands for 1 MiB.
	MaxBody int64
	// Budget bounds the bytes that requests hold; nil stands for 256 MiB of their own. Requests beyond it are answered
	// 503. The bodies of batches count eight times, because an event takes up more memory than its text.
	Budget *flow.Budget
	// StallTimeout is how long a client may send nothing of a body it has not sent all of, and ReadTimeout how long it
	// may take for all of it; 0 stand for 10 and 30 s. Slower clients are answered 408.
	StallTimeout, ReadTimeout time.Duration

	// TracerProvider makes the spans; nil stands for none.
	TracerProvider trace.TracerProvider
	// Register registers metrics; nil if they are not wanted.
	Register func(...metrics.Registerable)
}

// Handler answers requests to /<namespace>/<broker>, to /channels/<namespace>/<channel>, and to / of hosts
// <channel>-kn-channel.<namespace>.svc.
type Handler struct {
	accept      func(ctx context.Context, to eventing.Key, events []*event.Event) error
	exists      func(eventing.Key) bool
	find        func(eventing.Key) (eventing.Key, bool)
	peers       Peers
	bodies      bodies
	admission   *admission
	tracer      trace.Tracer
	instruments *instruments
	// retired tells that connections end with the next answer.
	retired atomic.Bool
}

var _ http.Handler = (*Handler)(nil)

// New returns a Handler.
func New(options Options) *Handler {
	h := &Handler{
		accept: options.Accept, exists: options.Exists, find: options.Find, peers: options.Peers, admission: newAdmission(),
		bodies: bodies{
			max:          orDefault(options.MaxBody, defaultMaxBody),
			stallTimeout: orDefault(options.StallTimeout, 10*time.Second),
			readTimeout:  orDefault(options.ReadTimeout, 30*time.Second),
		},
		instruments: newInstruments(options.Register),
	}
	if h.bodies.memory = options.Budget; h.bodies.memory == nil {
		h.bodies.memory = flow.NewBudget(256<<20, LargestRequest(h.bodies.max))
	}
	if options.TracerProvider != nil {
		h.tracer = options.TracerProvider.Tracer("github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress")
	}
	return h
}

func orDefault[T int64 | time.Duration](value, standard T) T {
	if value == 0 {
		return standard
	}
	return value
}

// batchWeight is how often the body of a batch counts.
const batchWeight = 8

// LargestRequest returns the bytes of a Budget that a request may hold whose body has at most maxBody bytes, as in
// Options: also while its buffer grows, and if it is a batch.
func LargestRequest(maxBody int64) int64 {
	return batchWeight * (orDefault(maxBody, defaultMaxBody) + smallBody)
}

// allowed are the methods of all paths (eventing HTTP Verbs).
const allowed = "POST, OPTIONS"

// Retire closes each client connection after its next response, so that clients move to other replicas before Serve closes
// idle connections: a client does not know what became of an event that it sent on a connection closed at that moment.
func (h *Handler) Retire() { h.retired.Store(true) }

// Close releases what the Handler uses of the system. Call it when requests have ended.
func (h *Handler) Close() { h.admission.close() }

// ServeHTTP answers 202 once the events of the request are accepted (eventing Event Acknowledgement and Delivery
// Retry), and says in plain text why it did not.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.serve(w, r, false) }

// serve answers a request. forwarded tells that another replica forwarded it, which counts it.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, forwarded bool) {
	start := time.Now()
	code := http.StatusAccepted
	if h.retired.Load() && !forwarded {
		// For HTTP/2, net/http makes it a GOAWAY frame.
		w.Header().Set("Connection", "close")
	}
	switch r.Method {
	case http.MethodPost:
		if err := h.post(w, r, start, forwarded); err != nil {
			code = answer(w, err)
		} else {
			w.WriteHeader(code)
		}
	case http.MethodOptions:
		code = h.options(w, r, forwarded)
	default:
		w.Header().Set("Allow", allowed)
		code = answer(w, &Refusal{Status: http.StatusMethodNotAllowed, Message: "events must be sent by POST"})
	}
	if !forwarded {
		h.instruments.done(code, time.Since(start))
	}
}

// options answers OPTIONS requests, and lets everybody send any number of events who asks so (CloudEvents HTTP 1.1
// Web Hooks 1.0.2, 4).
func (h *Handler) options(w http.ResponseWriter, r *http.Request, forwarded bool) (code int) {
	to, err := h.target(r)
	if err == nil && !h.exists(to) {
		err = missing(to)
		if h.elsewhere(to, forwarded) {
			if done, answer := h.forward(r, to, nil); done {
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
func (h *Handler) post(w http.ResponseWriter, r *http.Request, start time.Time, forwarded bool) error {
	to, err := h.target(r)
	if err != nil {
		return err
	}
	elsewhere := h.elsewhere(to, forwarded)
	exists := h.exists(to)
	if !elsewhere && !exists {
		return missing(to)
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		w.Header().Set("Accept-Encoding", "identity")
		return &Refusal{Status: http.StatusUnsupportedMediaType, Message: fmt.Sprintf("the content coding %.40q is not supported", coding)}
	}
	if exists {
		h.admission.queue.Observe(to.Namespace)
	}
	body, err := h.bodies.read(w, r, to.Namespace)
	if err != nil {
		return err
	}
	defer h.bodies.release(body)
	if elsewhere {
		if done, err := h.forward(r, to, body.data); done {
			return err
		}
	}
	err = h.take(r, start, to, body)
	if !errors.Is(err, ErrElsewhere) {
		return err
	}
	if h.peers != nil && !forwarded {
		if done, err := h.forward(r, to, body.data); done {
			return err
		}
	}
	return misdirected(to, forwarded)
}

// take accepts the events of a body here.
func (h *Handler) take(r *http.Request, start time.Time, to eventing.Key, body *body) error {
	if err := h.admission.admit(r.Context(), to.Namespace); err != nil {
		return err
	}
	defer h.admission.queue.Release(to.Namespace)
	if format.Lookup(r.Header.Get("Content-Type")) == format.JSONBatch && !h.bodies.reserve(body, batchWeight-1) {
		return errMemory
	}
	events, err := event.FromRequest(r.Header, body.data) //nolint:contextcheck // it waits for nothing
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
	if len(events) == 0 {
		return nil
	}
	if h.tracer == nil {
		return h.accept(r.Context(), to, events)
	}
	return h.traced(r, start, to, events)
}
