package autoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const (
	// ExplanationElement is the first element of the path of ExplanationHandler.
	ExplanationElement = "explanations"
	// maxDecisions and maxColdStarts bound the history of a revision.
	maxDecisions, maxColdStarts = 10, 5
	// A request that waits activated a revision if it was received within joinWaiting of the decision, a request that has its response
	// within joinResponded, which is less than the shortest stable window: it caused no earlier activation.
	joinWaiting, joinResponded = time.Minute, 5 * time.Second
	// maxRequest and maxName bound the strings of a reported cold start, in bytes.
	maxRequest, maxName = 512, 253
	// maxExplanation bounds the size of an explanation by another replica, in bytes.
	maxExplanation = 1 << 20
)

var (
	// ErrFollowing is returned by Explain while another replica decides.
	ErrFollowing = errors.New("another replica decides")
	// ErrUnknown is returned by Explain for a revision about which nothing was decided.
	ErrUnknown = errors.New("the autoscaler has not decided about the revision yet")
)

// Explanation is why a revision has its scale: the input of the latest decision, and what happened before.
type Explanation struct {
	// Replica is the replica that decides, empty for a single one. It remembers what happened since Since.
	Replica string
	Since   time.Time
	// Desired is the scale of the latest decision, Ready the number of ready backends.
	Desired, Ready int32
	// Reason and Message describe the cause.
	Reason, Message string
	// RPS is true if the averages are requests per second, otherwise they are requests in flight.
	RPS                       bool
	Stable, Panic             float64
	StableWindow, PanicWindow time.Duration
	Panicking                 bool
	// Waiting is the number of requests that waited for a backend.
	Waiting int
	// Target is the average for one backend, which is a share of Capacity.
	Target, Capacity float64
	// Min, Max, MaxLimit, Initial and Activation are numbers of backends. A Max or MaxLimit of 0 means no limit.
	Min, Max, MaxLimit, Initial, Activation int32
	ScaleDownDelay, Retention               time.Duration
	ScaleToZero                             bool
	// Keepers are the reasons that keep the last backend.
	Keepers []Keeper
	// Activated is the cold start whose request last scaled the revision from zero, or nil.
	Activated *ColdStart
	// Decisions are the latest decisions, and ColdStarts the latest cold starts, newest first.
	Decisions  []Decision
	ColdStarts []ColdStart
}

// Keeper is a reason that keeps the last backend, with a sentence about it.
type Keeper struct{ Reason, Message string }

// Decision is a decision whose scale or reason differs from the previous one.
type Decision struct {
	At              time.Time
	From, To        int32
	Reason, Message string
	// Request is the request that activated the revision, or empty.
	Request string

	// waited is true if a request activated the revision.
	waited bool
}

// ColdStart is the progress of a cold start that a request began at a gateway. Times that are not known or have not come are zero.
type ColdStart struct {
	Key routing.Key
	UID types.UID
	// Gateway is the replica that received the request, empty for a single one.
	Gateway string
	// Request is the method, host and path of the request, Backend the name of the first backend.
	Request, Backend string
	// Received is when the request was received. Scaled to Ready are steps of the start of the backend, see workload.Start. Granted is when the first
	// request got the backend, Responded when the response to the request started, Canceled when no request waited any more.
	Received, Scaled, Created, Scheduled, Started, Ready, Granted, Responded, Canceled time.Time
}

// state is what a decision about a revision with backends depended on.
type state struct {
	config config
	input  input
	// memory has only the ends of its delay.
	memory memory
}

// keep keeps the state of a decision for Explain, or nothing at zero. The lock of the registry is held.
func (r *revision) keep(in *input, d decision) {
	if d.Desired == 0 {
		r.stats.state = nil
		return
	}
	if r.stats.state == nil {
		r.stats.state = &state{}
	}
	s := r.stats.state
	s.config, s.input, s.memory = r.config, *in, r.memory
	s.memory.delay = r.memory.delay.ends()
}

// history has the latest events of a revision. The lock of the registry guards it.
type history struct {
	// decisions and coldStarts are ordered by time, oldest first. activated is a copy that stays when it is dropped from coldStarts.
	decisions  []Decision
	coldStarts []ColdStart
	activated  *ColdStart
}

// record adds a decision if the scale or its reason has changed. Nothing is recorded of a revision that stays at zero.
func (r *revision) record(in *input, d *decision, before int32) {
	if in.Activated {
		before = 0
	}
	if r.history == nil {
		if d.Desired == 0 && before == 0 {
			return
		}
		r.history = &history{}
	}
	h := r.history
	if last := len(h.decisions) - 1; last >= 0 && h.decisions[last].To == d.Desired && h.decisions[last].Reason == d.Cause.reason {
		return
	}
	if len(h.decisions) == maxDecisions {
		h.decisions = slices.Delete(h.decisions, 0, 1)
	}
	waited := before == 0 && d.Desired > 0 && (in.Waiting > 0 || in.Activated)
	h.decisions = append(h.decisions, Decision{
		At: in.Now, From: before, To: d.Desired, Reason: d.Cause.reason, Message: d.Cause.message(&r.config), waited: waited,
	})
	if n := len(h.coldStarts); n > 0 {
		h.join(&h.coldStarts[n-1])
	}
}

// join sets the request of the latest activation, if a cold start belongs to it.
func (h *history) join(c *ColdStart) {
	within := joinWaiting
	if !c.Responded.IsZero() || !c.Canceled.IsZero() {
		within = joinResponded
	}
	for i := range slices.Backward(h.decisions) {
		d := &h.decisions[i]
		if !d.waited {
			continue
		}
		if d.Request == "" && c.Received.Sub(d.At).Abs() < within {
			d.Request = c.Request
			activated := *c
			h.activated = &activated
		}
		return
	}
}

