package broker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// ackWait is the time after which the fake log redelivers segments of a stopped consumer.
const ackWait = 6 * time.Second

// fakeLog is a log in memory that outlives the brokers on it. Each broker has its own session.
type fakeLog struct {
	mu sync.Mutex
	// mu guards the fields below.
	streams map[string]*fakeStream
	// refuse fails appends and deletions of queues if it returns an error.
	refuse func(queue string) error
	// latency is the duration of appends.
	latency time.Duration
	// largest is the size of the largest append, written the size of all.
	largest, written int
}

type fakeStream struct{ queues map[string]*fakeQueue }

type fakeQueue struct {
	segments []*fakeSegment
	// pending has the segments that are delivered, or wait for redelivery.
	pending      int
	logConsumers map[*fakeLogConsumer]struct{}
}

type fakeSegment struct {
	records [][]byte
	// attempt counts the deliveries of the segment.
	attempt int
	// busy is true while it is delivered; handles of earlier attempts have no effect.
	busy bool
	// due is the time of the redelivery, zero before the first delivery.
	due time.Time
}

func newFakeLog() *fakeLog { return &fakeLog{streams: map[string]*fakeStream{}} }

// setRefuse sets refuse.
func (l *fakeLog) setRefuse(refuse func(queue string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = refuse
}

// setLatency sets latency.
func (l *fakeLog) setLatency(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latency = d
}

func (l *fakeLog) getLatency() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.latency
}

// left returns the number of segments in each queue of a stream that is not empty.
func (l *fakeLog) left(stream string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := map[string]int{}
	if s := l.streams[stream]; s != nil {
		for name, q := range s.queues {
			if len(q.segments) > 0 {
				left[name] = len(q.segments)
			}
		}
	}
	return left
}

// sizes returns the size of the largest append, and the size of all.
func (l *fakeLog) sizes() (largest, written int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.largest, l.written
}

// put puts a segment into a queue, as an earlier process may have.
func (l *fakeLog) put(stream, queue string, records ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.stream(stream).queue(queue)
	q.segments = append(q.segments, &fakeSegment{records: records})
	q.wake()
}

// logConsumers returns the number of log consumers.
func (l *fakeLog) logConsumers() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.streams {
		for _, q := range s.queues {
			n += len(q.logConsumers)
		}
	}
	return n
}

// stream returns a stream, and creates it if necessary. mu is held.
func (l *fakeLog) stream(id string) *fakeStream {
	if l.streams[id] == nil {
		l.streams[id] = &fakeStream{queues: map[string]*fakeQueue{}}
	}
	return l.streams[id]
}

func (s *fakeStream) queue(name string) *fakeQueue {
	if s.queues[name] == nil {
		s.queues[name] = &fakeQueue{logConsumers: map[*fakeLogConsumer]struct{}{}}
	}
	return s.queues[name]
}

