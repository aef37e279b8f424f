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

// listener has the frames of a queue handed over while there are any: a queue that is empty for a while costs
// nothing.
type listener struct {
	log     LogStream
	queue   string
	clock   clock.WithDelayedExecution
	options func() eventlog.ConsumeOptions
	take    func(Frame)
	// quiet tells whether nothing from the queue is in memory.
	quiet func() bool
	// behind tells that there may be frames in the queue that were not handed over yet.
	behind atomic.Bool

	mu sync.Mutex
	// All below is guarded by mu.
	consumption Consumption
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
	if l.begun && !l.paused && l.consumption == nil && !l.opening && !l.stopped {
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

func (l *listener) hand(f Frame) {
	l.behind.Store(f.Pending > 0)
	l.take(f)
}

func (l *listener) listen(ctx context.Context) {
	consumption := l.open(ctx)
	if consumption == nil {
		return
	}
	l.mu.Lock()
	l.opening = false
	l.consumption = consumption
	stopped, outdated := l.stopped, l.outdated
	l.outdated = false
	l.mu.Unlock()
	if outdated && l.close() {
		l.wake(ctx)
	}
	for !stopped && sleep(ctx, l.clock, idle) {
		stopped = l.replaced(consumption) || l.empty(ctx) && l.closeIfIdle()
	}
	consumption.Stop()
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
	consumption := l.consumption
	l.consumption = nil
	l.outdated = l.opening
	l.mu.Unlock()
	if consumption == nil {
		return false
	}
	consumption.Stop()
	return true
}

// replaced tells whether a consumption is not that of now.
func (l *listener) replaced(consumption Consumption) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.consumption != consumption
}

// closeIfIdle forgets the consumption if there was nothing for a while, and tells whether it did.
func (l *listener) closeIfIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped && (l.clock.Since(l.woken) < idle || !l.quiet()) {
		return false
	}
	l.consumption = nil
	return true
}

func (l *listener) open(ctx context.Context) Consumption {
	for {
		consumption, err := l.log.Consume(l.queue, l.options(), l.hand)
		if err == nil {
			return consumption
		}
		klog.FromContext(ctx).Error(err, "Listening to a queue of events failed", "queue", l.queue)
		if !sleep(ctx, l.clock, time.Second) {
			return nil
		}
	}
}

// stop returns when nothing is handed over any more.
func (l *listener) stop() {
	if consumption := l.halt(); consumption != nil {
		consumption.Stop()
	}
}

// halt has the queue not listened to again, and returns what listens to it now, if anything does.
func (l *listener) halt() Consumption {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	return l.consumption
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
