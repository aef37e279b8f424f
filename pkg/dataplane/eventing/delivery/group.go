package broker

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

const (
	// retryQueue is the queue of events that are to be delivered again to several consumers. Each of its records lists
	// those with the same number of attempts that are due at about the same time, so that an event which fails
	// everywhere is written once.
	retryQueue = "retry"
	// retrySegments and retryBytes bound what a stream has in memory of it.
	retrySegments, retryBytes = 4096, 16 << 20
	// collectFor is how long the consumers of an event are waited for once one of them is to get it again, dueWithin the
	// difference in time between retries that share a record.
	collectFor, dueWithin = 200 * time.Millisecond, time.Second
)

// group is an event that several consumers got in one record. It collects the retries of those that fail.
type group struct {
	stream *stream

	// mu guards the fields below. left is the number of consumers that neither have the event nor are to get it again.
	mu      sync.Mutex
	left    int
	retries []retry
	timer   clock.Timer
}

// retry is a delivery that is to be made again, and what to do once it is written.
type retry struct {
	lane *lane
	write
}

// newGroup returns the group of an event for a number of consumers, nil if there is just one.
func newGroup(s *stream, consumers int) *group {
	if consumers < 2 {
		return nil
	}
	return &group{stream: s, left: consumers}
}

// leave takes a delivery out of its group. Its lane's mu is held.
func (d *parcel) leave(retries ...retry) {
	g := d.group
	if g == nil {
		return
	}
	d.group = nil
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left--
	g.retries = append(g.retries, retries...)
	switch {
	case len(g.retries) == 0:
	case g.left == 0:
		g.stream.broker.workers.run(g.flush)
	case g.timer == nil:
		g.timer = g.stream.broker.options.Clock.AfterFunc(collectFor, g.flush)
	}
}

// rewrite writes a delivery for another attempt: together with those of other consumers if it came with them, and else
// to the own queue. mu is held.
func (l *lane) rewrite(d *parcel, w write) {
	if d.group == nil || l.stopped || l.ordered() {
		d.leave()
		l.write(w)
		return
	}
	l.running.Add(1)
	d.leave(retry{l, w})
}

// flush writes the retries that were collected.
func (g *group) flush() {
	g.mu.Lock()
	retries := g.retries
	g.retries = nil
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	g.mu.Unlock()
	slices.SortStableFunc(retries, func(a, b retry) int {
		x, y := a.delivery, b.delivery
		return cmp.Or(cmp.Compare(x.attempts, y.attempts), cmp.Compare(flag(x.away), flag(y.away)), x.due.Compare(y.due))
	})
	for len(retries) > 0 {
		first, n := retries[0].delivery, 1
		for n < len(retries) && retries[n].delivery.attempts == first.attempts && retries[n].delivery.away == first.away &&
			retries[n].delivery.due.Sub(first.due) <= dueWithin {
			n++
		}
		g.stream.retry(retries[:n])
		retries = retries[n:]
	}
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// retry writes the retries of an event that share a record.
func (s *stream) retry(retries []retry) {
	defer func() {
		for _, r := range retries {
			r.lane.running.Done()
		}
	}()
	if len(retries) == 1 {
		l := retries[0].lane
		l.mu.Lock()
		defer l.mu.Unlock()
		l.write(retries[0].write)
		return
	}
	d := retries[len(retries)-1].delivery
	h := header{id: newID(), accepted: d.accepted, attempts: d.attempts, due: d.due, away: d.away}
	for _, r := range retries {
		h.targets = append(h.targets, types.UID(r.lane.queue))
	}
	s.retries.expect()
	done := s.broker.workers.heavy(d.size())
	err := s.log.Append(s.ctx, eventlog.Record{Queue: retryQueue, Data: d.record(h), Alone: true})
	done()
	if err != nil {
		klog.FromContext(s.ctx).V(2).Info("Failed to write retries; keeping them in memory", "reason", err.Error())
		sleep(s.ctx, s.broker.options.Clock, rewrite)
		for _, r := range retries {
			r.lane.mu.Lock()
			r.undo()
			r.lane.kick()
			r.lane.mu.Unlock()
		}
		return
	}
	s.retries.wake(s.ctx)
	for _, r := range retries {
		r.then()
	}
}

// newRetries returns the listener of the retry queue.
func (s *stream) newRetries() *listener {
	return &listener{
		log: s.log, queue: retryQueue, clock: s.broker.options.Clock, take: s.dispatchRetries,
		quiet: func() bool { return s.retriesInMemory.Load() == 0 },
		options: func() eventlog.ConsumeOptions {
			return eventlog.ConsumeOptions{MaxSegments: retrySegments, MaxBytes: retryBytes, Memory: s.memory}
		},
	}
}

// retrySegment counts a segment of the retry queue until it is done or back in the log.
type retrySegment struct {
	SegmentHandle
	stream *stream
}

// Ack implements SegmentHandle.
func (f retrySegment) Ack() {
	f.stream.retriesInMemory.Add(-1)
	f.SegmentHandle.Ack()
}

// dispatchRetries gives the events of a segment to the lanes of their consumers. It leaves a segment in the log that is due
// later, while memory is scarce.
func (s *stream) dispatchRetries(f Segment) {
	type decoded struct {
		header
		encoded []byte
		event   *event.Event
	}
	now := s.broker.options.Clock.Now()
	var due time.Time
	all := make([]decoded, 0, len(f.Records))
	for _, record := range f.Records {
		var r decoded
		var err error
		if r.encoded, err = r.parse(record); err == nil {
			r.event, err = event.Decode(r.encoded)
		}
		if err != nil {
			klog.FromContext(s.ctx).Error(err, "Dropping a record of the event log that cannot be read")
			continue
		}
		if len(all) == 0 || r.due.Before(due) {
			due = r.due
		}
		all = append(all, r)
	}
	if wait := due.Sub(now); len(all) > 0 && wait >= linger && s.memory.scarce() {
		f.Handle.Nack(wait)
		return
	}
	s.retriesInMemory.Add(1)
	from := &held{segment: retrySegment{f.Handle, s}}
	// One more than there are, until all are counted.
	from.left.Add(1)
	for _, r := range all {
		from.need(int32(len(r.targets)))
		g := newGroup(s, len(r.targets))
		for _, target := range r.targets {
			s.hand(target, &parcel{
				event: r.event, encoded: r.encoded, id: newID(), accepted: r.accepted, attempts: r.attempts, due: r.due, away: r.away,
				from: from, group: g, own: true, shared: true,
			})
		}
	}
	from.release()
}

// arrive takes a delivery of the retry queue.
func (l *lane) arrive(d *parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		d.leave()
		d.from.release()
		return
	}
	l.own++
	l.keepUntilDue(d, l.clock.Now())
	l.kick()
	l.watch()
}
