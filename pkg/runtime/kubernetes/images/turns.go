package images

import (
	"context"
	"slices"
	"sync"
)

const (
	// concurrency is how many images are asked about at a time, concurrencyOfOne how many of those may be of one namespace.
	concurrency, concurrencyOfOne = 16, 4
)

// turns schedules requests to registries: namespaces take turns, and none has more than its share under way, so that a slow
// registry of one does not hold up the others.
type turns struct {
	mu sync.Mutex
	// The fields below are guarded by mu: how many more requests may begin, how many of each namespace are under way, and
	// which ones wait, in order.
	free    int
	busy    map[string]int
	waiting map[string][]chan struct{}
	// order has the namespaces with waiting requests, the one whose turn is next first.
	order []string
}

func newTurns() *turns {
	return &turns{free: concurrency, busy: map[string]int{}, waiting: map[string][]chan struct{}{}}
}

// begin waits for the turn of a namespace, which end ends. It fails if ctx ends before.
func (t *turns) begin(ctx context.Context, namespace string) error {
	t.mu.Lock()
	turn := make(chan struct{})
	if len(t.waiting[namespace]) == 0 {
		t.order = append(t.order, namespace)
	}
	t.waiting[namespace] = append(t.waiting[namespace], turn)
	t.grantLocked()
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := slices.Index(t.waiting[namespace], turn); at >= 0 {
		t.removeLocked(namespace, at)
	} else {
		// It was granted at the same time.
		t.endLocked(namespace)
	}
	return ctx.Err()
}

// end ends a turn.
func (t *turns) end(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.endLocked(namespace)
}

func (t *turns) endLocked(namespace string) {
	t.free++
	if t.busy[namespace]--; t.busy[namespace] == 0 {
		delete(t.busy, namespace)
	}
	t.grantLocked()
}

// grantLocked begins the turns that may begin.
func (t *turns) grantLocked() {
	for t.free > 0 {
		at := slices.IndexFunc(t.order, func(namespace string) bool { return t.busy[namespace] < concurrencyOfOne })
		if at < 0 {
			return
		}
		namespace := t.order[at]
		turn := t.waiting[namespace][0]
		// The last to have another turn is the one that has just had one.
		t.order = append(slices.Delete(t.order, at, at+1), namespace)
		t.removeLocked(namespace, 0)
		t.free--
		t.busy[namespace]++
		close(turn)
	}
}

func (t *turns) removeLocked(namespace string, at int) {
	if left := slices.Delete(t.waiting[namespace], at, at+1); len(left) > 0 {
		t.waiting[namespace] = left
		return
	}
	delete(t.waiting, namespace)
	t.order = slices.DeleteFunc(t.order, func(other string) bool { return other == namespace })
}
