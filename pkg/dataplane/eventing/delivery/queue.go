package delivery

import (
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

const (
	// QueueBytes and queueSegments bound the part of a subscriber queue in memory.
	QueueBytes    = 4 << 20
	queueSegments = 4096
	// MaxReady bounds the deliveries of shared segments that wait in memory for a worker. Further ones are moved to the
	// subscriber queue, so that no other consumer waits for a slow one.
	MaxReady = 128
	// SharedTimeout is the time for which a delivery of a shared segment may wait for a worker, or be in flight, before it gets
	// a record in the subscriber queue.
	SharedTimeout = time.Second
	// pausedDelay is the time for which segments of a paused Queue stay in the log while memory is scarce.
	pausedDelay = 30 * time.Second
	// rewriteDelay is the time between attempts to append records that the log rejected.
	rewriteDelay = 200 * time.Millisecond
	// drainTimeout bounds Drain.
	drainTimeout = 5 * time.Second
)

// Outcomes of an attempt.
const (
	// Succeeded means that the endpoint accepted the event, and its reply is durable.
	Succeeded = machine.Succeeded
	// Failed means that the attempt failed and will be repeated, or could not be made because the endpoint is unresolved.
	Failed = machine.Failed
	// Undeliverable means that the attempt failed permanently, and a dead letter sink exists.
	Undeliverable = machine.Undeliverable
	// Discarded means that the attempt failed permanently, and no dead letter sink exists.
	Discarded = machine.Discarded
	// Aborted means that the attempt was canceled because the process stops or another replica owns the stream.
	Aborted = machine.Aborted
)

// Outcome is the outcome of an attempt.
type Outcome struct {
	// Event is Succeeded, Failed, Undeliverable, Discarded or Aborted.
	Event machine.Event
	// DeadLetter is the event for the dead letter sink, if Event is Undeliverable.
	DeadLetter *event.Event
	// Backoff is the delay before the next attempt, if Event is Failed.
	Backoff time.Duration
	// Skipped is true if no attempt was made because no endpoint is configured. The others are false then.
	Skipped bool
	// Unanswered is true if the endpoint did not answer, and the next attempt need not wait once it answers again.
	Unanswered bool
	// Overloaded is true if the endpoint requires fewer concurrent requests, Throttled if also fewer requests per second, after
	// RetryAfter if that is not zero.
	Overloaded, Throttled bool
	RetryAfter            time.Duration
}

// QueueConfig has the dependencies of a Queue.
type QueueConfig struct {
	// Name is the name of the subscriber queue in the log.
	Name string
	// Attempt makes one attempt. The Outcome decides what follows; counting it is left to Attempt.
	Attempt func(ctx context.Context, d *Delivery) Outcome
	// Ordered reports whether deliveries are made one at a time, in order.
	Ordered func() bool
	// DeadLetters is the Queue of the dead letter sink, or nil if Attempt never returns Undeliverable.
	DeadLetters *Queue
}

// Queue delivers events to one endpoint of a consumer: its subscriber, or its dead letter sink. Events come from segments
// that consumers share while the endpoint keeps up, and from the subscriber queue in the log otherwise.
type Queue struct {
	// Reader reads the subscriber queue.
	Reader *logqueue.Reader

	config QueueConfig
	stream *Stream
	// ctx ends when the consumer is removed or the process stops.
	ctx     context.Context
	writer  writer
	running sync.WaitGroup

	// queued is true while the Queue waits for the namespace's share. The mu of the Share guards it.
	queued bool

	mu sync.Mutex
	// All below is guarded by mu.
	schedule schedule
	inFlight map[*Delivery]struct{}
	limiter  limiter
	// wakeup calls start when a delivery becomes due or the limiter admits more, spill moves deliveries that keep shared
	// segments for too long.
	wakeup, spill clock.Timer
	// records has the deliveries by the IDs of their records in the subscriber queue: of records that memory holds, and of
	// records that will be read, because they are copies, or their segment was rejected.
	records map[uint64]*Delivery
	// read counts the deliveries in memory from records of the subscriber and retry queues, storing the records that are being
	// appended, sharing the ready deliveries that keep a shared segment.
	read, storing, sharing int
	// behind is true if events must pass through the subscriber queue, because it may have others or the endpoint is slow.
	behind bool
	// silent is true after an attempt that was not answered, until one is.
	silent bool
	// paused is true while no endpoint is configured, stopped when no attempts may be started anymore, removed if the consumer
	// does not exist anymore.
	paused, stopped, removed bool
}

// NewQueue returns a Queue that reads nothing before Start. Its deliveries end with ctx.
func (s *Stream) NewQueue(ctx context.Context, config QueueConfig) *Queue {
	q := &Queue{
		config: config, stream: s, ctx: ctx, limiter: newLimiter(), inFlight: map[*Delivery]struct{}{}, records: map[uint64]*Delivery{},
	}
	q.writer.queue = q
	q.Reader = logqueue.NewReader(logqueue.ReaderConfig{
		Log: s.config.Log, Queue: config.Name, Clock: s.config.Clock, Handle: q.handle, Idle: q.idle,
		Options: func() eventlog.ConsumeOptions {
			options := eventlog.ConsumeOptions{MaxSegments: queueSegments, MaxBytes: QueueBytes, Memory: s.config.Memory}
			if config.Ordered() {
				options.MaxSegments = 1
			}
			return options
		},
	})
	return q
}

// Name returns the name of the subscriber queue in the log.
func (q *Queue) Name() string { return q.config.Name }

// Ordered reports whether deliveries are made one at a time, in order.
func (q *Queue) Ordered() bool { return q.config.Ordered() }

// Start begins to read the subscriber queue: immediately if it is known to have records.
func (q *Queue) Start(records bool) {
	if records {
		q.mu.Lock()
		q.behind = true
		q.mu.Unlock()
		q.Reader.Expect()
	}
	q.Reader.Start(q.ctx)
}

// KeepsUp reports whether events may be offered from shared segments. Others must be appended to the subscriber queue.
func (q *Queue) KeepsUp() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.keepsUp() && !q.config.Ordered()
}

