package broker

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

const (
	// queueSegments and queueBytes bound what a lane has in memory of its own queue.
	queueSegments, queueBytes = 4096, 4 << 20
	// pausedFor is how long segments stay in the log that nobody can be sent, while memory is scarce.
	pausedFor = 30 * time.Second
	// rewrite is the time after which the log is asked again to take what it did not take.
	rewrite = 200 * time.Millisecond
)

// verdict is what becomes of a delivery after an attempt. The zero one is that nothing more is to be done.
type verdict struct {
	// again tells that there is to be another attempt, after some time.
	again bool
	after time.Duration
	// abandoned tells that the attempt was broken off, unmade that there was no endpoint any more to make it at, and
	// that it is to be made another time.
	abandoned, unmade bool
	// dead is the event that is to go to the dead letter sink, if any.
	dead *event.Event
	// failed, overloaded, pace and retryAfter are for the limiter.
	failed           bool
	overloaded, pace bool
	retryAfter       time.Duration
	// away tells that there was no answer, and that the next attempt need not wait once there are answers again.
	away bool
}

// lane is the way of events to one endpoint of a consumer: its subscriber, or its dead letter sink. Events come
// directly from segments that consumers share, as long as the endpoint keeps up, or from the lane's own queue in the
// log.
type lane struct {
	// ctx ends when the consumer is gone, or the broker stops.
	ctx   context.Context
	log   LogStream
	queue string
	clock clock.WithDelayedExecution
	// attempt makes one attempt, and settles everything that follows from it but another attempt.
	attempt func(ctx context.Context, d *parcel) verdict
	// bury takes what is to go to the dead letter sink; nil in the lane of dead letters.
	bury func(*parcel)
	// ordered tells that deliveries are made one by one.
	ordered  func() bool
	listener *listener
	workers  workers
	running  sync.WaitGroup
	// memory bounds the segments of the own queue in memory.
	memory *memory
	// crowded reports whether others wait for what the lane keeps in memory of segments that they share.
	crowded func() bool
	// share is that of the namespace, and guards waits.
	share *share
	waits bool

	mu sync.Mutex
	// All below is guarded by mu.
	limiter limiter
	// ready are the deliveries whose attempt may be made now, waiting those that wait for their time.
	ready   fifo
	waiting byDue
	// underWay are the deliveries of which an attempt is being made.
	underWay map[*parcel]struct{}
	// timer fires when the first of waiting is due, or the limiter allows more.
	timer clock.Timer
	// own is the number of deliveries in memory that are from the own queue.
	own int
	// direct tells whether events may come from shared segments, lingering fires when one in ready did long ago.
	direct    bool
	lingering clock.Timer
	// paused tells that there is no endpoint to send to.
	paused bool
	// burying are the deliveries whose events are on their way to the dead letter sink, but not safe yet.
	burying map[*parcel]struct{}
	// leased are the deliveries under way that went to the own queue too, by id, with the segment that they came back
	// in, once they have.
	leased map[uint64]*held
	// finished are the ids of records of the own queue that are to be passed over.
	finished map[uint64]struct{}
	// back are the attempts made so far of deliveries that were given back to the log, by id.
	back    map[uint64]int
	writes  []write
	writing bool
	// away tells that there was no answer to an attempt, and none since that the endpoint takes events again.
	away bool
	// stopped tells that no attempts are to begin, gone that the consumer does not exist any more.
	stopped, gone bool
}

