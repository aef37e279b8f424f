// Package consume delivers the segments of queues to consumers, and redelivers each until it is acknowledged.
package consume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

const (
	// LocalAckWait is the time that the server waits for an acknowledgement or a sign of progress, which is sent several
	// times within it, before it redelivers a segment, such as one of a process that was killed. A process ignores a
	// redelivery of its own segments, so the time is short if no other process consumes.
	LocalAckWait = 3 * time.Second
	// RemoteAckWait is LocalAckWait for a server at a URL or of a cluster.
	RemoteAckWait = 8 * time.Second

	// restartInterval is the time between attempts to consume. So many consecutive failures are logged as an error, unless
	// an attempt lasted for steady.
	restartInterval = 300 * time.Millisecond
	loggedAfter     = 30
	steady          = 2 * consumerTimeout

	// redeliverAfter is the delay of the segments that a stopped consumer rejects. Without it, the server would send them to
	// the request that is being withdrawn.
	redeliverAfter = 100 * time.Millisecond
)

// Queue identifies a queue: a stream, and the name of a queue in it, "" for the shared one.
type Queue struct {
	Stream layout.Stream
	Name   string
}

// Options limit the segments of a consumer that are not acknowledged.
type Options struct {
	// MaxSegments defaults to 256. With 1, a rejected segment blocks the others until it is acknowledged, which keeps the
	// order.
	MaxSegments int
	// MaxBytes defaults to 64 MiB. A larger segment is delivered alone.
	MaxBytes int
	// Memory is acquired before segments are requested; nil for no limit besides these.
	Memory Memory
}

// Memory limits the bytes of the segments of several consumers.
type Memory interface {
	// Acquire waits until so many bytes may be held. It returns false if ctx is canceled first.
	Acquire(ctx context.Context, bytes int) bool
	// Add holds bytes that were not acquired, and Release ends the hold of either.
	Add(bytes int)
	Release(bytes int)
}

// Consumers are the running consumers of a log.
type Consumers struct {
	server *server.Server
	logger logr.Logger
	wg     sync.WaitGroup // keepAlive
	acks   acks

	mu      sync.Mutex
	closed  bool
	running map[*Consumer]struct{}
	acked   map[layout.Stream]*acked
}

// New returns the consumers of a server, none at first.
func New(s *server.Server, logger logr.Logger) *Consumers {
	c := &Consumers{server: s, logger: logger, running: map[*Consumer]struct{}{}, acked: map[layout.Stream]*acked{}}
	c.wg.Go(c.keepAlive)
	return c
}

// Start passes the segments of a queue to handle, one after the other in the order in which they were appended, except
// for redeliveries. handle may block, which blocks this consumer only. All consumers of a queue share its segments, also
// those in other processes.
func (c *Consumers) Start(queue Queue, o Options, handle func(*Segment)) (*Consumer, error) {
	if o.MaxSegments <= 0 {
		o.MaxSegments = 256
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 20
	}
	consumer := &Consumer{consumers: c, queue: queue, options: o, handle: handle, unacked: map[uint64]*Segment{}}
	consumer.changed = sync.NewCond(&consumer.mu)
	consumer.ctx, consumer.cancel = context.WithCancel(c.server.Context())

	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		consumer.cancel()
		return nil, fmt.Errorf("event log: consume stream '%s': %w", queue.Stream.ID, server.ErrClosed)
	}
	if c.acked[queue.Stream] == nil {
		c.acked[queue.Stream] = &acked{}
	}
	consumer.acked = c.acked[queue.Stream]
	c.running[consumer] = struct{}{}
	c.mu.Unlock()

	// Waiters on the condition check ctx when it is canceled.
	context.AfterFunc(consumer.ctx, func() {
		consumer.mu.Lock()
		defer consumer.mu.Unlock()
		consumer.changed.Broadcast()
	})
	go consumer.pull()
	go consumer.dispatch()
	return consumer, nil
}

// Stop stops the consumers of queues that match.
func (c *Consumers) Stop(match func(Queue) bool) {
	for _, consumer := range c.list() {
		if match(consumer.queue) {
			consumer.Stop()
		}
	}
}

// Release stops the consumers of a stream, and rejects their segments, which are redelivered immediately wherever their
// queue is consumed. Acknowledgements of these segments have no effect any more.
func (c *Consumers) Release(stream layout.Stream) {
	for _, consumer := range c.list() {
		if consumer.queue.Stream == stream {
			consumer.release()
		}
	}
	c.acks.send()
}

// Forget stops the consumers of a deleted stream, and removes its state.
func (c *Consumers) Forget(stream layout.Stream) {
	c.Stop(func(q Queue) bool { return q.Stream == stream })
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.acked, stream)
}

// Close releases all consumers, after the server was stopped.
func (c *Consumers) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.wg.Wait()
	for _, consumer := range c.list() {
		consumer.release()
	}
	c.acks.send()
}

func (c *Consumers) list() []*Consumer {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*Consumer, 0, len(c.running))
	for consumer := range c.running {
		all = append(all, consumer)
	}
	return all
}

func (c *Consumers) ackWait() time.Duration {
	if c.server.Embedded() && !c.server.Clustered() {
		return LocalAckWait
	}
	return RemoteAckWait
}

// keepAlive reports progress on unacknowledged segments, so that the server does not redeliver them, and forgets segments
// that were acknowledged long ago.
func (c *Consumers) keepAlive() {
	interval := c.ackWait() / 4
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-c.server.Context().Done():
			return
		case now := <-ticker.C:
			for _, consumer := range c.list() {
				consumer.progress(now.Add(-interval / 2))
			}
			c.mu.Lock()
			for _, stream := range c.acked {
				stream.age(now)
			}
			c.mu.Unlock()
		}
	}
}

