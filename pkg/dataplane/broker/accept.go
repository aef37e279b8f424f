package broker

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// maxTTL is the number of times that an event may pass through a Broker.
const maxTTL = 255

// comeAgain is how long senders are told to wait while the log takes nothing.
const comeAgain = 5 * time.Second

// Exists tells whether there is a stream.
func (b *Broker) Exists(key eventing.Key) bool {
	return b.stream(key) != nil
}

// stream returns the stream of a name that accepts events, or nil.
func (b *Broker) stream(key eventing.Key) *stream {
	if found, ok := b.streams.Load(key); ok && !found.(*stream).removed.Load() {
		return found.(*stream)
	}
	return nil
}

// Accept makes events durable, together with whom they are for, for all consumers that there are now whose filters
// they pass (eventing Content Based Routing, Topology Based Routing). The events may be changed, but not kept. Errors are an
// ingress.Refusal where the sender is to know the reason.
func (b *Broker) Accept(ctx context.Context, key eventing.Key, events []*event.Event) error {
	s := b.stream(key)
	if s == nil {
		return &ingress.Refusal{Status: http.StatusNotFound, Message: "there is no " + key.String()}
	}
	if key.Kind == eventing.Broker {
		for i, e := range events {
			if events[i] = s.pass(e); events[i] == nil {
				return &ingress.Refusal{Status: http.StatusBadRequest, Message: "the event went through too many Brokers: its " +
					event.TTL + " must be greater than 1"}
			}
		}
	}
	err := s.append(ctx, events)
	switch {
	case err == nil, ctx.Err() != nil:
		return err
	case errors.Is(err, eventlog.ErrTooLarge):
		return &ingress.Refusal{Status: http.StatusRequestEntityTooLarge, Message: "the event is larger than the event log takes"}
	case errors.Is(err, eventlog.ErrFull):
		return &ingress.Refusal{Status: http.StatusServiceUnavailable, RetryAfter: comeAgain, Message: "the event log is full"}
	default:
		return &ingress.Refusal{Status: http.StatusServiceUnavailable, RetryAfter: comeAgain, Message: "the event log is not available"}
	}
}

// pass counts an event's way through the Broker. Nil tells that it has gone through too many.
func (s *stream) pass(e *event.Event) *event.Event {
	if _, found := e.Get(event.TTL); !found {
		e.Attributes = append(e.Attributes, event.Attribute{Name: event.TTL, Value: strconv.Itoa(maxTTL), Type: event.Integer})
		return e
	}
	left := ttlOf(e) - 1
	if left <= 0 {
		s.counts.looped.Add(1)
		return nil
	}
	return e.With(event.Attribute{Name: event.TTL, Value: strconv.Itoa(left), Type: event.Integer})
}

// ttlOf returns how many Brokers an event may pass through; one that does not say, or not in numbers, may as many as
// any.
func ttlOf(e *event.Event) int {
	if value, found := e.Get(event.TTL); found {
		if n, err := strconv.Atoi(value); err == nil {
			return min(n, maxTTL)
		}
	}
	return maxTTL
}

// withoutTTL returns an event without what is between Brokers.
func withoutTTL(e *event.Event) *event.Event {
	if _, found := e.Get(event.TTL); !found {
		return e
	}
	return e.With(event.Attribute{Name: event.TTL})
}

const (
	// headerBytes is the most that a record's header takes without its targets, targetBytes what each of these takes.
	headerBytes, targetBytes = 48, 37
)

// scratch is what append needs for a while.
type scratch struct {
	matched []*consumer
	targets []types.UID
	buffer  []byte
	records []eventlog.Record
	// ends are where records end in buffer: it moves while it grows.
	ends []int
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

// append makes events durable for the consumers that they are for.
func (s *stream) append(ctx context.Context, events []*event.Event) error {
	w := scratches.Get().(*scratch)
	defer w.free()
	now := s.broker.options.Clock.Now()
	consumers, budget := s.consumers.Load(), filter.NewBudget(ctx)
	for _, e := range events {
		before := len(w.matched)
		var exceeded []*consumer
		w.matched, exceeded = consumers.Match(budget, e, w.matched)
		if err := budget.Err(); err != nil {
			return err
		}
		for _, c := range exceeded {
			c.unfiltered()
		}
		w.add(e, w.matched[before:], now)
	}
	start := 0
	for i, end := range w.ends {
		w.records[i].Data = w.buffer[start:end:end]
		start = end
	}
	if len(w.records) > 0 {
		s.listener.expect()
		if err := s.log.Append(ctx, w.records...); err != nil {
			return err
		}
		s.wake(w.records)
	}
	s.counts.accepted.Add(int64(len(events)))
	s.counts.matched.Add(int64(len(w.matched)))
	for _, c := range w.matched {
		c.counts.matched.Add(1)
	}
	return nil
}

// wake sees to it that what was appended is delivered.
func (s *stream) wake(records []eventlog.Record) {
	for i := range records {
		if queue := records[i].Queue; queue == sharedQueue {
			s.listener.wake(s.ctx)
		} else if c := s.consumer(types.UID(queue)); c != nil {
			c.main.listener.wake(c.ctx)
		}
	}
}

// add adds the records of an event to those to be appended: one for all consumers that keep up, and one for each of
// the others.
func (w *scratch) add(e *event.Event, matched []*consumer, now time.Time) {
	w.targets = w.targets[:0]
	h := header{accepted: now}
	for _, c := range matched {
		config := c.config.Load()
		if c.main.takesDirectly() {
			w.targets = append(w.targets, config.UID)
			continue
		}
		h.id = newID()
		c.main.listener.expect()
		w.record(&h, e, eventlog.Record{Queue: c.main.queue, Alone: config.Ordered})
	}
	if len(w.targets) > 0 {
		h.targets = w.targets
		w.record(&h, e, eventlog.Record{Queue: sharedQueue})
	}
}

func (w *scratch) record(h *header, e *event.Event, r eventlog.Record) {
	w.buffer = e.Append(h.append(w.buffer))
	w.ends = append(w.ends, len(w.buffer))
	w.records = append(w.records, r)
}

// free gives the scratch to others. Large buffers are left to the garbage collector.
func (w *scratch) free() {
	clear(w.matched)
	clear(w.records)
	w.matched, w.records, w.ends, w.buffer = w.matched[:0], w.records[:0], w.ends[:0], w.buffer[:0]
	if cap(w.buffer) <= 64<<10 {
		scratches.Put(w)
	}
}
