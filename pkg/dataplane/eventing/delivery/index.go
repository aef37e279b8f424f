package delivery

import (
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
)

// index has the deliveries that a Queue holds in memory: by state, in the order of their attempts, and by the IDs of their
// records. It is not safe for concurrent use.
type index struct {
	schedule
	inFlight map[*Delivery]struct{}
	// records has the deliveries by the IDs of their records in the subscriber queue: of records that memory holds, and of
	// records that will be read, because they are copies, or their segment was rejected.
	records map[uint64]*Delivery
	// read counts the deliveries in memory from records of the subscriber and retry queues, storing the records that are being
	// appended, sharing the ready deliveries that keep a shared segment.
	read, storing, sharing int
}

func newIndex() index {
	return index{inFlight: map[*Delivery]struct{}{}, records: map[uint64]*Delivery{}}
}

// transition changes the state of a delivery, and returns the effects for the caller to execute. It returns false, and changes
// nothing, if the event cannot occur in the state.
func (x *index) transition(d *Delivery, e machine.Event) (machine.Effects, bool) {
	next, effects, ok := d.state.Next(e)
	if !ok {
		return 0, false
	}
	x.count(d, -1)
	d.state = next
	x.count(d, 1)
	switch {
	case effects&machine.ReleaseOwned != 0 && d.owned.rejected:
		x.records[d.id] = stale(d.id)
	case next.Record == machine.None, e == machine.CopyRejected && next.Record == machine.Shared:
		delete(x.records, d.id)
	case e == machine.Read && next.Record == machine.Owned, effects&machine.AppendCopy != 0:
		x.records[d.id] = d
	}
	if next.Record == machine.Stale {
		d.Event, d.encoded = nil, nil
	}
	return effects, true
}

// count adds n times a delivery to the counts that follow from its state.
func (x *index) count(d *Delivery, n int) {
	phase, kept := d.state.Phase, d.state.Record
	switch {
	case phase != machine.InFlight:
	case n > 0:
		x.inFlight[d] = struct{}{}
	default:
		delete(x.inFlight, d)
	}
	if phase.Held() && (kept == machine.Owned || kept == machine.SharedRetry) {
		x.read += n
	}
	if phase == machine.Storing {
		x.storing += n
	}
	if kept == machine.Copying || kept == machine.CopyingStale {
		x.storing += n
	}
	if phase == machine.Ready && kept.Shared() {
		x.sharing += n
	}
	if kept == machine.Owned && phase.Busy() {
		d.owned.busy += n
	}
}

// idle reports whether memory holds no record of the subscriber queue, and none is being appended.
func (x *index) idle() bool { return x.read == 0 && x.storing == 0 }

// expectsCopies reports whether a copy, or a record that is not needed anymore, was not read yet from the subscriber queue.
func (x *index) expectsCopies() bool {
	for _, d := range x.records {
		switch d.state.Record {
		case machine.Copying, machine.CopyingStale, machine.Copied, machine.Stale:
			return true
		}
	}
	return false
}

// segment returns the segment in memory that has the records of deliveries, if any.
func (x *index) segment(deliveries []*Delivery) *segment {
	for _, d := range deliveries {
		if known := x.records[d.id]; known != nil && known.state.Record == machine.Owned && known.state.Phase.Held() && !known.owned.rejected {
			return known.owned
		}
	}
	return nil
}

// move changes the segment of a delivery's record to the given one.
func (x *index) move(d *Delivery, to *segment) {
	x.count(d, -1)
	d.owned = to
	x.count(d, 1)
}

// reject makes the log redeliver a segment after a delay. Its records that are not needed anymore are acknowledged then.
func (x *index) reject(s *segment, delay time.Duration) {
	for _, id := range s.finished {
		x.records[id] = stale(id)
	}
	s.nack(delay)
}

// returned is the state of deliveries whose segment was rejected.
var returned = machine.State{Phase: machine.Logged, Record: machine.Owned}

// stale returns the delivery of a record that is acknowledged when it is read again.
func stale(id uint64) *Delivery {
	return &Delivery{id: id, state: machine.State{Record: machine.Stale}}
}

// Status is a summary of the deliveries that a Queue holds in memory.
type Status struct {
	// Oldest is the acceptance time of the oldest event, or zero.
	Oldest time.Time
	// InFlight, Ready and Waiting count deliveries by phase, Read counts deliveries from the subscriber queue and the retry
	// queue in all phases, WaitingBytes is the size of the events of Waiting.
	InFlight, Ready, Waiting, Read, WaitingBytes int
}

func (x *index) status() Status {
	s := Status{InFlight: len(x.inFlight), Ready: x.ready.len(), Read: x.read}
	s.Waiting, s.WaitingBytes = x.waitingSize()
	observe := func(d *Delivery) {
		if s.Oldest.IsZero() || d.accepted.Before(s.Oldest) {
			s.Oldest = d.accepted
		}
	}
	for _, d := range x.ready.all() {
		observe(d)
	}
	for _, d := range x.waiting {
		observe(d)
	}
	for d := range x.inFlight {
		observe(d)
	}
	return s
}
