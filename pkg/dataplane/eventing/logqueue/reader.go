package broker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// idle is how long a queue that is empty goes on being listened to.
const idle = time.Minute

// listener has the segments of a queue handed over while there are any: a queue that is empty for a while costs
// nothing.
type listener struct {
	log     LogStream
	queue   string
	clock   clock.WithDelayedExecution
	options func() eventlog.ConsumeOptions
	take    func(Segment)
	// quiet tells whether nothing from the queue is in memory.
	quiet func() bool
	// behind tells that there may be segments in the queue that were not handed over yet.
	behind atomic.Bool

	mu sync.Mutex
	// All below is guarded by mu.
	logConsumer LogConsumer
	// opening tells that there is going to be one, outdated that its options are not those of now.
	opening, outdated bool
	woken             time.Time
	begun             bool
	paused            bool
	stopped           bool
	running           sync.WaitGroup
}

// expect is to be called before something is appended to the queue, and wake after.
func (l *listener) expect() { l.behind.Store(true) }

// begin has the queue listened to from now on: at once if something is expected there.
func (l *listener) begin(ctx context.Context) {
	l.mu.Lock()
	l.begun = true
	l.mu.Unlock()
	if l.behind.Load() {
		l.wake(ctx)
	}
}

// wake sees to it that the queue is listened to, once begin was called.
func (l *listener) wake(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.woken = l.clock.Now()
	if l.begun && !l.paused && l.logConsumer == nil && !l.opening && !l.stopped {
		l.opening = true
		l.running.Go(func() { l.listen(ctx) })
	}
}

// pause starts or ends a time in which the queue is not listened to.
func (l *listener) pause(ctx context.Context, paused bool) {
	l.mu.Lock()
	l.paused = paused
	l.mu.Unlock()
	switch {
	case paused:
		l.close()
	case l.behind.Load():
		l.wake(ctx)
	}
}

func (l *listener) hand(f Segment) {
	l.behind.Store(f.Pending > 0)
	l.take(f)
}

func (l *listener) listen(ctx context.Context) {
	logConsumer := l.open(ctx)
	if logConsumer == nil {
		return
	}
	l.mu.Lock()
	l.opening = false
	l.logConsumer = logConsumer
	stopped, outdated := l.stopped, l.outdated
	l.outdated = false
	l.mu.Unlock()
	if outdated && l.close() {
		l.wake(ctx)
	}
	for !stopped && sleep(ctx, l.clock, idle) {
		stopped = l.replaced(logConsumer) || l.empty(ctx) && l.closeIfIdle()
	}
	logConsumer.Stop()
}

// empty tells whether there is nothing in the queue, for all that is known: what was to be appended may not have been, and
// what was given back comes again.
func (l *listener) empty(ctx context.Context) bool {
	if !l.quiet() {
		return false
	}
	queues, err := l.log.Queues(ctx)
	if err != nil || queues[l.queue] > 0 {
		return false
	}
	l.behind.Store(false)
	return true
}

// close stops to listen, so that wake does it with other options. It tells whether there was anything to stop.
func (l *listener) close() bool {
	l.mu.Lock()
	logConsumer := l.logConsumer
	l.logConsumer = nil
	l.outdated = l.opening
	l.mu.Unlock()
	if logConsumer == nil {
		return false
	}
	logConsumer.Stop()
	return true
}

// replaced reports whether another log consumer is in use.
func (l *listener) replaced(logConsumer LogConsumer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.logConsumer != logConsumer
}

// closeIfIdle forgets the log consumer if there was nothing for a while, and tells whether it did.
func (l *listener) closeIfIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped && (l.clock.Since(l.woken) < idle || !l.quiet()) {
		return false
	}
	l.logConsumer = nil
	return true
}

func (l *listener) open(ctx context.Context) LogConsumer {
	for {
		logConsumer, err := l.log.Consume(l.queue, l.options(), l.hand)
		if err == nil {
			return logConsumer
		}
		klog.FromContext(ctx).Error(err, "Listening to a queue of events failed", "queue", l.queue)
		if !sleep(ctx, l.clock, time.Second) {
			return nil
		}
	}
}

// stop returns when nothing is handed over any more.
func (l *listener) stop() {
	if logConsumer := l.halt(); logConsumer != nil {
		logConsumer.Stop()
	}
}

// halt has the queue not listened to again, and returns what listens to it now, if anything does.
func (l *listener) halt() LogConsumer {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	return l.logConsumer
}

// sleep waits for some time; false tells that ctx ended before.
func sleep(ctx context.Context, c clock.WithDelayedExecution, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