// Consumer delivers the segments of a queue to a function until it is stopped.
type Consumer struct {
	consumers *Consumers
	queue     Queue
	options   Options
	handle    func(*Segment)
	acked     *acked // of the stream

	ctx    context.Context
	cancel context.CancelFunc

	mu          sync.Mutex
	changed     *sync.Cond          // undelivered or unacked changed, or stopped
	unacked     map[uint64]*Segment // by sequence in the stream
	bytes       int                 // of unacked
	acquired    int                 // of memory, by the current request
	pending     uint64              // segments behind the last one
	undelivered []*Segment          // the part of unacked not yet passed to handle, in order
	stopped     bool
}

// ordered reports whether a rejected segment blocks the others.
func (c *Consumer) ordered() bool { return c.options.MaxSegments == 1 }

// Stop stops the consumer: after it returns, at most one call of the function continues or is about to begin. Segments
// that were not delivered are redelivered immediately; the others soon, unless they are acknowledged in time.
func (c *Consumer) Stop() {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return
	}
	undelivered := c.undelivered
	c.undelivered = nil
	c.changed.Broadcast()
	if memory := c.options.Memory; memory != nil {
		// The owner of delivered segments counts them itself.
		memory.Release(c.bytes + c.acquired)
		c.acquired = 0
	}
	c.stopped = true
	c.cancel()
	c.mu.Unlock()
	for _, s := range undelivered {
		s.Nack(redeliverAfter)
	}
	c.consumers.mu.Lock()
	delete(c.consumers.running, c)
	c.consumers.mu.Unlock()
}

// release stops the consumer and rejects all its segments.
func (c *Consumer) release() {
	c.Stop()
	c.mu.Lock()
	rest := make([]*Segment, 0, len(c.unacked))
	for _, s := range c.unacked {
		rest = append(rest, s)
	}
	c.mu.Unlock()
	for _, s := range rest {
		s.Nack(redeliverAfter)
	}
}

// pull requests segments from the server for as long as the consumer runs, with one session after the other.
func (c *Consumer) pull() {
	logger := c.consumers.logger.WithValues("stream", c.queue.Stream.ID, "queue", c.queue.Name)
	failures := 0
	for c.ctx.Err() == nil {
		session, err := c.consumers.server.Session(c.ctx)
		if err != nil {
			return
		}
		started := time.Now()
		err = c.pullFrom(session)
		if c.ctx.Err() != nil {
			return
		}
		if time.Since(started) > steady {
			failures = 0
		}
		// The loss of a server is logged once, by the server package.
		if failures++; failures%loggedAfter == 0 && session.Conn.IsConnected() {
			logger.Error(err, "Failed to consume", "times", failures)
		} else {
			logger.V(1).Info("Restarting consumer", "error", err.Error())
		}
		select {
		case <-time.After(restartInterval):
		case <-c.ctx.Done():
		}
	}
}

// dispatch passes segments to handle.
func (c *Consumer) dispatch() {
	for {
		c.mu.Lock()
		for len(c.undelivered) == 0 && c.ctx.Err() == nil {
			c.changed.Wait()
		}
		if c.ctx.Err() != nil {
			c.mu.Unlock()
			return
		}
		s := c.undelivered[0]
		c.undelivered[0] = nil
		c.undelivered = c.undelivered[1:]
		c.mu.Unlock()
		c.handle(s)
	}
}

// progress reports progress on the segments that arrived before a time.
func (c *Consumer) progress(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.unacked {
		if s.arrived.Before(before) {
			s.origin.send("+WPI")
		}
	}
}

// room waits until a quarter of the limits is free, so that few requests fetch many segments. It returns the free part, in
// segments and bytes.
func (c *Consumer) room() (segments, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		segments, bytes = c.options.MaxSegments-len(c.unacked), c.options.MaxBytes-c.bytes
		if segments >= (c.options.MaxSegments+3)/4 && bytes >= (c.options.MaxBytes+3)/4 || c.ctx.Err() != nil {
			return segments, bytes
		}
		c.changed.Wait()
	}
}

// waitForRoom waits until more than so many bytes are free.
func (c *Consumer) waitForRoom(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.unacked) > 0 && c.options.MaxBytes-c.bytes <= bytes && c.ctx.Err() == nil {
		c.changed.Wait()
	}
}

// acquire acquires memory for a request, but holds it only for a large one. It returns false when the consumer stops.
func (c *Consumer) acquire(bytes int) bool {
	memory := c.options.Memory
	if memory == nil {
		return true
	}
	if !memory.Acquire(c.ctx, bytes) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes <= smallRequest || c.stopped {
		memory.Release(bytes)
	} else {
		c.acquired = bytes
	}
	return true
}

// hold reserves memory for a segment that arrived. mu is held.
func (c *Consumer) hold(bytes int) {
	if memory := c.options.Memory; memory != nil {
		from := min(bytes, c.acquired)
		c.acquired -= from
		memory.Add(bytes - from)
	}
}

// unhold releases the memory of a segment. mu is held.
func (c *Consumer) unhold(bytes int) {
	if memory := c.options.Memory; memory != nil && !c.stopped {
		memory.Release(bytes)
	}
}

// nextRequest returns the bytes of the next request: few while no segments are known to wait, else more and more.
func (c *Consumer) nextRequest(last int, tooSmall bool) int {
	memory := c.options.Memory
	if memory == nil {
		return c.options.MaxBytes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		memory.Release(c.acquired)
		c.acquired = 0
	}
	if c.pending == 0 && !tooSmall {
		return smallRequest
	}
	return min(4*last, c.options.MaxBytes)
}