// keepsUp updates and returns !behind. mu is held.
func (q *Queue) keepsUp() bool {
	if q.behind && q.read == 0 && q.storing == 0 && !q.paused && !q.Reader.Behind() && !q.config.Ordered() {
		q.behind = false
	}
	return !q.behind
}

// Offer delivers an event of a segment that other consumers may wait for.
func (q *Queue) Offer(d *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.removed:
		q.apply(d, machine.ConsumerRemoved)
	case d.state.Record == machine.SharedRetry:
		q.apply(d, machine.Read)
	case q.stopped:
		q.apply(d, machine.Offered)
	default:
		if !q.keepsUp() || q.config.Ordered() || q.paused || q.schedule.ready.len() >= MaxReady {
			q.behind = true
			q.apply(d, machine.OfferedBehind)
			return
		}
		q.apply(d, machine.Offered)
	}
	q.start()
}

// handle reads a segment of the subscriber queue.
func (q *Queue) handle(f logqueue.Segment) {
	from := &segment{handle: f.Handle}
	deliveries := make([]*Delivery, 0, len(f.Records))
	for _, data := range f.Records {
		d, err := decode(data)
		if err != nil {
			klog.FromContext(q.ctx).Error(err, "Dropped unreadable event log record")
			continue
		}
		d.owned = from
		deliveries = append(deliveries, d)
	}
	if len(deliveries) == 0 {
		f.Handle.Ack()
		return
	}
	from.need(int32(len(deliveries)))
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.removed {
		return
	}
	if known := q.held(deliveries); known != nil {
		// The log redelivered it because the Reader was closed.
		known.redelivered = append(known.redelivered, f.Handle)
		return
	}
	if delay := q.deferral(deliveries); delay > 0 {
		f.Handle.Nack(delay)
		return
	}
	for _, d := range deliveries {
		known := q.records[d.id]
		switch {
		case known == nil:
			if q.config.Ordered() && len(f.Records) == 1 {
				// An earlier process returned it after each attempt.
				d.Attempts += f.Attempt - 1
			}
		case known.state == returned:
			d.Attempts = known.Attempts
		case known.state.Record == machine.Owned:
			// It was in flight when its segment was rejected for another delivery.
			q.account(known, -1)
			known.owned = from
			q.account(known, 1)
			continue
		default:
			known.owned = from
			q.apply(known, machine.CopyRead)
			continue
		}
		q.records[d.id] = d
		q.apply(d, machine.Read)
	}
	q.start()
}

// returned is the state of deliveries whose segment was rejected.
var returned = machine.State{Phase: machine.Logged, Record: machine.Owned}