func newLane(ctx context.Context, s *stream, queue string, c clock.WithDelayedExecution, ordered func() bool,
	attempt func(context.Context, *parcel) verdict) *lane {
	log := s.log
	l := &lane{
		ctx: ctx, log: log, queue: queue, clock: c, workers: s.broker.workers, memory: s.memory, share: s.broker.shares.of(s.spec.Key.Namespace), attempt: attempt, ordered: ordered, direct: true,
		limiter: newLimiter(), underWay: map[*parcel]struct{}{}, burying: map[*parcel]struct{}{}, leased: map[uint64]*held{}, finished: map[uint64]struct{}{}, back: map[uint64]int{},
	}
	l.listener = &listener{log: log, queue: queue, clock: c, take: l.take, quiet: l.quiet, options: func() eventlog.ConsumeOptions {
		if ordered() {
			return eventlog.ConsumeOptions{MaxSegments: 1, MaxBytes: queueBytes, Memory: l.memory}
		}
		return eventlog.ConsumeOptions{MaxSegments: queueSegments, MaxBytes: queueBytes, Memory: l.memory}
	}}
	l.crowded = func() bool { return s.retries.behind.Load() || l.memory.scarce() }
	return l
}

// pause starts or ends a time in which no attempts begin. The log keeps the events of a paused lane; they take no memory
// here.
func (l *lane) pause(paused bool) {
	l.mu.Lock()
	changed := l.paused != paused
	l.paused = paused
	l.kick()
	l.mu.Unlock()
	if !changed {
		return
	}
	l.listener.pause(l.ctx, paused)
	if paused {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ready.len() > 0 || len(l.waiting) > 0 {
			l.giveBack(nil, 0)
		}
	}
}

// hurry makes the next attempts due of deliveries that wait for an endpoint to answer again. mu is held.
func (l *lane) hurry() {
	waiting := l.waiting
	l.waiting = nil
	for _, d := range waiting {
		if d.away {
			l.ready.push(d)
		} else {
			heap.Push(&l.waiting, d)
		}
	}
}

// kick begins the attempts that are due and allowed. mu is held.
func (l *lane) kick() {
	for d := l.next(l.acquire); d != nil; d = l.next(l.acquire) {
		l.start(d)
	}
}

// acquire tells whether the namespace may have another attempt under way.
func (l *lane) acquire() bool { return l.share.acquire(l) }

// start has a delivery's attempt made concurrently. mu is held.
func (l *lane) start(d *parcel) {
	l.running.Add(1)
	l.workers.run(func() {
		defer l.running.Done()
		l.run(d)
	})
}

// next returns a delivery of which an attempt is to be made now, if acquire lets it, and otherwise sees to it that kick
// is called in time. mu is held.
func (l *lane) next(acquire func() bool) *parcel {
	if l.stopped || l.paused {
		return nil
	}
	now := l.clock.Now()
	for len(l.waiting) > 0 && !l.waiting[0].due.After(now) {
		l.ready.push(heap.Pop(&l.waiting).(*parcel))
	}
	var wake time.Time
	if len(l.waiting) > 0 {
		wake = l.waiting[0].due
	}
	if l.ready.len() > 0 && !(l.ordered() && len(l.underWay) > 0) {
		ok, at := l.limiter.allows(len(l.underWay), now)
		if ok && !acquire() {
			// It is called when the namespace may have more.
			ok = false
		}
		if ok {
			d := l.ready.pop()
			d.began = now
			l.underWay[d] = struct{}{}
			return d
		}
		if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	if !wake.IsZero() {
		l.wakeAt(wake, now)
	}
	return nil
}

func (l *lane) wakeAt(at, now time.Time) {
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = l.clock.AfterFunc(at.Sub(now), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.kick()
	})
}

// run makes the attempt of a delivery, and of others as long as there are any.
func (l *lane) run(d *parcel) {
	for d != nil {
		var leasing clock.Timer
		if (!d.own || d.shared) && !d.leased {
			// It may fire while d is the next one already.
			this := d
			leasing = l.clock.AfterFunc(linger, func() { l.lease(this) })
		}
		v := l.attempt(l.ctx, d)
		if leasing != nil {
			leasing.Stop()
		}
		l.share.release()
		next := l.finish(d, v)
		if v.dead != nil {
			l.bury(l.burial(d, v.dead))
		}
		d = next
	}
}

