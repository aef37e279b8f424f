package broker

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// maxTTL is the number of times that an event may pass through a Broker.
const maxTTL = 255

// Exists reports whether a stream exists.
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
// they pass (eventing Content Based Routing, Topology Based Routing). The events may be changed, but not kept. Errors match a
// reason of package eventing, unless ctx ended.
func (b *Broker) Accept(ctx context.Context, key eventing.Key, events []*event.Event) error {
	s := b.stream(key)
	if s == nil {
		return eventing.Reject(eventing.ErrNotFound, "%s does not exist", key)
	}
	if key.Kind == eventing.Broker {
		for i, e := range events {
			if events[i] = s.pass(e); events[i] == nil {
				return eventing.Reject(eventing.ErrLoop, "the event passed too many Brokers: its %s must be greater than 1", event.TTL)
			}
		}
	}
	_, err := s.append(ctx, events, trace.OriginOf(ctx))
	return rejected(ctx, err)
}

// rejected returns the error of an append with a reason of package eventing.
func rejected(ctx context.Context, err error) error {
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, eventing.ErrTooLarge), errors.Is(err, eventing.ErrFull):
		return err
	case errors.Is(err, eventlog.ErrTooLarge):
		return eventing.Reject(eventing.ErrTooLarge, "the event exceeds the maximum size of the event log")
	case errors.Is(err, eventlog.ErrShareFull):
		return eventing.Reject(eventing.ErrFull, "the Brokers and Channels of the namespace reached their share of the event log")
	case errors.Is(err, eventlog.ErrFull):
		return eventing.Reject(eventing.ErrFull, "the event log is full")
	default:
		return eventing.Reject(eventing.ErrUnavailable, "the event log is not available")
	}
}

// pass counts the passage of an event through the Broker. It returns nil if the event passed too many.
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

// withoutTTL returns an event without the attribute that Brokers exchange.
func withoutTTL(e *event.Event) *event.Event {
	if _, found := e.Get(event.TTL); !found {
		return e
	}
	return e.With(event.Attribute{Name: event.TTL})
}

const (
	// maxWritten bounds the bytes of several events in the log that are accepted together, consumers included, and commitBytes
	// the bytes that are appended at a time.
	maxWritten, commitBytes = 64 << 20, 4 << 20
	// matchBytes is what a consumer takes that an event matches. Records and matches are in memory appendWeight times
	// while they are appended, or grow.
	matchBytes   = 8
	appendWeight = 2
)

// plan has the consumers of an event by the records to write: one record for the consumers that keep up, one for the consumers
// that have other events before it, and one for each consumer that wants events in order.
type plan struct {
	event                  *event.Event
	direct, later, ordered []*consumer
	// exceeded are the consumers that do not get the event because their filters exceeded the budget.
	exceeded []*consumer
}

// planOf returns the plan of an event for consumers, which it sorts.
func planOf(e *event.Event, matched []*consumer) plan {
	partition := func(all []*consumer, first func(*consumer) bool) ([]*consumer, []*consumer) {
		n := 0
		for i, c := range all {
			if first(c) {
				all[n], all[i] = c, all[n]
				n++
			}
		}
		return all[:n], all[n:]
	}
	direct, others := partition(matched, func(c *consumer) bool { return c.subscriber.KeepsUp() })
	ordered, later := partition(others, func(c *consumer) bool { return c.subscriber.Ordered() })
	return plan{event: e, direct: direct, later: later, ordered: ordered}
}

// size returns how many bytes the records of the event take at most.
func (p *plan) size() int {
	records := len(p.ordered)
	for _, shared := range [][]*consumer{p.direct, p.later} {
		if len(shared) > 0 {
			records++
		}
	}
	return records*(record.HeaderBytes+p.event.Size()) + (len(p.direct)+len(p.later))*record.TargetBytes
}

// appender appends events to the log of a stream. It is reused with its memory.
type appender struct {
	stream  *stream
	plans   []plan
	matched []*consumer
	targets []types.UID
	buffer  []byte
	// filters is the fingerprint of the filters that the events were matched with. The keys name the consumers in a record of package trace.
	filters                   uint64
	matchedKeys, exceededKeys []eventing.Key
	records                   []eventlog.Record
	// ends are the positions in buffer at which records end: it moves while it grows.
	ends []int
}

var appenders = sync.Pool{New: func() any { return &appender{} }}

// append makes accepted events durable for the consumers that they are for, and in the archive of the Broker if it has one. It returns the time of
// the acceptance.
func (s *stream) append(ctx context.Context, events []*event.Event, from trace.Origin) (at time.Time, err error) {
	defer s.beginAppend().end()
	w := appenders.Get().(*appender)
	w.stream = s
	defer w.free()
	if at, err = w.accept(ctx, events, &from, s.broker.options.Archive); err != nil {
		return at, err
	}
	for i := range w.plans {
		s.broker.options.Tails.Offer(s.spec.Key.Whole(), w.plans[i].event, at)
	}
	s.counts.accepted.Add(int64(len(events)))
	w.countMatched()
	return at, nil
}

// countMatched counts the deliveries of the events.
func (w *appender) countMatched() {
	w.stream.counts.matched.Add(int64(len(w.matched)))
	for _, c := range w.matched {
		c.counts.matched.Add(1)
	}
}

