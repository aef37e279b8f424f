package delivery

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/klog/v2"

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
	// drainTimeout bounds Drain, copiesTimeout WaitForCopies: a copy is read within milliseconds, unless the subscriber queue is long.
	drainTimeout, copiesTimeout = 5 * time.Second, time.Second
)

// Outcomes of an attempt.
const (
	// Succeeded means that the endpoint accepted the event, and its reply is durable.
	Succeeded = machine.Succeeded
	// Failed means that the attempt failed and will be repeated, or could not be made because the endpoint is unresolved.
	Failed = machine.Failed
	// Undeliverable means that the attempt failed permanently, and a dead letter sink or the dead letter store takes the event.
	Undeliverable = machine.Undeliverable
	// Discarded means that the attempt failed permanently, and nothing takes dead letters.
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
	// Skipped is true if no attempt was made, because no endpoint is configured or nothing authenticates the delivery. It is not counted. The others
	// are false then; RetryAfter is the time until the next attempt at this endpoint.
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
	// Share bounds the attempts in flight. Nil means the Share of the stream.
	Share *Share
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
	// ctx is canceled when the consumer is removed or the process stops.
	ctx     context.Context
	writer  writer
	running sync.WaitGroup

	mu sync.Mutex
	// mu guards the fields below, except dispatcher.queued.
	index      index
	dispatcher dispatcher
	evictor    evictor
	// behind is true if events must pass through the subscriber queue, because it may have others or the endpoint is slow.
	behind bool
	// paused is true while no endpoint is configured, stopped when no attempts may be started anymore, removed if the consumer
	// does not exist anymore.
	paused, stopped, removed bool
	// copiesRead is closed when no copy is left to read. It is nil unless WaitForCopies waits.
	copiesRead chan struct{}
}