// finish notes what came of an attempt, and returns the next delivery of which one is to be made.
func (l *lane) finish(d *parcel, v verdict) *parcel {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	underWay := len(l.underWay)
	delete(l.underWay, d)
	switch {
	case v.abandoned:
		l.ready.push(d)
		return nil
	case v.unmade:
	case v.overloaded:
		l.direct = false
		l.limiter.overloaded(d.began, v.pace, v.retryAfter, now)
		l.away = l.away || v.away
	default:
		l.limiter.answered(now.Sub(d.began), underWay, now)
		if l.away {
			l.hurry()
		}
		l.away = false
	}
	l.limiter.ended(!v.failed)
	switch {
	case v.dead != nil:
		l.burying[d] = struct{}{}
	case !v.again:
		l.done(d)
	case l.ordered() && d.own && !d.shared && len(l.underWay) == 0:
		if !v.unmade {
			d.attempts++
		}
		l.giveBack(d, v.after)
	default:
		l.repeat(d, v, now)
	}
	mine := l.next(l.acquire)
	if mine != nil {
		l.kick()
	}
	return mine
}

// repeat writes a delivery to the own queue for another attempt. mu is held.
func (l *lane) repeat(d *parcel, v verdict, now time.Time) {
	next := *d
	next.id, next.due, next.away = newID(), now.Add(v.after), v.away
	if !v.unmade {
		next.attempts++
	}
	l.rewrite(d, write{next, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.done(d)
	}, func() {
		d.attempts, d.due, d.away = next.attempts, next.due, next.away
		heap.Push(&l.waiting, d)
	}})
}

// done lets go of what keeps a delivery durable. mu is held.
func (l *lane) done(d *parcel) {
	d.leave()
	switch {
	case d.leased && l.leased[d.id] == nil:
		delete(l.leased, d.id)
		l.finished[d.id] = struct{}{}
	case d.leased:
		l.doneOwn(l.leased[d.id], d.id)
		delete(l.leased, d.id)
	case d.shared && d.own:
		l.own--
		d.from.release()
	case d.own:
		l.doneOwn(d.from, d.id)
	default:
		d.from.release()
	}
	l.settle()
}

// doneOwn lets go of a record of the own queue. mu is held.
func (l *lane) doneOwn(from *held, id uint64) {
	l.own--
	from.finished = append(from.finished, id)
	from.release()
}

// halt begins no attempts any more. What is handed over meanwhile stays handed over, until the listener is stopped. gone tells
// that the consumer does not exist any more.
func (l *lane) halt(gone bool) {
	l.mu.Lock()
	l.stopped, l.gone = true, gone
	for _, timer := range []clock.Timer{l.timer, l.lingering} {
		if timer != nil {
			timer.Stop()
		}
	}
	l.mu.Unlock()
	l.listener.halt()
}

// wait returns when nothing of a stopped lane is under way.
func (l *lane) wait() {
	l.running.Wait()
	l.listener.running.Wait()
}

// drop lets go of all shared segments, when nothing of a stopped lane is under way and its consumer is gone.
func (l *lane) drop() {
	l.mu.Lock()
	left := append(l.ready.takeAll(), l.waiting...)
	writes := l.writes
	l.waiting, l.writes = nil, nil
	l.mu.Unlock()
	for _, d := range left {
		if (!d.own || d.shared) && !d.leased {
			d.leave()
			d.from.release()
		}
	}
	for _, w := range writes {
		w.then()
	}
}

// oldest returns when the oldest event in memory was accepted, the zero time where there is none, and how many
// attempts are under way.
func (l *lane) oldest() (accepted time.Time, underWay int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	see := func(d *parcel) {
		if accepted.IsZero() || d.accepted.Before(accepted) {
			accepted = d.accepted
		}
	}
	for _, d := range l.ready.items[l.ready.head:] {
		see(d)
	}
	for _, d := range l.waiting {
		see(d)
	}
	for d := range l.underWay {
		see(d)
	}
	return accepted, len(l.underWay)
}
