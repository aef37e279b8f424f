package broker

import (
	"context"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// sharedQueue is the queue of events that go to several consumers at once.
	sharedQueue = ""
	// sharedSegments and sharedBytes bound what a stream has in memory of it. Lanes let go of segments within a second or
	// so.
	sharedSegments, sharedBytes = 4096, 64 << 20
)

// stream is a Broker or a Channel.
type stream struct {
	spec   eventing.Stream
	broker *Broker
	log    LogStream
	ctx    context.Context
	cancel context.CancelFunc
	// consumers are the consumers by filter: each event that is accepted is matched with those of that time.
	consumers atomic.Pointer[filter.Index[types.UID, *consumer]]
	// byUID has the same consumers.
	byUID    sync.Map
	strays   strays
	listener *listener
	// inMemory is the number of shared segments that are not done.
	inMemory atomic.Int64
	// retries listens to the retry queue, of which retriesInMemory segments are not done.
	retries         *listener
	retriesInMemory atomic.Int64
	// memory bounds the segments of retries in memory.
	memory *memory
	// queues are the queues in which there was something at the start.
	queues map[string]uint64
	// resumed tells that what the log has is delivered. The broker's mu guards it.
	resumed bool
	// removed tells that the stream does not exist any more, or that another replica has it.
	removed atomic.Bool
	counts  streamCounts
}

// streamCounts are the metrics of a stream that count.
type streamCounts struct{ accepted, matched, looped atomic.Int64 }

func newStream(b *Broker, spec eventing.Stream, log LogStream, queues map[string]uint64) *stream {
	s := &stream{spec: spec, broker: b, log: log, queues: queues, memory: b.memories.of(spec.Key.Namespace)}
	s.ctx, s.cancel = context.WithCancel(klog.NewContext(b.ctx, klog.FromContext(b.ctx).WithValues("stream", spec.Key.String())))
	s.consumers.Store(&filter.Index[types.UID, *consumer]{})
	s.listener = &listener{
		log: log, queue: sharedQueue, clock: b.options.Clock, take: s.dispatch,
		quiet: func() bool { return s.inMemory.Load() == 0 },
		options: func() eventlog.ConsumeOptions {
			return eventlog.ConsumeOptions{MaxSegments: sharedSegments, MaxBytes: sharedBytes}
		},
	}
	s.retries = s.newRetries()
	return s
}

// resume takes up what is in the log. The broker's mu is held.
func (s *stream) resume() {
	s.resumed = true
	if s.queues[sharedQueue] > 0 {
		s.listener.expect()
	}
	s.listener.begin(s.ctx)
	if s.queues[retryQueue] > 0 {
		s.retries.expect()
	}
	s.retries.begin(s.ctx)
	s.byUID.Range(func(_, c any) bool {
		c.(*consumer).resume(s.queues)
		return true
	})
}

func (s *stream) consumer(uid types.UID) *consumer {
	if c, found := s.byUID.Load(uid); found {
		return c.(*consumer)
	}
	return nil
}

// sharedSegment counts a segment until it is done.
type sharedSegment struct {
	SegmentHandle
	stream *stream
}

// Ack implements SegmentHandle.
func (f sharedSegment) Ack() {
	f.stream.inMemory.Add(-1)
	f.SegmentHandle.Ack()
}

// dispatch hands the events of a segment to the lanes of their consumers.
func (s *stream) dispatch(f Segment) {
	s.inMemory.Add(1)
	from := &held{segment: sharedSegment{f.Handle, s}}
	// One more than there are, until all are counted.
	from.left.Add(1)
	for _, record := range f.Records {
		var h header
		encoded, err := h.parse(record)
		var e *event.Event
		if err == nil {
			e, err = event.Decode(encoded)
		}
		if err != nil {
			klog.FromContext(s.ctx).Error(err, "Dropping a record of the event log that cannot be read")
			continue
		}
		from.need(int32(len(h.targets)))
		g := newGroup(s, len(h.targets))
		for _, target := range h.targets {
			s.hand(target, &parcel{event: e, encoded: encoded, id: newID(), accepted: h.accepted, from: from, group: g})
		}
	}
	from.release()
}

// hand gives a parcel to a consumer, unless that does not exist any more.
func (s *stream) hand(target types.UID, p *parcel) {
	switch c := s.consumer(target); {
	case c != nil && p.shared:
		c.main.arrive(p)
	case c != nil:
		c.main.offer(p)
	case !s.broker.options.Exists(target):
		p.leave()
		p.from.release()
	default:
		s.wait(target, p)
	}
}

// close ends all deliveries of a stream that does not exist any more.
func (s *stream) close() {
	s.removed.Store(true)
	s.listener.stop()
	s.retries.stop()
	s.byUID.Range(func(_, c any) bool {
		c.(*consumer).remove()
		return true
	})
	s.cancel()
	s.listener.running.Wait()
	s.retries.running.Wait()
}
