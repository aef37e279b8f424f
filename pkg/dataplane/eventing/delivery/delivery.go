// Package delivery delivers the events of a stream to endpoints: a state machine for each delivery (machine.go), and a
// Queue per endpoint that drives it.
package delivery

import (
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
)

// Delivery is the delivery of one event to one endpoint.
type Delivery struct {
	Event *event.Event
	// Attempts is the number of attempts before, all of which failed.
	Attempts int

	// encoded is the encoded event, nil if the event is not in the log in this form.
	encoded  []byte
	id       uint64
	accepted time.Time
	// due is the time of the next attempt, queued when the delivery became ready, started when its attempt began.
	due, queued, started time.Time
	// unanswered is true if the endpoint did not answer the previous attempt.
	unanswered bool
	// timed is true if the attempt in flight began with a shared segment.
	timed bool
	// state is guarded by the mu of the Queue, once the delivery was offered to one.
	state machine.State
	// shared and owned are the segments that state.Record requires.
	shared, owned *segment
	// group has the deliveries of the same record; nil if this one is alone or was decided.
	group *group
}

// Accepted returns the time at which the stream accepted the event; for a dead letter, the event that it reports.
func (d *Delivery) Accepted() time.Time { return d.accepted }

// header returns the header of the delivery's record in a subscriber queue.
func (d *Delivery) header(id uint64) record.Header {
	return record.Header{ID: id, Accepted: d.accepted, Attempts: d.Attempts, Due: d.due, Unanswered: d.unanswered}
}

// encode returns a record of the delivery.
func (d *Delivery) encode(h *record.Header) []byte {
	data := h.Append(make([]byte, 0, record.HeaderBytes+record.TargetBytes*len(h.Targets)+d.size()))
	if d.encoded == nil {
		return d.Event.Append(data)
	}
	return append(data, d.encoded...)
}

// size returns the maximum size of the encoded event.
func (d *Delivery) size() int {
	if d.encoded == nil {
		return d.Event.Size()
	}
	return len(d.encoded)
}

// decode returns the delivery of a record in a subscriber queue.
func decode(data []byte) (*Delivery, error) {
	var h record.Header
	encoded, err := h.Parse(data)
	if err != nil {
		return nil, err
	}
	e, err := event.Decode(encoded)
	if err != nil {
		return nil, err
	}
	return &Delivery{
		Event: e, encoded: encoded, id: h.ID, accepted: h.Accepted, Attempts: h.Attempts, due: h.Due, unanswered: h.Unanswered,
		state: machine.State{Record: machine.Owned},
	}, nil
}

// Discard ends a delivery that was offered to no Queue, because its consumer does not exist.
func (d *Delivery) Discard() { d.release(machine.ConsumerRemoved) }

// release applies events to a delivery that was offered to no Queue.
func (d *Delivery) release(events ...machine.Event) {
	for _, e := range events {
		var effects machine.Effects
		d.state, effects, _ = d.state.Next(e)
		if effects&machine.Ungroup != 0 {
			d.ungroup()
		}
		if effects&machine.ReleaseShared != 0 {
			d.shared.release()
		}
	}
}

// segment counts the deliveries that need a segment of the log, and acknowledges it after the last one.
type segment struct {
	handle logqueue.Handle
	// redelivered are further handles of a segment that the log redelivered while memory held it.
	redelivered []logqueue.Handle
	// rejected is true after nack.
	rejected bool
	// total is the number of deliveries, or 0 if the segment is not in the log by itself; left the number of deliveries that need it.
	total, left atomic.Int32
	// finished are the IDs of a subscriber queue's records that are not needed anymore, busy is the number of deliveries for
	// which the segment must stay. The mu of the Queue guards both, redelivered and rejected.
	finished []uint64
	busy     int
}

// need adds deliveries that need the segment.
func (s *segment) need(n int32) {
	s.total.Add(n)
	s.left.Add(n)
}

// whole reports whether all deliveries need the segment: redelivering it repeats none.
func (s *segment) whole() bool { return s.total.Load() == s.left.Load() }

// release notes that one delivery does not need the segment anymore.
func (s *segment) release() {
	if s.left.Add(-1) == 0 {
		s.handle.Ack()
		for _, h := range s.redelivered {
			h.Ack()
		}
	}
}

// nack makes the log redeliver the segment after a delay.
func (s *segment) nack(delay time.Duration) {
	s.rejected = true
	s.handle.Nack(delay)
	for _, h := range s.redelivered {
		h.Nack(delay)
	}
}

// ended is the handle of a segment that consists of a dead letter: acknowledging it ends the delivery that it reports.
type ended func()

// Ack implements logqueue.Handle.
func (end ended) Ack() { end() }

// Nack implements logqueue.Handle. The record of the reported delivery is redelivered.
func (ended) Nack(time.Duration) {}
