package logqueue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

const (
	// IdleTimeout is the time after which the Reader of an empty queue closes its log consumer.
	IdleTimeout = time.Minute
	// redeliverAfter is the delay of a segment that arrives after Stop. Without it, the stopped log consumer might get it again.
	redeliverAfter = 100 * time.Millisecond
)

// ReaderConfig has the dependencies of a Reader. All but Outdated are required.
type ReaderConfig struct {
	Log   Stream
	Queue string
	Clock clock.WithDelayedExecution
	// Options returns the options with which the queue is consumed from now on.
	Options func() eventlog.ConsumeOptions
	// Handle is called with each segment, one at a time.
	Handle func(Segment)
	// Idle reports whether memory holds no segment of the queue and none is being appended.
	Idle func() bool
	// Outdated is called after a consumer was closed that had been opened during Close or SetPaused: it may have delivered segments after that.
	Outdated func()
}

// Reader delivers the segments of a queue. It has a log consumer only while the queue has segments or may get some: idle
// queues cost nothing.
type Reader struct {
	ReaderConfig
	// behind is true while the queue may have segments that were not delivered yet, open while it has a consumer or opens one.
	behind, open atomic.Bool

	running sync.WaitGroup

	// handling is held during a call of Handle. It guards ended, which is true after Stop.
	handling sync.Mutex
	ended    bool

	mu sync.Mutex
	// mu guards the fields below.
	consumer Consumer
	// opening is true while a consumer is created, outdated if its options changed meanwhile.
	opening, outdated        bool
	started, paused, stopped bool
	notified                 time.Time
}

// NewReader returns a Reader that delivers nothing before Start.
func NewReader(config ReaderConfig) *Reader { return &Reader{ReaderConfig: config} }

// Expect must be called before a segment is appended to the queue, and Notify afterwards.
func (r *Reader) Expect() { r.behind.Store(true) }

// Behind reports whether the queue may have segments that were not delivered yet.
func (r *Reader) Behind() bool { return r.behind.Load() }

// Open reports whether the queue has a consumer. One that was closed may still deliver one segment. It takes no lock: Idle is called with mu
// held, and takes the lock that callers hold.
func (r *Reader) Open() bool { return r.open.Load() }

// Start begins to read the queue, immediately if segments are expected there.
func (r *Reader) Start(ctx context.Context) {
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	if r.Behind() {
		r.Notify(ctx)
	}
}

// Notify opens a consumer of the queue, unless one exists or Start was not called yet.
func (r *Reader) Notify(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notified = r.Clock.Now()
	if r.started && !r.paused && r.consumer == nil && !r.opening && !r.stopped {
		r.opening = true
		r.open.Store(true)
		r.running.Go(func() { r.run(ctx) })
	}
}

// SetPaused stops reading the queue, or resumes it.
func (r *Reader) SetPaused(ctx context.Context, paused bool) {
	r.mu.Lock()
	r.paused = paused
	r.mu.Unlock()
	switch {
	case paused:
		r.Close()
	case r.Behind():
		r.Notify(ctx)
	}
}

func (r *Reader) handle(s Segment) {
	r.handling.Lock()
	defer r.handling.Unlock()
	if r.ended {
		// A log consumer may deliver one more segment after it was stopped.
		s.Handle.Nack(redeliverAfter)
		return
	}
	r.behind.Store(s.Pending > 0)
	r.Handle(s)
}

func (r *Reader) run(ctx context.Context) {
	consumer := r.openConsumer(ctx)
	if consumer == nil {
		return
	}
	r.mu.Lock()
	r.opening = false
	r.consumer = consumer
	stopped, outdated := r.stopped, r.outdated
	r.outdated = false
	r.mu.Unlock()
	if outdated && r.Close() {
		if r.Outdated != nil {
			r.Outdated()
		}
		r.Notify(ctx)
	}
	for !stopped && backoff.Sleep(ctx, r.Clock, IdleTimeout) {
		stopped = r.replaced(consumer) || r.empty(ctx) && r.closeIfIdle()
	}
	consumer.Stop()
}

// empty reports whether neither memory nor the log has segments of the queue. A failed append may have stored no segment,
// and rejected segments are redelivered.
func (r *Reader) empty(ctx context.Context) bool {
	if !r.Idle() {
		return false
	}
	queues, err := r.Log.Queues(ctx)
	if err != nil || queues[r.Queue] > 0 {
		return false
	}
	r.behind.Store(false)
	return true
}

// Close closes the consumer, so that Notify opens another one with current options. It reports whether a consumer was open.
func (r *Reader) Close() bool {
	r.mu.Lock()
	consumer := r.consumer
	r.consumer = nil
	r.outdated = r.opening
	r.open.Store(r.opening)
	r.mu.Unlock()
	if consumer == nil {
		return false
	}
	consumer.Stop()
	return true
}

// replaced reports whether another consumer is in use.
func (r *Reader) replaced(consumer Consumer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.consumer != consumer
}

// closeIfIdle closes the consumer if the queue was idle for IdleTimeout, and reports whether it did.
func (r *Reader) closeIfIdle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped && (r.Clock.Since(r.notified) < IdleTimeout || !r.Idle()) {
		return false
	}
	r.consumer = nil
	r.open.Store(false)
	return true
}

func (r *Reader) openConsumer(ctx context.Context) Consumer {
	for {
		consumer, err := r.Log.Consume(r.Queue, r.Options(), r.handle)
		if err == nil {
			return consumer
		}
		klog.FromContext(ctx).Error(err, "Failed to consume event log queue; retrying", "queue", r.Queue)
		if !backoff.Sleep(ctx, r.Clock, time.Second) {
			return nil
		}
	}
}

// Stop stops reading. It waits for a call of Handle in progress, and no segment is delivered after Stop has returned. No lock that Handle
// takes may be held.
func (r *Reader) Stop() {
	if consumer := r.Halt(); consumer != nil {
		consumer.Stop()
	}
	r.handling.Lock()
	defer r.handling.Unlock()
	r.ended = true
}

// Halt prevents new consumers, and returns the open one, if any. It continues until it is stopped.
func (r *Reader) Halt() Consumer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	return r.consumer
}

// Wait waits for the goroutines of a stopped Reader, whose context has ended.
func (r *Reader) Wait() { r.running.Wait() }
