package eventlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

const (
	// A server waits so long for a sign of life of a frame, of which it gets several in the time. Frames of a process
	// that died are handed again after it. One that is late only by mistake is not handed twice by this process, so
	// the time is short where no other one consumes.
	embeddedAckWait = 3 * time.Second
	externalAckWait = 8 * time.Second

	// rebindEvery is the time between attempts to consume. So many failures in a row are told, of those that came in
	// less than steady each.
	rebindEvery = 300 * time.Millisecond
	toldAfter   = 30
	steady      = 2 * consumerTimeout

	// handBack is after what time frames come again that a consumption gives back when it stops. Without it, the
	// server would send them to the request that is just being withdrawn.
	handBack = 100 * time.Millisecond
)

// ConsumeOptions bound what is under way: frames handed over or about to be that are not done.
type ConsumeOptions struct {
	// MaxFrames defaults to 256. With 1, a frame that is given back holds up the others until it is done, which keeps
	// the order.
	MaxFrames int
	// MaxBytes defaults to 64 MiB. A frame larger than it comes alone.
	MaxBytes int
	// Memory is asked before frames are; nil for no bound besides these.
	Memory Memory
}

// Memory bounds the bytes of frames over several consumptions.
type Memory interface {
	// Acquire waits until so many bytes may be held. It returns false if ctx ends before.
	Acquire(ctx context.Context, bytes int) bool
	// Add holds bytes that were not acquired, and Release ends the hold of either.
	Add(bytes int)
	Release(bytes int)
}

// probe is what is asked for without holding memory: it waits for frames to come, however long that takes.
const probeBytes = 16 << 10

// Consumption hands the frames of a queue to a function until it is stopped.
type Consumption struct {
	stream  *Stream
	queue   string
	options ConsumeOptions
	handle  func(*Frame)

	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex
	changed  *sync.Cond        // waiting or undone changed, or stopped
	undone   map[uint64]*Frame // by sequence in the stream
	bytes    int               // of undone
	acquired int               // of memory, by the request under way
	pending  uint64            // frames behind the last one
	waiting  []*Frame          // those of undone that are not handed over yet, in order
	stopped  bool
}

// Consume hands the frames of a queue to handle, one after the other in the order they were appended, but for those
// that come again. handle may block, which holds up the others of this consumption only. All consumptions of a queue
// share its frames, also those of other processes.
func (s *Stream) Consume(queue string, o ConsumeOptions, handle func(*Frame)) (*Consumption, error) {
	if queue != "" && !server.ValidName(queue) {
		return nil, fmt.Errorf("event log: queue '%s' must be named by letters, digits, '-' and '_'", queue)
	}
	if o.MaxFrames <= 0 {
		o.MaxFrames = 256
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 64 << 20
	}
	c := &Consumption{stream: s, queue: queue, options: o, handle: handle, undone: map[uint64]*Frame{}}
	c.changed = sync.NewCond(&c.mu)
	c.ctx, c.cancel = context.WithCancel(s.log.ctx)

	l := s.log
	l.mu.Lock()
	if s.deleted.Load() || l.closed {
		l.mu.Unlock()
		c.cancel()
		return nil, fmt.Errorf("event log: consume stream '%s': %w", s.config.ID, ErrClosed)
	}
	l.consumptions[c] = struct{}{}
	l.mu.Unlock()

	// Waiters on the condition look again when the context ends.
	context.AfterFunc(c.ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.changed.Broadcast()
	})
	go c.pull()
	go c.dispatch()
	return c, nil
}

// Stop ends the consumption: when it returned, at most one call of the function goes on or is about to begin. Frames
// that were not handed over come again right away; those that were do so soon, unless they are done in time.
func (c *Consumption) Stop() {
	c.mu.Lock()
	if c.stopped {
		c.mu.Unlock()
		return
	}
	waiting := c.waiting
	c.waiting = nil
	c.changed.Broadcast()
	if memory := c.options.Memory; memory != nil {
		// What was handed over is no more than what its owner has under way.
		memory.Release(c.bytes + c.acquired)
		c.acquired = 0
	}
	c.stopped = true
	c.cancel()
	c.mu.Unlock()
	for _, f := range waiting {
		f.Again(handBack)
	}
	l := c.stream.log
	l.mu.Lock()
	delete(l.consumptions, c)
	l.mu.Unlock()
}

// release stops the consumption and gives all its frames back.
func (c *Consumption) release() {
	c.Stop()
	c.mu.Lock()
	rest := make([]*Frame, 0, len(c.undone))
	for _, f := range c.undone {
		rest = append(rest, f)
	}
	c.mu.Unlock()
	for _, f := range rest {
		f.Again(handBack)
	}
}

