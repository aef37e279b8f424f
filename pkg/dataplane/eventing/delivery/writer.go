package broker

import (
	"container/heap"
	"math"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// write is a delivery to be appended to the lane's queue, what to do once it is, and what if the log does not take it. undo
// is called with mu held.
type write struct {
	delivery   parcel
	then, undo func()
}

// writeBytes bounds the records that a lane makes at a time.
const writeBytes = 1 << 20

// resume has what comes into the own queue handed over, and what is there.
func (l *lane) resume(anything bool) {
	if anything {
		l.mu.Lock()
		l.direct = false
		l.mu.Unlock()
		l.listener.expect()
	}
	l.listener.begin(l.ctx)
}

// write appends a record to the lane's own queue. mu is held.
func (l *lane) write(w write) {
	l.writes = append(l.writes, w)
	if !l.writing && l.ctx.Err() == nil {
		l.writing = true
		l.running.Go(l.writeAll)
	}
}

func (l *lane) writeAll() {
	for {
		l.mu.Lock()
		writes := l.writes
		l.writes = nil
		if len(writes) == 0 {
			l.writing = false
			l.settle()
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()

		for len(writes) > 0 {
			n, bytes := 0, 0
			for n < len(writes) && (n == 0 || bytes+writes[n].delivery.size() <= writeBytes) {
				bytes += writes[n].delivery.size()
				n++
			}
			if err := l.append(writes[:n], bytes); err != nil {
				l.refused(writes, err)
				break
			}
			for _, w := range writes[:n] {
				w.then()
			}
			writes = writes[n:]
		}
	}
}

// append appends deliveries of some size to the own queue.
func (l *lane) append(writes []write, bytes int) error {
	defer l.workers.heavy(bytes)()
	records := make([]eventlog.Record, 0, len(writes))
	for i := range writes {
		d := &writes[i].delivery
		records = append(records, eventlog.Record{Queue: l.queue, Data: d.record(d.header()), Alone: l.ordered() || d.shared})
	}
	l.listener.expect()
	if err := l.log.Append(l.ctx, records...); err != nil {
		return err
	}
	l.listener.wake(l.ctx)
	return nil
}

// refused is called when the log took no records. A full one has room again when events are delivered, so these are
// not to wait for it: what was to be written is durable where it was before, and goes on from memory.
func (l *lane) refused(writes []write, err error) {
	klog.FromContext(l.ctx).V(2).Info("Writing to a queue of events failed", "queue", l.queue, "reason", err.Error())
	// Those that wait to be written again and again are not to keep the processor busy.
	sleep(l.ctx, l.clock, rewrite)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range writes {
		w.undo()
	}
	l.kick()
}

// quiet implements listener.quiet.
func (l *lane) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own == 0 && len(l.writes) == 0 && !l.writing
}

// take takes a segment of the own queue.
func (l *lane) take(f Segment) {
	deliveries := decode(l.ctx, f)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return
	}
	now := l.clock.Now()
	if wait := l.outlast(deliveries, now); wait > 0 {
		f.Handle.Nack(wait)
		return
	}
	for _, d := range deliveries {
		if _, done := l.finished[d.id]; done {
			delete(l.finished, d.id)
			// It may be given back once more.
			d.from.finished = append(d.from.finished, d.id)
			d.from.release()
			continue
		}
		l.own++
		if before, underWay := l.leased[d.id]; underWay {
			if before != nil {
				// The log took it for lost.
				l.own--
			}
			l.leased[d.id] = d.from
			continue
		}
		if attempts, known := l.back[d.id]; known {
			d.attempts = attempts
			delete(l.back, d.id)
		} else if l.ordered() && len(f.Records) == 1 {
			// An earlier process gave it back after each attempt.
			d.attempts += f.Attempt - 1
		}
		l.keepUntilDue(d, now)
	}
	l.settle()
	l.kick()
}

// keepUntilDue makes a delivery of a queue wait for its time, or its turn. mu is held.
func (l *lane) keepUntilDue(d *parcel, now time.Time) {
	if d.due.After(now) && (!d.away || l.away) {
		heap.Push(&l.waiting, d)
		return
	}
	d.offered = now
	l.ready.push(d)
}

// outlast returns how long the log is to keep a segment because its deliveries all wait for long and those in memory take
// up much of what there may be; 0 has it come to memory too. mu is held.
func (l *lane) outlast(deliveries []*parcel, now time.Time) time.Duration {
	wait := time.Duration(math.MaxInt64)
	for _, d := range deliveries {
		_, finished := l.finished[d.id]
		_, leased := l.leased[d.id]
		if finished || leased || l.ordered() {
			return 0
		}
		wait = min(wait, d.due.Sub(now))
	}
	scarce := l.memory.scarce()
	if scarce && l.paused && len(deliveries) > 0 {
		return pausedFor
	}
	if len(deliveries) == 0 || wait < linger {
		return 0
	}
	if scarce {
		return wait
	}
	taken := 0
	for _, d := range l.waiting {
		taken += d.size()
	}
	if taken < queueBytes/2 && len(l.waiting) < queueSegments/2 {
		return 0
	}
	return wait
}
