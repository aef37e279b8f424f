package delivery

import (
	"container/heap"
	"time"
)

// schedule orders the deliveries of a Queue that are held in memory and not in flight. It is not safe for concurrent use.
type schedule struct {
	ready   fifo
	waiting byDue
}

// promote returns a delivery whose due time has come, and removes it; or nil.
func (s *schedule) promote(now time.Time) *Delivery {
	if len(s.waiting) == 0 || s.waiting[0].due.After(now) {
		return nil
	}
	return heap.Pop(&s.waiting).(*Delivery)
}

// next returns the earliest due time of waiting deliveries, or the zero time.
func (s *schedule) next() time.Time {
	if len(s.waiting) == 0 {
		return time.Time{}
	}
	return s.waiting[0].due
}

func (s *schedule) wait(d *Delivery) { heap.Push(&s.waiting, d) }

// removeWaiting removes all waiting deliveries.
func (s *schedule) removeWaiting() []*Delivery {
	all := s.waiting
	s.waiting = nil
	return all
}

// removeAll removes all deliveries, ready ones first.
func (s *schedule) removeAll() []*Delivery { return append(s.ready.removeAll(), s.removeWaiting()...) }

// all returns all deliveries, ready ones first.
func (s *schedule) all() []*Delivery {
	all := make([]*Delivery, 0, s.ready.len()+len(s.waiting))
	return append(append(all, s.ready.all()...), s.waiting...)
}

// waitingSize returns the number of waiting deliveries, and their size in bytes.
func (s *schedule) waitingSize() (n, bytes int) {
	for _, d := range s.waiting {
		bytes += d.size()
	}
	return len(s.waiting), bytes
}

// byDue is a heap of deliveries by due time.
type byDue []*Delivery

func (b byDue) Len() int           { return len(b) }
func (b byDue) Less(i, j int) bool { return b[i].due.Before(b[j].due) }
func (b byDue) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }

// Push implements heap.Interface.
func (b *byDue) Push(x any) { *b = append(*b, x.(*Delivery)) }

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
	items []*Delivery
	head  int
}

func (f *fifo) len() int { return len(f.items) - f.head }

// all returns the deliveries of the queue. They are valid until the queue changes.
func (f *fifo) all() []*Delivery { return f.items[f.head:] }

func (f *fifo) push(d *Delivery) { f.items = append(f.items, d) }

func (f *fifo) pop() *Delivery {
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

// removeAll empties the queue and returns what it held.
func (f *fifo) removeAll() []*Delivery {
	all := append([]*Delivery(nil), f.all()...)
	clear(f.items)
	f.items, f.head = f.items[:0], 0
	return all
}
