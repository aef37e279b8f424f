package broker

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// stream is a Broker or a Channel, or a partition of a Broker.
type stream struct {
	spec   eventing.Stream
	broker *Broker
	log    logqueue.Stream
	ctx    context.Context
	cancel context.CancelFunc
	// consumers are the consumers by filter: each accepted event is matched against the current ones.
	consumers atomic.Pointer[matchers]
	// appends are in progress. settle replaces them.
	appends atomic.Pointer[appends]
	// byUID has the same consumers.
	byUID sync.Map
	// unassigned are the deliveries to consumers that exist but were not set yet.
	unassigned unassigned
	// deliveries reads the records that several consumers share.
	deliveries *delivery.Stream
	// queues are the queues that had records at the start.
	queues map[string]uint64
	// resumed is true once records of the log are delivered. The broker's mu guards it.
	resumed bool
	// removed is true if the stream does not exist anymore, or another replica owns it.
	removed atomic.Bool
	counts  *streamCounts
}

// matchers are the consumers by filter, with the fingerprint of all filters (trace.Fingerprint). Immutable.
type matchers struct {
	*filter.Index[types.UID, *consumer]
	filters uint64
}

// streamCounts are the counters of a stream's metrics.
type streamCounts struct{ accepted, matched, looped atomic.Int64 }

func newStream(b *Broker, spec eventing.Stream, log logqueue.Stream, queues map[string]uint64) *stream {
	s := &stream{spec: spec, broker: b, log: log, queues: queues, counts: b.streamCounts.of(spec.Key.Whole(), spec.UID)}
	s.ctx, s.cancel = context.WithCancel(klog.NewContext(b.ctx, klog.FromContext(b.ctx).WithValues("stream", spec.Key.String())))
	s.consumers.Store(&matchers{Index: &filter.Index[types.UID, *consumer]{}})
	s.appends.Store(newAppends())
	s.unassigned.stream = s
	s.deliveries = delivery.NewStream(s.ctx, delivery.StreamConfig{
		Log: log, Clock: b.options.Clock, Workers: b.workers, Share: b.shares.Of(spec.Key.Namespace), Memory: b.memories.Of(spec.Key.Namespace),
		Assign: s.assign,
	})
	return s
}

// resume begins to deliver the records in the log. The broker's mu is held.
func (s *stream) resume() {
	s.resumed = true
	s.expect(s.queues)
	s.deliveries.Shared.Start(s.ctx)
	s.deliveries.Retries.Start(s.ctx)
	s.byUID.Range(func(_, c any) bool {
		c.(*consumer).start(s.queues)
		return true
	})
}

// expect notes that shared queues have records.
func (s *stream) expect(queues map[string]uint64) {
	if queues[delivery.SharedQueue] > 0 {
		s.deliveries.Shared.Expect()
	}
	if queues[delivery.RetryQueue] > 0 {
		s.deliveries.Retries.Expect()
	}
}

// index changes the consumers that new events are matched with.
func (s *stream) index(change func(matchers) matchers) {
	for {
		before := s.consumers.Load()
		after := change(*before)
		if s.consumers.CompareAndSwap(before, &after) {
			return
		}
	}
}

// notify starts reading the queues of appended records.
func (s *stream) notify(records []eventlog.Record) {
	for i := range records {
		if queue := records[i].Queue; queue == delivery.SharedQueue {
			s.deliveries.Shared.Notify(s.ctx)
		} else if queue == delivery.RetryQueue {
			s.deliveries.Retries.Notify(s.ctx)
		} else if c := s.consumer(types.UID(queue)); c != nil {
			c.subscriber.Reader.Notify(c.ctx)
		}
	}
}

func (s *stream) consumer(uid types.UID) *consumer {
	if c, found := s.byUID.Load(uid); found {
		return c.(*consumer)
	}
	return nil
}

// allConsumers returns the consumers of the stream.
func (s *stream) allConsumers() (all []*consumer) {
	s.byUID.Range(func(_, c any) bool {
		all = append(all, c.(*consumer))
		return true
	})
	return all
}

// assign passes a delivery to its consumer, unless the consumer does not exist anymore.
func (s *stream) assign(target types.UID, d *delivery.Delivery) {
	switch c := s.consumer(target); {
	case c != nil:
		c.subscriber.Offer(d)
	case !s.broker.options.Exists(target):
		d.Discard()
	default:
		s.unassigned.keep(target, d)
	}
}

// close ends all deliveries of a stream that does not exist anymore.
func (s *stream) close() {
	s.removed.Store(true)
	s.deliveries.Stop()
	for _, c := range s.allConsumers() {
		c.remove()
	}
	s.cancel()
	s.deliveries.Wait()
}