// stop stops the consumptions that match.
func (l *Log) stop(match func(*Consumption) bool) {
	for _, c := range l.running() {
		if match(c) {
			c.Stop()
		}
	}
}

func (l *Log) running() []*Consumption {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*Consumption, 0, len(l.consumptions))
	for c := range l.consumptions {
		all = append(all, c)
	}
	return all
}

// pull gets frames from the server for as long as the consumption runs, with one session after the other.
func (c *Consumption) pull() {
	logger := c.stream.log.logger.WithValues("stream", c.stream.config.ID, "queue", c.queue)
	failures := 0
	for c.ctx.Err() == nil {
		session, err := c.stream.log.server.Session(c.ctx)
		if err != nil {
			return
		}
		began := time.Now()
		err = c.pullFrom(session)
		if c.ctx.Err() != nil {
			return
		}
		if time.Since(began) > steady {
			failures = 0
		}
		// A server that is away is told of elsewhere, once for all consumptions.
		if failures++; failures%toldAfter == 0 && session.Conn.IsConnected() {
			logger.Error(err, "Consuming fails again and again", "times", failures)
		} else {
			logger.V(1).Info("Consuming is resumed", "error", err.Error())
		}
		select {
		case <-time.After(rebindEvery):
		case <-c.ctx.Done():
		}
	}
}

// room waits until a good part of what may be under way is free, so that few requests get many frames. It returns
// the room, in frames and bytes.
func (c *Consumption) room() (frames, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		frames, bytes = c.options.MaxFrames-len(c.undone), c.options.MaxBytes-c.bytes
		if frames >= (c.options.MaxFrames+3)/4 && bytes >= (c.options.MaxBytes+3)/4 || c.ctx.Err() != nil {
			return frames, bytes
		}
		c.changed.Wait()
	}
}

// acquire holds memory for a request, but for a small one. It returns false when the consumption ends.
func (c *Consumption) acquire(bytes int) bool {
	memory := c.options.Memory
	if memory == nil {
		return true
	}
	if !memory.Acquire(c.ctx, bytes) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if bytes <= probeBytes || c.stopped {
		memory.Release(bytes)
	} else {
		c.acquired = bytes
	}
	return true
}

// hold holds memory for a frame that arrived. mu is held.
func (c *Consumption) hold(bytes int) {
	if memory := c.options.Memory; memory != nil {
		from := min(bytes, c.acquired)
		c.acquired -= from
		memory.Add(bytes - from)
	}
}

// unhold ends the hold of a frame's memory. mu is held.
func (c *Consumption) unhold(bytes int) {
	if memory := c.options.Memory; memory != nil && !c.stopped {
		memory.Release(bytes)
	}
}

// next returns how many bytes to ask for next: few where no frames are known to wait, and more and more otherwise.
func (c *Consumption) next(asked int, tooSmall bool) int {
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
		return probeBytes
	}
	return min(4*asked, c.options.MaxBytes)
}

// drain waits until there is room for more than so many bytes.
func (c *Consumption) drain(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.undone) > 0 && c.options.MaxBytes-c.bytes <= bytes && c.ctx.Err() == nil {
		c.changed.Wait()
	}
}

// dispatch hands frames over.
func (c *Consumption) dispatch() {
	for {
		c.mu.Lock()
		for len(c.waiting) == 0 && c.ctx.Err() == nil {
			c.changed.Wait()
		}
		if c.ctx.Err() != nil {
			c.mu.Unlock()
			return
		}
		f := c.waiting[0]
		c.waiting[0] = nil
		c.waiting = c.waiting[1:]
		c.mu.Unlock()
		c.handle(f)
	}
}

func (l *Log) ackWait() time.Duration {
	if l.server.Embedded() && !l.server.Clustered() {
		return embeddedAckWait
	}
	return externalAckWait
}

// keepAlive tells the server of the frames that are under way, so that it does not hand them again, and forgets those
// that were done long ago.
func (l *Log) keepAlive() {
	every := l.ackWait() / 4
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case now := <-ticker.C:
			for _, c := range l.running() {
				c.progress(now.Add(-every / 2))
			}
			for _, s := range l.cached() {
				s.acked.age(now)
			}
		}
	}
}

// progress sends a sign of life of the frames that came before a time.
func (c *Consumption) progress(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.undone {
		if f.arrived.Before(before) {
			f.origin.tell("+WPI")
		}
	}
}