// addColdStart adds or updates a cold start.
func (h *history) addColdStart(c ColdStart) {
	for i := range h.coldStarts {
		if known := &h.coldStarts[i]; known.Gateway == c.Gateway && known.Received.Equal(c.Received) {
			*known = c
			return
		}
	}
	if len(h.coldStarts) == maxColdStarts {
		h.coldStarts = slices.Delete(h.coldStarts, 0, 1)
	}
	h.coldStarts = append(h.coldStarts, c)
	// A gateway may start the first backend before the deciding replica gets its report.
	h.join(&c)
}

// addColdStarts records the cold starts of a gateway.
func (g *registry) addColdStarts(gateway string, all []ColdStart) {
	if len(all) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range all {
		r := g.revisions[c.Key]
		if r == nil || r.spec == nil || r.spec.UID != c.UID {
			continue
		}
		if r.history == nil {
			r.history = &history{}
		}
		c.Gateway, c.Request, c.Backend = clipped(gateway, maxName), clipped(c.Request, maxRequest), clipped(c.Backend, maxName)
		r.history.addColdStart(c)
	}
}

// clipped returns a copy of at most limit bytes of text.
func clipped(text string, limit int) string {
	return strings.ToValidUTF8(strings.Clone(text[:min(len(text), limit)]), "")
}

// Explain explains the scale of the revision with a UID. It fails with ErrFollowing or ErrUnknown.
func (l *Loop) Explain(key routing.Key, uid types.UID) (*Explanation, error) {
	if !l.options.leading() {
		return nil, ErrFollowing
	}
	e, err := l.registry.explain(key, uid, l.options.Settings)
	if err == nil && l.options.replicated() {
		e.Replica = l.options.Members.Current().Self()
	}
	return e, err
}

func (g *registry) explain(key routing.Key, uid types.UID, current func() *settings.Settings) (*Explanation, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.revisions[key]
	if r == nil || r.spec == nil || r.spec.UID != uid || r.stats.decision.Cause.reason == "" {
		return nil, ErrUnknown
	}
	d, s := &r.stats.decision, r.stats.state
	var c *config
	if s != nil {
		c = &s.config
	} else {
		resolved := resolve(r.spec, current())
		c = &resolved
	}
	e := &Explanation{
		Since: g.since, Desired: d.Desired, Ready: r.stats.ready, Reason: d.Cause.reason, Message: d.Cause.message(c),
		RPS: c.RPS, StableWindow: c.StableWindow, PanicWindow: c.PanicWindow, Target: c.Target, Capacity: c.Capacity,
		Min: c.Min, Max: c.Max, MaxLimit: c.MaxLimit, Initial: c.Initial, Activation: c.Activation,
		ScaleDownDelay: c.ScaleDownDelay, Retention: c.Retention, ScaleToZero: c.ScaleToZero,
	}
	if s != nil {
		e.Stable, e.Panic, e.Panicking, e.Waiting = s.input.Stable, s.input.Panic, d.Panicking, s.input.Waiting
		for _, why := range s.memory.keepers(c, &s.input) {
			e.Keepers = append(e.Keepers, Keeper{why.reason, why.message(c)})
		}
	}
	if h := r.history; h != nil {
		e.Decisions, e.ColdStarts = slices.Clone(h.decisions), slices.Clone(h.coldStarts)
		slices.Reverse(e.Decisions)
		slices.Reverse(e.ColdStarts)
		e.Activated = h.activated
		for i := range e.Decisions {
			e.Decisions[i].name()
		}
		if len(e.Decisions) > 0 && e.Decisions[0].Reason == e.Reason {
			if latest := &e.Decisions[0]; latest.Request != "" {
				e.Message = latest.Message
			}
		}
	}
	return e, nil
}

// name puts the request of a decision in its message.
func (d *Decision) name() {
	if d.Request == "" {
		return
	}
	activated := "Activated by " + d.Request + "."
	if d.Reason == reasonRequest || d.Reason == reasonPeerRequest {
		d.Message = activated
	} else {
		d.Message = activated + " " + d.Message
	}
}

// ExplanationHandler serves GET of the Explanation of a revision by other replicas: null if nothing was decided about it, and 503 while
// another replica decides. The caller must have authenticated them.
func (l *Loop) ExplanationHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "method must be GET", http.StatusMethodNotAllowed)
			return
		}
		query := r.URL.Query()
		e, err := l.Explain(routing.Key{Namespace: query.Get("namespace"), Name: query.Get("name")}, types.UID(query.Get("uid")))
		if errors.Is(err, ErrFollowing) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(e) //nolint:errcheck // the client may be gone
	})
}

// RequestExplanation requests the Explanation of a revision from the ExplanationHandler of a replica. It fails with ErrUnknown like
// Explain. transport connects to the addresses of members.
func RequestExplanation(ctx context.Context, transport http.RoundTripper, to membership.Member, key routing.Key, uid types.UID) (*Explanation, error) {
	var e *Explanation
	err := peer.Call{
		Method: http.MethodGet, Path: "/" + ExplanationElement, Query: url.Values{"namespace": {key.Namespace}, "name": {key.Name}, "uid": {string(uid)}},
		Read: func(body io.Reader) error { return json.NewDecoder(io.LimitReader(body, maxExplanation)).Decode(&e) },
	}.Do(ctx, transport, to)
	switch {
	case err != nil:
		return nil, fmt.Errorf("request explanation: %w", err)
	case e == nil:
		return nil, ErrUnknown
	}
	return e, nil
}
