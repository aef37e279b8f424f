package gateway

// waiter is a request that waits for an instance. It is in a queue until it is granted one or leaves.
type waiter struct {
	// granted gets the instance, whose slot is the waiter's then. It is closed where there will be none.
	granted    chan *instance
	prev, next *waiter
	queued     bool
}

// queue has waiters in the order in which they came.
type queue struct {
	first, last *waiter
	length      int
}

// push adds a waiter: at the front if it has waited before.
func (q *queue) push(w *waiter, front bool) {
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

// remove takes a queued waiter out.
func (q *queue) remove(w *waiter) {
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