// held returns the segment in memory that has the records of deliveries, if any. mu is held.
func (q *Queue) held(deliveries []*Delivery) *segment {
	for _, d := range deliveries {
		if known := q.records[d.id]; known != nil && known.state.Record == machine.Owned && known.state.Phase.Held() && !known.owned.rejected {
			return known.owned
		}
	}
	return nil
}

// deferral returns for how long a segment should stay in the log, because none of its deliveries is due soon and waiting
// ones use much of the available memory; or 0. mu is held.
func (q *Queue) deferral(deliveries []*Delivery) time.Duration {
	wait, now := time.Duration(math.MaxInt64), q.now()
	for _, d := range deliveries {
		if known := q.records[d.id]; q.config.Ordered() || known != nil && known.state != returned {
			return 0
		}
		wait = min(wait, d.due.Sub(now))
	}
	scarce := q.stream.config.Memory.Scarce()
	if scarce && q.paused {
		return pausedDelay
	}
	if wait < SharedTimeout {
		return 0
	}
	if n, bytes := q.schedule.waitingSize(); !scarce && bytes < QueueBytes/2 && n < queueSegments/2 {
		return 0
	}
	return wait
}

func (q *Queue) now() time.Time { return q.stream.config.Clock.Now() }

// transition changes the state of a delivery, and returns the effects for the caller to execute. mu is held.
func (q *Queue) transition(d *Delivery, e machine.Event) machine.Effects {
	next, effects, ok := d.state.Next(e)
	if !ok {
		klog.FromContext(q.ctx).Error(errTransition, "Ignored event of a delivery", "queue", q.config.Name, "state", d.state, "event", e)
		return 0
	}
	q.account(d, -1)
	d.state = next
	q.account(d, 1)
	if next.Record == machine.Stale {
		d.Event, d.encoded = nil, nil
	}
	return effects
}

// account adds n times a delivery to the counts that follow from its state. mu is held.
func (q *Queue) account(d *Delivery, n int) {
	phase, kept := d.state.Phase, d.state.Record
	switch {
	case phase != machine.InFlight:
	case n > 0:
		q.inFlight[d] = struct{}{}
	default:
		delete(q.inFlight, d)
	}
	if phase.Held() && (kept == machine.Owned || kept == machine.SharedRetry) {
		q.read += n
	}
	if phase == machine.Storing {
		q.storing += n
	}
	if kept == machine.Copying || kept == machine.CopyingStale {
		q.storing += n
	}
	if phase == machine.Ready && kept.Shared() {
		q.sharing += n
	}
	if kept == machine.Owned && phase.Busy() {
		d.owned.busy += n
	}
}

// apply changes the state of a delivery and executes the effects, except Attempt, Return and SendDeadLetter: it returns
// these for the caller. mu is held.
func (q *Queue) apply(d *Delivery, e machine.Event) machine.Effects {
	effects := q.transition(d, e)
	if effects&machine.ReleaseShared != 0 {
		d.shared.release()
	}
	if d.state.Record == machine.None || e == machine.CopyRejected && d.state.Record == machine.Shared {
		delete(q.records, d.id)
	}
	if effects&machine.ReleaseOwned != 0 {
		d.owned.finished = append(d.owned.finished, d.id)
		if d.owned.rejected {
			q.records[d.id] = stale(d.id)
		}
		d.owned.release()
	}
	if effects&machine.Ungroup != 0 {
		d.ungroup()
	}
	if effects&machine.Append != 0 {
		q.append(d)
	}
	if effects&machine.AppendCopy != 0 {
		q.records[d.id] = d
		q.writer.add(q.ctx, write{queue: q, delivery: d, header: d.header(d.id), copied: true})
	}
	if effects&machine.Schedule != 0 {
		if d.due.After(q.now()) && (!d.unanswered || q.silent) {
			q.schedule.wait(d)
		} else {
			q.apply(d, machine.Due)
		}
	}
	if effects&machine.Enqueue != 0 {
		d.queued = q.now()
		q.schedule.ready.push(d)
	}
	return effects & (machine.Attempt | machine.Return | machine.SendDeadLetter)
}

// append writes a new record of a delivery: together with retries of other consumers if the delivery shares its record with
// them, or to the subscriber queue. mu is held.
func (q *Queue) append(d *Delivery) {
	next := write{queue: q, delivery: d, header: d.header(record.NewID()), alone: d.state.Record == machine.SharedRetry}
	if d.group == nil || q.stopped || q.config.Ordered() {
		d.ungroup()
		q.writer.add(q.ctx, next)
		return
	}
	q.running.Add(1)
	d.ungroup(next)
}