// accept writes several commits if there is much to write, and reserves the memory of the largest one before it makes any. Nil archives archives
// nothing.
func (w *appender) accept(ctx context.Context, events []*event.Event, from *trace.Origin, archives *archive.Store) (at time.Time, err error) {
	s := w.stream
	memory := reservation{budget: s.broker.options.Budget, namespace: s.spec.Key.Namespace}
	defer memory.release()
	if err := w.plan(ctx, events, &memory, archives.Size(s.spec.UID, events)); err != nil {
		return at, err
	}
	at = s.broker.options.Clock.Now()
	archived := archives.Begin(ctx, s.spec.UID, at, events)
	err = w.writeAll(ctx, at)
	archived()
	if err != nil {
		return at, err
	}
	w.recordAccepted(at, from)
	return at, nil
}

// writeAll makes the records of all events durable.
func (w *appender) writeAll(ctx context.Context, at time.Time) error {
	for i := range w.plans {
		if err := w.write(ctx, &w.plans[i], at); err != nil {
			return err
		}
	}
	return w.commit(ctx)
}

var errMemory = eventing.Reject(eventing.ErrFull, "the namespace reached its share of the memory budget")

// reservation is what one append holds of the budget.
type reservation struct {
	budget    *flow.Budget
	namespace string
	bytes     int64
}

// grow makes the reservation as large as bytes, and reports whether there is memory.
func (r *reservation) grow(bytes int64) bool {
	if bytes <= r.bytes {
		return true
	}
	if !r.budget.Reserve(r.namespace, bytes-r.bytes) {
		return false
	}
	r.bytes = bytes
	return true
}

func (r *reservation) release() { r.budget.Release(r.namespace, r.bytes) }

// plan chooses the records to write for events, and reserves memory for them, and for archived bytes.
func (w *appender) plan(ctx context.Context, events []*event.Event, memory *reservation, archived int) error {
	consumers, written := w.stream.consumers.Load(), 0
	w.filters = consumers.filters
	budget := filter.NewBudget(ctx)
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
		p := planOf(e, w.matched[before:])
		p.exceeded = exceeded
		written += p.size()
		if written > maxWritten && len(events) > 1 {
			return eventing.Reject(eventing.ErrTooLarge,
				"the events of the batch, with their headers and for all that they match, take up more than %d bytes; send fewer at once", maxWritten)
		}
		w.plans = append(w.plans, p)
		if !memory.grow(int64(appendWeight * (min(written, commitBytes) + archived + matchBytes*len(w.matched)))) {
			return errMemory
		}
	}
	return nil
}

// commit appends the collected records, and forgets them.
func (w *appender) commit(ctx context.Context) error {
	if len(w.records) == 0 {
		return nil
	}
	start := 0
	for i, end := range w.ends {
		w.records[i].Data = w.buffer[start:end:end]
		start = end
	}
	if err := w.stream.log.AppendNew(ctx, w.records...); err != nil {
		return err
	}
	w.stream.notify(w.records)
	clear(w.records)
	w.records, w.ends, w.buffer = w.records[:0], w.ends[:0], w.buffer[:0]
	return nil
}

// write makes the records of an event, and appends those made so far whenever they are large enough for a commit.
func (w *appender) write(ctx context.Context, p *plan, now time.Time) error {
	alone := p.ordered
	if len(p.later) == 1 {
		alone = append(alone[:len(alone):len(alone)], p.later...)
	}
	for _, c := range alone {
		h := record.Header{ID: record.NewID(), Accepted: now}
		c.subscriber.Reader.Expect()
		if err := w.addRecord(ctx, &h, p.event, eventlog.Record{Queue: c.subscriber.Name(), Alone: c.subscriber.Ordered()}); err != nil {
			return err
		}
	}
	deliveries := w.stream.deliveries
	if len(p.later) > 1 {
		deliveries.Retries.Expect()
		if err := w.sharedRecord(ctx, p.event, p.later, delivery.RetryQueue, now); err != nil {
			return err
		}
	}
	if len(p.direct) > 0 {
		deliveries.Shared.Expect()
		return w.sharedRecord(ctx, p.event, p.direct, delivery.SharedQueue, now)
	}
	return nil
}

// sharedRecord makes the record of an event for several consumers.
func (w *appender) sharedRecord(ctx context.Context, e *event.Event, consumers []*consumer, queue string, now time.Time) error {
	w.targets = w.targets[:0]
	for _, c := range consumers {
		w.targets = append(w.targets, c.config.Load().UID)
	}
	return w.addRecord(ctx, &record.Header{Accepted: now, Targets: w.targets}, e, eventlog.Record{Queue: queue})
}

func (w *appender) addRecord(ctx context.Context, h *record.Header, e *event.Event, r eventlog.Record) error {
	if size := record.HeaderBytes + len(h.Targets)*record.TargetBytes + e.Size(); len(w.buffer) > 0 && len(w.buffer)+size > commitBytes {
		if err := w.commit(ctx); err != nil {
			return err
		}
	}
	w.buffer = e.Append(h.Append(w.buffer))
	w.ends = append(w.ends, len(w.buffer))
	w.records = append(w.records, r)
	return nil
}

// free returns the appender to the pool. Large buffers are left to the garbage collector.
func (w *appender) free() {
	w.stream = nil
	clear(w.matched)
	clear(w.records)
	clear(w.plans)
	w.plans, w.matched, w.records, w.ends, w.buffer = w.plans[:0], w.matched[:0], w.records[:0], w.ends[:0], w.buffer[:0]
	if cap(w.buffer) <= 64<<10 && cap(w.matched) <= 4096 && cap(w.plans) <= 1024 {
		appenders.Put(w)
	}
}