// NewQueue returns a Queue that reads nothing before Start. Its deliveries end with ctx.
func (s *Stream) NewQueue(ctx context.Context, config QueueConfig) *Queue {
	config.Share = cmp.Or(config.Share, s.config.Share)
	q := &Queue{config: config, stream: s, ctx: ctx, index: newIndex()}
	q.writer.queue, q.evictor.queue = q, q
	q.dispatcher.queue, q.dispatcher.limiter = q, newLimiter()
	q.Reader = logqueue.NewReader(logqueue.ReaderConfig{
		Log: s.config.Log, Queue: config.Name, Clock: s.config.Clock, Handle: q.handle, Idle: q.idle, Outdated: q.returnOutdated,
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
	if q.behind && q.index.idle() && !q.paused && !q.Reader.Behind() && !q.config.Ordered() {
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
		if !q.keepsUp() || q.config.Ordered() || q.paused || q.index.ready.len() >= MaxReady {
			q.behind = true
			q.apply(d, machine.OfferedBehind)
			return
		}
		q.apply(d, machine.Offered)
	}
	q.dispatcher.start()
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
	if known := q.index.segment(deliveries); known != nil {
		// The log redelivered it because the Reader was closed.
		known.redelivered = append(known.redelivered, f.Handle)
		return
	}
	if delay := q.deferral(deliveries); delay > 0 {
		f.Handle.Nack(delay)
		return
	}
	copyRead := false
	for _, d := range deliveries {
		known := q.index.records[d.id]
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
			q.index.move(known, from)
			continue
		default:
			q.index.move(known, from)
			q.apply(known, machine.CopyRead)
			copyRead = true
			continue
		}
		q.apply(d, machine.Read)
	}
	if copyRead && q.copiesRead != nil && !q.expectsCopies() {
		close(q.copiesRead)
		q.copiesRead = nil
	}
	if q.paused && !q.stopped && !q.Reader.Open() {
		// It was about to be delivered when the Reader was paused.
		q.returnAll(nil, 0)
	}
	q.dispatcher.start()
}

// deferral returns for how long a segment should stay in the log, because none of its deliveries is due soon and waiting
// ones use much of the available memory; or 0. mu is held.
func (q *Queue) deferral(deliveries []*Delivery) time.Duration {
	wait, now := time.Duration(math.MaxInt64), q.now()
	for _, d := range deliveries {
		if known := q.index.records[d.id]; q.config.Ordered() || known != nil && known.state != returned {
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
	if n, bytes := q.index.waitingSize(); !scarce && bytes < QueueBytes/2 && n < queueSegments/2 {
		return 0
	}
	return wait
}

func (q *Queue) now() time.Time { return q.stream.config.Clock.Now() }

// transition changes the state of a delivery, and returns the effects for the caller to execute. mu is held.
func (q *Queue) transition(d *Delivery, e machine.Event) machine.Effects {
	effects, ok := q.index.transition(d, e)
	if !ok {
		klog.FromContext(q.ctx).Error(errTransition, "Ignored event of a delivery", "queue", q.config.Name, "state", d.state, "event", e)
	}
	return effects
}

// apply changes the state of a delivery and executes the effects, except Attempt, Return and SendDeadLetter: it returns
// these for the caller. mu is held.
func (q *Queue) apply(d *Delivery, e machine.Event) machine.Effects {
	effects := q.transition(d, e)
	if effects&machine.ReleaseShared != 0 {
		d.shared.release()
	}
	if effects&machine.ReleaseOwned != 0 {
		d.owned.finished = append(d.owned.finished, d.id)
		d.owned.release()
	}
	if effects&machine.Ungroup != 0 {
		d.ungroup()
	}
	if effects&machine.Append != 0 {
		q.append(d)
	}
	if effects&machine.AppendCopy != 0 {
		q.writer.add(q.ctx, write{queue: q, delivery: d, header: d.header(d.id), copied: true})
	}
	if effects&machine.Schedule != 0 {
		if d.due.After(q.now()) && (!d.unanswered || q.dispatcher.limiter.silent) {
			q.index.wait(d)
		} else {
			q.apply(d, machine.Due)
		}
	}
	if effects&machine.Enqueue != 0 {
		d.queued = q.now()
		q.index.ready.push(d)
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

// written records whether the log accepted records.
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
		q.dispatcher.start()
	}
}

// SetPaused stops attempts while no endpoint is configured, or resumes them. The log keeps the events of a paused Queue.
func (q *Queue) SetPaused(paused bool) {
	q.mu.Lock()
	changed := q.paused != paused
	q.paused = paused
	q.dispatcher.start()
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

// returnOutdated returns deliveries that were read while the Queue was paused, or with the former order.
func (q *Queue) returnOutdated() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		q.returnAll(nil, 0)
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
	all := q.index.removeAll()
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
			q.index.ready.push(d)
		default:
			q.index.wait(d)
		}
	}
	for _, s := range segments {
		q.index.reject(s, delay)
	}
}

// idle reports whether memory holds no record of the subscriber queue, and none is being appended.
func (q *Queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.index.idle()
}

// Halt prevents further attempts, permanently if the consumer was removed. Segments that are read from now on are kept until
// Reader.Stop. Copies are still read, even if the Queue is paused.
func (q *Queue) Halt(removed bool) {
	q.mu.Lock()
	q.stopped, q.removed = true, removed
	q.dispatcher.stop()
	q.evictor.stop()
	reads := !removed && q.expectsCopies()
	q.mu.Unlock()
	if reads {
		q.Reader.SetPaused(q.ctx, false)
	} else {
		q.Reader.Halt()
	}
}

// expectsCopies reports whether WaitForCopies must wait. Copies exist in an ordered subscriber queue only if the order changed;
// reading there counts as an attempt. mu is held.
func (q *Queue) expectsCopies() bool { return !q.config.Ordered() && q.index.expectsCopies() }

// waitForCopies implements WaitForCopies.
func (q *Queue) waitForCopies(ctx context.Context) {
	q.mu.Lock()
	if !q.expectsCopies() {
		q.mu.Unlock()
		return
	}
	read := make(chan struct{})
	q.copiesRead = read
	q.mu.Unlock()
	select {
	case <-read:
	case <-ctx.Done():
	}
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
	for _, d := range q.index.removeAll() {
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
	for _, d := range q.index.all() {
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

// Status returns the Status of the Queue.
func (q *Queue) Status() Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.index.status()
}