// written notes that the log accepted records, or did not.
func (q *Queue) written(writes []write, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range writes {
		e := machine.Appended
		switch {
		case writes[i].copied && err != nil:
			e = machine.CopyRejected
		case writes[i].copied:
			e = machine.CopyAppended
		case err != nil:
			e = machine.Rejected
		}
		q.apply(writes[i].delivery, e)
	}
	if err != nil {
		q.start()
	}
}

// start starts the attempts that are due and admitted. mu is held.
func (q *Queue) start() {
	for d := q.next(q.acquire); d != nil; d = q.next(q.acquire) {
		q.run(d)
	}
	q.watch()
}

// startOne starts an attempt that the namespace's share admitted, and returns false if none is due.
func (q *Queue) startOne() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.next(func() bool { return true })
	if d == nil {
		return false
	}
	q.run(d)
	q.start()
	return true
}

func (q *Queue) acquire() bool { return q.stream.config.Share.acquire(q) }

// run makes the attempt of a delivery on a worker, and of others as long as any are admitted. mu is held.
func (q *Queue) run(d *Delivery) {
	q.running.Add(1)
	q.stream.config.Workers.run(func() {
		defer q.running.Done()
		for next := d; next != nil; {
			next = q.attempt(next)
		}
	})
}

// next returns a delivery whose attempt starts now, if acquire admits it. Otherwise it ensures that start is called when one
// may be admitted. mu is held.
func (q *Queue) next(acquire func() bool) *Delivery {
	if q.stopped || q.paused {
		return nil
	}
	now := q.now()
	for d := q.schedule.promote(now); d != nil; d = q.schedule.promote(now) {
		q.apply(d, machine.Due)
	}
	wake := q.schedule.next()
	if q.schedule.ready.len() > 0 && !(q.config.Ordered() && len(q.inFlight) > 0) {
		ok, at := q.limiter.allows(len(q.inFlight), now)
		// Without a share, the Share calls startOne later.
		if ok && acquire() {
			d := q.schedule.ready.pop()
			d.started, d.timed = now, d.state.Record.Shared()
			q.apply(d, machine.Started)
			return d
		}
		if !ok && !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	if !wake.IsZero() {
		if q.wakeup != nil {
			q.wakeup.Stop()
		}
		q.wakeup = q.stream.config.Clock.AfterFunc(wake.Sub(now), q.wake)
	}
	return nil
}

func (q *Queue) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.start()
}

// attempt makes the attempt of a delivery, and returns the next delivery that is admitted, if any.
func (q *Queue) attempt(d *Delivery) *Delivery {
	var slow clock.Timer
	if d.timed {
		slow = q.stream.config.Clock.AfterFunc(SharedTimeout, func() { q.slow(d) })
	}
	o := q.config.Attempt(q.ctx, d)
	if slow != nil {
		slow.Stop()
	}
	q.stream.config.Share.release()
	next, deadLetter := q.finish(d, &o)
	if deadLetter {
		q.sendDeadLetter(d, o.DeadLetter)
	}
	return next
}

// slow appends a copy of a delivery in flight to the subscriber queue, so that its shared segment can be acknowledged.
func (q *Queue) slow(d *Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped || d.state.Phase != machine.InFlight || !d.state.Record.Shared() {
		return
	}
	if d.state.Record == machine.SharedRetry && d.shared.whole() {
		// All consumers of the record are slow. It is redelivered to all of them if the process ends.
		q.stream.config.Clock.AfterFunc(SharedTimeout, func() { q.slow(d) })
		return
	}
	q.behind = true
	q.apply(d, machine.Slow)
}

// finish applies the outcome of an attempt. It returns the next delivery to attempt, if any, and whether a dead letter must
// be sent.
func (q *Queue) finish(d *Delivery, o *Outcome) (next *Delivery, deadLetter bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if o.Event == machine.Aborted {
		q.apply(d, machine.Aborted)
		return nil, false
	}
	now, inFlight := q.now(), len(q.inFlight)
	q.observe(d, o, inFlight, now)
	e := o.Event
	if e == machine.Failed {
		if !o.Skipped {
			d.Attempts++
		}
		if q.config.Ordered() && d.state.Record == machine.Owned && inFlight == 1 {
			e = machine.FailedInOrder
		} else {
			d.due, d.unanswered = now.Add(o.Backoff), o.Unanswered
		}
	}
	effects := q.apply(d, e)
	if effects&machine.Return != 0 {
		q.returnAll(d, o.Backoff)
	}
	if next = q.next(q.acquire); next != nil {
		q.start()
	}
	q.watch()
	return next, effects&machine.SendDeadLetter != 0
}

