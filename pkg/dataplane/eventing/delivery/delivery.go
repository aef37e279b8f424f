package broker

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// held is a segment of the log, or a number of them, that is done once everything in it is.
type held struct {
	segment SegmentHandle
	// parts is the number of deliveries that need the segment, none where it is itself a part of another one, left those that
	// still do.
	parts, left atomic.Int32
	// finished are the ids of deliveries from a lane's own queue that are done. The lane's mu guards it.
	finished []uint64
}

// need notes that so many deliveries more need the segment.
func (h *held) need(n int32) {
	h.parts.Add(n)
	h.left.Add(n)
}

// whole tells whether none of the deliveries is done, so that nothing is repeated where the segment comes again.
func (h *held) whole() bool { return h.parts.Load() == h.left.Load() }

// release notes that one of the deliveries needs the segment no more.
func (h *held) release() {
	if h.left.Add(-1) == 0 {
		h.segment.Ack()
	}
}

// parcel is one event on its way to one consumer.
type parcel struct {
	event *event.Event
	// encoded is the event's form in the log, nil for one that was made here.
	encoded  []byte
	id       uint64
	accepted time.Time
	// attempts are those made before, all of them failed.
	attempts int
	// due is when the next attempt is to be made.
	due time.Time
	// from is what keeps the event durable.
	from *held
	// offered is when the lane got it from a shared segment, began when the attempt under way did.
	offered, began time.Time
	// away tells that there was no answer to the attempt before. See verdict.
	away bool
	// own is true if the delivery is from the lane's own queue or from the retry queue, leased if it is in the own queue too
	// by now, shared if other lanes have deliveries of the same segment.
	own, leased, shared bool
	// group is the event's for all consumers, nil if it is for this one alone or was decided on.
	group *group
}

// header returns the header of the delivery's record in the queue of its consumer.
func (d *parcel) header() header {
	return header{id: d.id, accepted: d.accepted, attempts: d.attempts, due: d.due, away: d.away}
}

// record returns the delivery's form in the log.
func (d *parcel) record(h header) []byte {
	record := h.append(make([]byte, 0, headerBytes+targetBytes*len(h.targets)+d.size()))
	if d.encoded == nil {
		return d.event.Append(record)
	}
	return append(record, d.encoded...)
}

// size returns the most bytes that the event takes in the log.
func (d *parcel) size() int {
	if d.encoded == nil {
		return d.event.Size()
	}
	return len(d.encoded)
}

// decode returns the deliveries in a segment of a lane's own queue.
func decode(ctx context.Context, f Segment) []*parcel {
	from := &held{segment: f.Handle}
	deliveries := make([]*parcel, 0, len(f.Records))
	for _, record := range f.Records {
		d, err := decodeRecord(record)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Dropping a record of the event log that cannot be read")
			continue
		}
		d.from, d.own = from, true
		deliveries = append(deliveries, d)
	}
	if len(deliveries) == 0 {
		f.Handle.Ack()
	}
	from.need(int32(len(deliveries)))
	return deliveries
}

func decodeRecord(record []byte) (*parcel, error) {
	var h header
	encoded, err := h.parse(record)
	if err != nil {
		return nil, err
	}
	e, err := event.Decode(encoded)
	if err != nil {
		return nil, err
	}
	return &parcel{event: e, encoded: encoded, id: h.id, accepted: h.accepted, attempts: h.attempts, due: h.due, away: h.away}, nil
}

// byDue is a heap of deliveries by the time of their next attempt.
type byDue []*parcel

func (b byDue) Len() int           { return len(b) }
func (b byDue) Less(i, j int) bool { return b[i].due.Before(b[j].due) }
func (b byDue) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }

// Push implements heap.Interface.
func (b *byDue) Push(x any) { *b = append(*b, x.(*parcel)) }

// Pop implements heap.Interface.
func (b *byDue) Pop() any {
	last := len(*b) - 1
	d := (*b)[last]
	(*b)[last] = nil
	*b = (*b)[:last]
	return d
}

// fifo is a queue of deliveries.
type fifo struct {
	items []*parcel
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

func (f *fifo) push(d *parcel) { f.items = append(f.items, d) }

func (f *fifo) pop() *parcel {
	d := f.items[f.head]
	f.items[f.head] = nil
	f.head++
	if f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	} else if f.head > 1024 && 2*f.head > len(f.items) {
		f.items, f.head = append(f.items[:0], f.items[f.head:]...), 0
	}
	return d
}

// takeAll empties the queue.
func (f *fifo) takeAll() []*parcel {
	all := append([]*parcel(nil), f.items[f.head:]...)
	clear(f.items)
	f.items, f.head = f.items[:0], 0
	return all
}