func (q *fakeQueue) wake() {
	for c := range q.logConsumers {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// next returns the segment to be delivered next, or nil.
func (q *fakeQueue) next(now time.Time) *fakeSegment {
	pending := 0
	for _, f := range q.segments {
		if f.busy || !f.due.IsZero() {
			pending++
		}
	}
	for _, f := range q.segments {
		switch {
		case f.busy, f.due.After(now):
		case f.due.IsZero() && pending >= q.pending:
		default:
			return f
		}
	}
	return nil
}

// session is a broker's connection to the log. It implements Log.
type session struct {
	log *fakeLog
	// cut is true once it was closed.
	cut bool
	all []*fakeLogConsumer
}

func (l *fakeLog) open() *session { return &session{log: l} }

// close ends the session, like the kill of a process: later calls have no effect, and unacknowledged segments are redelivered at once.
func (s *session) close() {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.cut = true
	for _, c := range s.all {
		c.end(0)
	}
}

// Stream implements Log.
func (s *session) Stream(_ context.Context, config eventlog.StreamConfig) (logqueue.Stream, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.cut {
		return nil, eventlog.ErrClosed
	}
	s.log.stream(config.ID)
	return &fakeLogStream{session: s, id: config.ID}, nil
}

// DeleteStream implements Log.
func (s *session) DeleteStream(_ context.Context, id string) error {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	for _, q := range s.log.stream(id).queues {
		q.stop()
	}
	delete(s.log.streams, id)
	return nil
}

// ReleaseStream implements Log.
func (s *session) ReleaseStream(id string) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	for _, c := range s.all {
		select {
		case <-c.stopped:
		default:
			if c.stream == id {
				c.end(0)
			}
		}
	}
}

// StreamIDs implements Log.
func (s *session) StreamIDs(context.Context) ([]string, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return slices.Sorted(maps.Keys(s.log.streams)), nil
}

type fakeLogStream struct {
	session *session
	id      string
}

// lock returns the stream, unless it was deleted or the session closed.
func (s *fakeLogStream) lock() (*fakeStream, func(), error) {
	l := s.session.log
	l.mu.Lock()
	if found := l.streams[s.id]; found != nil && !s.session.cut {
		return found, l.mu.Unlock, nil
	}
	l.mu.Unlock()
	return nil, nil, eventlog.ErrClosed
}

// AppendNew implements LogStream. There are no shares.
func (s *fakeLogStream) AppendNew(ctx context.Context, records ...eventlog.Record) error {
	return s.Append(ctx, records...)
}

// Append implements LogStream. Records of a queue share a segment, unless Alone is set.
func (s *fakeLogStream) Append(ctx context.Context, records ...eventlog.Record) error {
	if latency := s.session.log.getLatency(); latency > 0 {
		<-time.After(latency)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	stream, unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	for _, r := range records {
		if refuse := s.session.log.refuse; refuse != nil {
			if err := refuse(r.Queue); err != nil {
				return err
			}
		}
	}
	open := map[string]*fakeSegment{}
	size := 0
	for _, r := range records {
		size += len(r.Data)
	}
	s.session.log.largest = max(s.session.log.largest, size)
	s.session.log.written += size
	for _, r := range records {
		q := stream.queue(r.Queue)
		f := open[r.Queue]
		if f == nil || r.Alone {
			f = &fakeSegment{}
			q.segments = append(q.segments, f)
			if !r.Alone {
				open[r.Queue] = f
			}
		}
		f.records = append(f.records, slices.Clone(r.Data))
		q.wake()
	}
	return nil
}

// Queues implements LogStream.
func (s *fakeLogStream) Queues(context.Context) (map[string]uint64, error) {
	stream, unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	queues := map[string]uint64{}
	for name, q := range stream.queues {
		if len(q.segments) > 0 {
			queues[name] = uint64(len(q.segments))
		}
	}
	return queues, nil
}

// DeleteQueue implements LogStream.
func (s *fakeLogStream) DeleteQueue(_ context.Context, queue string) error {
	stream, unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if refuse := s.session.log.refuse; refuse != nil {
		if err := refuse(queue); err != nil {
			return err
		}
	}
	stream.queue(queue).stop()
	delete(stream.queues, queue)
	return nil
}

// stop stops all log consumers of the queue. mu is held.
func (q *fakeQueue) stop() {
	for c := range q.logConsumers {
		c.end(ackWait)
	}
}

// Consume implements LogStream.
func (s *fakeLogStream) Consume(queue string, o eventlog.ConsumeOptions, handle func(logqueue.Segment)) (logqueue.Consumer, error) {
	stream, unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	q := stream.queue(queue)
	q.pending = o.MaxSegments
	c := &fakeLogConsumer{
		session: s.session, stream: s.id, queue: q, handle: handle, changed: make(chan struct{}, 1), stopped: make(chan struct{}),
		undone: map[*fakeHandle]struct{}{},
	}
	q.logConsumers[c] = struct{}{}
	s.session.all = append(s.session.all, c)
	go c.run()
	return c, nil
}

// fakeLogConsumer implements LogConsumer.
type fakeLogConsumer struct {
	session *session
	stream  string
	queue   *fakeQueue
	handle  func(logqueue.Segment)
	changed chan struct{}
	stopped chan struct{}
	// undone is guarded by the log's mu.
	undone map[*fakeHandle]struct{}
}

func (c *fakeLogConsumer) run() {
	for {
		if f, ok := c.claim(); ok {
			c.handle(f)
			continue
		}
		select {
		case <-c.changed:
		case <-c.stopped:
			return
		}
	}
}

// claim returns the next segment to deliver.
func (c *fakeLogConsumer) claim() (logqueue.Segment, bool) {
	l := c.session.log
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-c.stopped:
		return logqueue.Segment{}, false
	default:
	}
	f := c.queue.next(time.Now())
	if f == nil {
		return logqueue.Segment{}, false
	}
	f.busy = true
	f.attempt++
	h := &fakeHandle{logConsumer: c, segment: f, attempt: f.attempt}
	c.undone[h] = struct{}{}
	behind := uint64(0)
	for _, other := range c.queue.segments {
		if other.attempt == 0 {
			behind++
		}
	}
	return logqueue.Segment{Records: f.records, Attempt: f.attempt, Pending: behind, Handle: h}, true
}

// Stop implements LogConsumer.
func (c *fakeLogConsumer) Stop() {
	c.session.log.mu.Lock()
	defer c.session.log.mu.Unlock()
	c.end(ackWait)
}

// end ends the log consumer; its segments are redelivered after some time, unless they are settled before. mu is held.
func (c *fakeLogConsumer) end(after time.Duration) {
	select {
	case <-c.stopped:
	default:
		close(c.stopped)
		delete(c.queue.logConsumers, c)
	}
	for h := range c.undone {
		if after == 0 {
			h.back(0)
			continue
		}
		time.AfterFunc(after, h.expire)
	}
}

// fakeHandle implements SegmentHandle.
type fakeHandle struct {
	logConsumer *fakeLogConsumer
	segment     *fakeSegment
	attempt     int
}

// Ack implements SegmentHandle.
func (h *fakeHandle) Ack() {
	h.settle(func() {
		q := h.logConsumer.queue
		q.segments = slices.DeleteFunc(q.segments, func(f *fakeSegment) bool { return f == h.segment })
		delete(h.logConsumer.undone, h)
		q.wake()
	})
}

// Nack implements SegmentHandle.
func (h *fakeHandle) Nack(after time.Duration) { h.settle(func() { h.back(after) }) }

// settle does something, unless the segment is settled or was delivered again.
func (h *fakeHandle) settle(do func()) {
	s := h.logConsumer.session
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if _, undone := h.logConsumer.undone[h]; undone && !s.cut && h.segment.attempt == h.attempt {
		do()
	}
}

// expire makes the segment due for redelivery; it may still be settled until it is redelivered.
func (h *fakeHandle) expire() {
	h.settle(func() {
		h.segment.busy, h.segment.due = false, time.Now()
		h.logConsumer.queue.wake()
	})
}

// back redelivers the segment after some time. mu is held.
func (h *fakeHandle) back(after time.Duration) {
	delete(h.logConsumer.undone, h)
	h.segment.busy = false
	h.segment.due = time.Now().Add(after)
	q, l := h.logConsumer.queue, h.logConsumer.session.log
	if after == 0 {
		q.wake()
		return
	}
	time.AfterFunc(after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		q.wake()
	})
}

// expectLeft fails unless a stream's queues have the given numbers of segments.
func (l *fakeLog) expectLeft(t *testing.T, stream string, want map[string]int) {
	t.Helper()
	if have := l.left(stream); !maps.Equal(have, want) {
		t.Errorf("segments in the log: %v, want %v", have, want)
	}
}