// observe adjusts the concurrency to the outcome of an attempt. mu is held.
func (q *Queue) observe(d *Delivery, o *Outcome, inFlight int, now time.Time) {
	switch {
	case o.Skipped:
		return
	case o.Overloaded:
		q.behind = true
		q.limiter.overloaded(d.started, o.Throttled, o.RetryAfter, now)
		q.silent = q.silent || o.Unanswered
	default:
		q.limiter.answered(now.Sub(d.started), inFlight, now)
		if q.silent {
			q.silent = false
			q.retryUnanswered()
		}
	}
	q.limiter.ended(o.Event == machine.Succeeded)
}

// retryUnanswered makes the deliveries due that wait because the endpoint did not answer. mu is held.
func (q *Queue) retryUnanswered() {
	for _, d := range q.schedule.removeWaiting() {
		if d.unanswered {
			q.apply(d, machine.Due)
		} else {
			q.schedule.wait(d)
		}
	}
}

// sendDeadLetter passes the event that reports a failed delivery to the Queue of the dead letter sink. The delivery ends when
// the dead letter ends, or has a record of its own.
func (q *Queue) sendDeadLetter(d *Delivery, e *event.Event) {
	from := &segment{handle: ended(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.apply(d, machine.DeadLetterEnded)
	})}
	from.left.Store(1)
	q.config.DeadLetters.Offer(&Delivery{Event: e, id: record.NewID(), accepted: d.accepted, state: machine.State{Record: machine.Shared}, shared: from})
}

// watch starts the timer of displaceReady if ready deliveries keep shared segments. mu is held.
func (q *Queue) watch() {
	if q.spill == nil && q.sharing > 0 && !q.stopped {
		q.spill = q.stream.config.Clock.AfterFunc(SharedTimeout, q.displaceReady)
	}
}

// displaceReady moves the ready deliveries of shared segments to the subscriber queue once the first one has been ready for
// SharedTimeout. Deliveries stay if the segment is not needed by others and would be redelivered to all of its consumers.
func (q *Queue) displaceReady() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spill = nil
	if q.stopped {
		return
	}
	crowded := q.stream.crowded()
	stays := func(d *Delivery) bool {
		return d.state.Record == machine.Owned || d.state.Record == machine.SharedRetry && !crowded && d.shared.whole()
	}
	for _, first := range q.schedule.ready.all() {
		if stays(first) {
			continue
		}
		if left := SharedTimeout - q.now().Sub(first.queued); left > 0 {
			q.spill = q.stream.config.Clock.AfterFunc(left, q.displaceReady)
			return
		}
		break
	}
	for _, d := range q.schedule.ready.removeAll() {
		if stays(d) {
			q.schedule.ready.push(d)
			continue
		}
		q.behind = true
		q.apply(d, machine.Displaced)
	}
	q.watch()
}

// SetPaused stops attempts while no endpoint is configured, or resumes them. The log keeps the events of a paused Queue.
func (q *Queue) SetPaused(paused bool) {
	q.mu.Lock()
	changed := q.paused != paused
	q.paused = paused
	q.start()
	q.mu.Unlock()
	if !changed {
		return
	}
	q.Reader.SetPaused(q.ctx, paused)
	if paused {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.returnAll(nil, 0)
	}
}

// OrderChanged must be called when the result of Ordered changed: deliveries return to the log, which redelivers them with
// the number of segments that the order admits.
func (q *Queue) OrderChanged() {
	open := q.Reader.Close()
	q.mu.Lock()
	q.returnAll(nil, 0)
	q.mu.Unlock()
	if open {
		q.Reader.Notify(q.ctx)
	}
}

