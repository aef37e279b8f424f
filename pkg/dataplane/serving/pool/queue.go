package pool

import "math"

const (
	// largeQueue is the number of requests that may wait for a Revision whose ready capacity is below its burst capacity.
	largeQueue = 10_000
	// queueDepth is the number of requests that may wait per unit of capacity beyond that.
	queueDepth = 10
)

// waiting is a request in a queue.
type waiting struct {
	// granted gets the result.
	granted    chan Grant
	prev, next *waiting
	queued     bool
}

func newWaiting() *waiting { return &waiting{granted: make(chan Grant, 1)} }

// queue has the waiting requests, in the order of their arrival.
type queue struct {
	first, last *waiting
	length      int
	// large is true if the queue has grown under its large limit. It keeps that limit until it is short enough for the small
	// one, so that a backend becoming ready causes no rejections.
	large bool
}

// push adds a request: at the front if it has waited before.
func (q *queue) push(w *waiting, front bool) {
	w.queued = true
	q.length++
	switch {
	case q.first == nil:
		q.first, q.last = w, w
	case front:
		w.next, q.first.prev = q.first, w
		q.first = w
	default:
		w.prev, q.last.next = q.last, w
		q.last = w
	}
}

// remove removes a request.
func (q *queue) remove(w *waiting) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.length--
}

// grant removes the first request and sends it its result.
func (q *queue) grant(grant Grant) {
	w := q.first
	q.remove(w)
	w.granted <- grant
}

// flush sends the same result to all requests.
func (q *queue) flush(grant Grant) {
	for q.first != nil {
		q.grant(grant)
	}
}

// capacity has the values that determine the limit of a queue.
type capacity struct {
	// perBackend is the number of requests that one backend may have, or math.MaxInt; usable the number of backends.
	perBackend, usable int
	// burst is the target burst capacity: 0 means none, -1 means unlimited.
	burst float64
}

// limit returns the number of requests that may wait: the large limit while the capacity is below the target burst capacity,
// and queueDepth per unit of capacity beyond it.
func (c capacity) limit() int {
	if c.perBackend == math.MaxInt || c.usable == 0 {
		return largeQueue
	}
	ready := c.perBackend * c.usable
	if c.burst < 0 || float64(ready) < c.burst {
		return largeQueue
	}
	return queueDepth * ready
}

// full reports whether no further request may wait.
func (q *queue) full(c capacity) bool {
	limit := c.limit()
	if q.large = q.large || limit == largeQueue; q.large {
		limit = max(limit, largeQueue)
	}
	return q.length >= limit
}

// shrink ends the large limit once the queue is short enough for the small one.
func (q *queue) shrink(perBackend, usable int) {
	if q.large {
		q.large = q.length > 0 && (perBackend == math.MaxInt || q.length > queueDepth*perBackend*usable)
	}
}
