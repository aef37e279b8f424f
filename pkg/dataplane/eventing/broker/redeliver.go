package broker

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Redeliver makes stored events durable for one consumer, whether or not its filters match, as Accept does for the consumers that match. They
// follow the events in the consumer's queue, in their order. uid is the UID of the consumer. Errors are as for Accept: ErrNotFound also means that another replica owns
// the stream, or does not serve the consumer yet.
func (b *Broker) Redeliver(ctx context.Context, key eventing.Key, uid types.UID, events []*event.Event) error {
	c := b.servedConsumer(key, uid)
	if c == nil {
		return errNotServed(key)
	}
	s := c.stream
	defer s.beginAppend().end()
	if c.ctx.Err() != nil {
		// Its queue may be deleted before the append.
		return errNotServed(key)
	}
	w := appenders.Get().(*appender)
	w.stream = s
	defer w.free()
	memory := reservation{budget: b.options.Budget, namespace: s.spec.Key.Namespace}
	defer memory.release()
	size := 0
	for _, e := range events {
		p := plan{event: e, later: []*consumer{c}}
		size += p.size()
		w.plans = append(w.plans, p)
	}
	if !memory.grow(int64(appendWeight * min(size, commitBytes))) {
		return errMemory
	}
	w.filters = s.consumers.Load().filters
	now := b.options.Clock.Now()
	for i := range w.plans {
		if err := w.write(ctx, &w.plans[i], now); err != nil {
			return rejected(ctx, err)
		}
	}
	if err := w.commit(ctx); err != nil {
		return rejected(ctx, err)
	}
	w.recordAccepted(now, &trace.Origin{Redelivered: true})
	n := int64(len(events))
	s.counts.matched.Add(n)
	c.counts.matched.Add(n)
	c.counts.redelivered.Add(n)
	return nil
}

// Replay makes stored events durable for all consumers of a Broker whose filters they pass, as Accept does, but they are not new: they are not
// archived, shown or counted as accepted again, and keep their number of passages. uid is the UID of the Broker. Errors are as for Redeliver.
func (b *Broker) Replay(ctx context.Context, key eventing.Key, uid types.UID, events []*event.Event) error {
	s := b.stream(key)
	if s == nil || s.spec.UID != uid {
		return errNotServed(key)
	}
	defer s.beginAppend().end()
	w := appenders.Get().(*appender)
	w.stream = s
	defer w.free()
	if _, err := w.accept(ctx, events, &trace.Origin{}, nil); err != nil {
		return rejected(ctx, err)
	}
	w.countMatched()
	for _, c := range w.matched {
		c.counts.redelivered.Add(1)
	}
	return nil
}

// Serves reports whether events for a consumer are delivered here.
func (b *Broker) Serves(key eventing.Key, uid types.UID) bool {
	return b.servedConsumer(key, uid) != nil
}

// Backlog returns the number of segments in the queue of a consumer in the event log, or in the longest queue of a Broker. Each has one event at
// least. Errors are as for Redeliver.
func (b *Broker) Backlog(ctx context.Context, key eventing.Key, uid types.UID) (uint64, error) {
	if key.Kind == eventing.Broker {
		return b.longestBacklog(ctx, key, uid)
	}
	c := b.servedConsumer(key, uid)
	if c == nil {
		return 0, errNotServed(key)
	}
	queues, err := c.stream.log.Queues(ctx)
	if err != nil {
		return 0, rejected(ctx, err)
	}
	return queues[c.subscriber.Name()], nil
}

func (b *Broker) longestBacklog(ctx context.Context, key eventing.Key, uid types.UID) (longest uint64, err error) {
	s := b.stream(key)
	if s == nil || s.spec.UID != uid {
		return 0, errNotServed(key)
	}
	queues, err := s.log.Queues(ctx)
	if err != nil {
		return 0, rejected(ctx, err)
	}
	for _, n := range queues {
		longest = max(longest, n)
	}
	return longest, nil
}

// servedConsumer returns a consumer whose stream is here, or nil.
func (b *Broker) servedConsumer(key eventing.Key, uid types.UID) *consumer {
	found, ok := b.consumers.Load(key)
	if !ok {
		return nil
	}
	c := found.(*consumer)
	if c.config.Load().UID != uid || c.stream.removed.Load() {
		return nil
	}
	return c
}

func errNotServed(key eventing.Key) error {
	return eventing.Reject(eventing.ErrNotFound, "%s is not subscribed yet", key)
}