// returnAll makes the log redeliver all deliveries that are not in flight after a delay: in their order, after first if that
// is given, and before those behind them. Segments stay that have deliveries in flight. mu is held.
func (q *Queue) returnAll(first *Delivery, delay time.Duration) {
	var segments []*segment
	seen := map[*segment]bool{}
	add := func(d *Delivery) {
		d.Event, d.encoded = nil, nil
		if !seen[d.owned] {
			seen[d.owned] = true
			segments = append(segments, d.owned)
		}
	}
	all := q.schedule.removeAll()
	if first == nil && len(all) == 0 {
		return
	}
	// The queue is read until the segments are redelivered, whatever the delay.
	q.Reader.Expect()
	if first != nil {
		add(first)
	}
	for _, d := range all {
		switch {
		case d.state.Record != machine.Owned:
			q.behind = true
			q.apply(d, machine.Displaced)
		case d.owned.busy == 0:
			q.apply(d, machine.Returned)
			add(d)
		case d.state.Phase == machine.Ready:
			q.schedule.ready.push(d)
		default:
			q.schedule.wait(d)
		}
	}
	for _, s := range segments {
		for _, id := range s.finished {
			q.records[id] = stale(id)
		}
		s.nack(delay)
	}
}

// stale returns the delivery of a record that is acknowledged when it is read again.
func stale(id uint64) *Delivery {
	return &Delivery{id: id, state: machine.State{Record: machine.Stale}}
}

// idle reports whether memory holds no record of the subscriber queue, and none is being appended.
func (q *Queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.read == 0 && q.storing == 0
}

// Halt prevents further attempts, permanently if the consumer was removed. Segments that are read from now on are kept until
// Reader.Stop.
func (q *Queue) Halt(removed bool) {
	q.mu.Lock()
	q.stopped, q.removed = true, removed
	for _, timer := range []clock.Timer{q.wakeup, q.spill} {
		if timer != nil {
			timer.Stop()
		}
	}
	q.mu.Unlock()
	q.Reader.Halt()
}

// WaitInFlight waits for the attempts and appends in progress after Halt.
func (q *Queue) WaitInFlight() { q.running.Wait() }

// Wait waits for all goroutines of a halted Queue, whose context has ended.
func (q *Queue) Wait() {
	q.running.Wait()
	q.Reader.Wait()
}

// Discard releases the segments of all deliveries, after Halt(true) and Wait.
func (q *Queue) Discard() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.schedule.removeAll() {
		q.apply(d, machine.ConsumerRemoved)
	}
	for _, w := range q.writer.removeAll() {
		if w.copied {
			q.apply(w.delivery, machine.CopyRejected)
		} else {
			q.apply(w.delivery, machine.ConsumerRemoved)
		}
	}
}

// drain implements Drain. Segments without finished deliveries are redelivered as they were. So are all segments of an ordered
// subscriber queue, to keep the order.
func (q *Queue) drain(ctx context.Context) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.removed {
		return
	}
	var parts []*Delivery
	var data []eventlog.Record
	for _, d := range q.schedule.all() {
		switch kept := d.state.Record; {
		case kept.Shared() && !d.shared.whole():
		case kept == machine.Owned && !d.owned.whole() && !q.config.Ordered():
		default:
			continue
		}
		h := d.header(record.NewID())
		parts = append(parts, d)
		data = append(data, eventlog.Record{Queue: q.config.Name, Data: d.encode(&h)})
		q.transition(d, machine.Displaced)
	}
	if len(parts) == 0 {
		return
	}
	q.mu.Unlock()
	err := q.stream.config.Log.Append(ctx, data...)
	q.mu.Lock()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store deliveries; finished ones will be repeated", "queue", q.config.Name)
		return
	}
	for _, d := range parts {
		q.apply(d, machine.Appended)
	}
}

// Status is a summary of the deliveries that a Queue holds in memory.
type Status struct {
	// Oldest is the acceptance time of the oldest event, or zero.
	Oldest time.Time
	// InFlight, Ready and Waiting count deliveries by Phase, Read counts deliveries from the subscriber queue and the retry
	// queue in all phases, WaitingBytes is the size of the events of Waiting.
	InFlight, Ready, Waiting, Read, WaitingBytes int
}

// Status returns the Status of the Queue.
func (q *Queue) Status() Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Status{InFlight: len(q.inFlight), Ready: q.schedule.ready.len(), Read: q.read}
	s.Waiting, s.WaitingBytes = q.schedule.waitingSize()
	observe := func(d *Delivery) {
		if s.Oldest.IsZero() || d.accepted.Before(s.Oldest) {
			s.Oldest = d.accepted
		}
	}
	for _, d := range q.schedule.ready.all() {
		observe(d)
	}
	for _, d := range q.schedule.waiting {
		observe(d)
	}
	for d := range q.inFlight {
		observe(d)
	}
	return s
}
