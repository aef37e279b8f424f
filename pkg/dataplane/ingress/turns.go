package ingress

import (
	"context"
	"net/http"
	"slices"
	"sync"
)

const (
	// maxAccepted is how many requests' events are made durable at a time, maxAcceptedOfOne how many of those may be of
	// one namespace: others always find room at once, or have their turn with the next that ends.
	maxAccepted, maxAcceptedOfOne = 256, 192
	// maxWaiting is how many more requests of one namespace may wait.
	maxWaiting = 1024
)

var errShare = &Refusal{Status: http.StatusTooManyRequests, Message: "the namespace sends more events than can be taken at present"}

// turns gives namespaces their turns, so that one which sends a flood of events holds up no other.
type turns struct {
	mu sync.Mutex
	// All below is guarded by mu: how many more may be under way, how many of each namespace are, and who waits, in order.
	free    int
	busy    map[string]int
	waiting map[string][]chan struct{}
	// order are the namespaces that have somebody waiting, the one whose turn is next first.
	order []string
}

func newTurns() *turns {
	return &turns{free: maxAccepted, busy: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// enter waits for the turn of a namespace, which ends with leave. It fails with errShare where too many wait already, or
// when ctx ends.
func (t *turns) enter(ctx context.Context, namespace string) error {
	t.mu.Lock()
	if len(t.waiting[namespace]) == 0 && t.may(namespace) {
		t.begin(namespace)
		t.mu.Unlock()
		return nil
	}
	if len(t.waiting[namespace]) >= maxWaiting {
		t.mu.Unlock()
		return errShare
	}
	turn := make(chan struct{})
	if len(t.waiting[namespace]) == 0 {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.waiting[namespace], turn); at >= 0 {
		t.remove(namespace, at)
	} else {
		// It came at the same time.
		t.end(namespace)
	}
	return ctx.Err()
}

// leave ends a turn.
func (t *turns) leave(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(namespace)
}

// may tells whether a namespace may have another turn. mu is held, as in what follows.
func (t *turns) may(namespace string) bool { return t.free > 0 && t.busy[namespace] < maxAcceptedOfOne }

func (t *turns) begin(namespace string) {
	t.free--
	t.busy[namespace]++
}

// end ends a turn, and begins those that may be after it.
func (t *turns) end(namespace string) {
	t.free++
	if t.busy[namespace]--; t.busy[namespace] == 0 {
		delete(t.busy, namespace)
	}
	for {
		at := slices.IndexFunc(t.order, t.may)
		if at < 0 {
			return
		}
		next := t.order[at]
		turn := t.waiting[next][0]
		// Who has had a turn is the last to have another.
		t.order = append(slices.Delete(t.order, at, at+1), next)
		t.remove(next, 0)
		t.begin(next)
		close(turn)
	}
}

func (t *turns) remove(namespace string, at int) {
	left := slices.Delete(t.waiting[namespace], at, at+1)
	if len(left) > 0 {
		t.waiting[namespace] = left
		return
	}
	delete(t.waiting, namespace)
	t.order = slices.DeleteFunc(t.order, func(other string) bool { return other == namespace })
}
