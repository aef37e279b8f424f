package ingress

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/pressure"
)

const (
	// maxAccepted is how many requests' events are made durable at a time, maxAcceptedOfOne how many of those may be of
	// one namespace: others always find room at once, or have their turn with the next that ends.
	maxAccepted, maxAcceptedOfOne = 256, 192
	// maxWaiting is how many more requests of one namespace may wait.
	maxWaiting = 1024
	// Where several namespaces sent events in the last activeFor, those that send most are held back, every adjustEvery by a
	// quarter, as long as processors are scarce, but not below leastAccepted requests at a time.
	activeFor     = 5 * time.Second
	adjustEvery   = 20 * time.Millisecond
	leastAccepted = 4
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
	// active are the namespaces that share, adjusted is when it was looked at last who is held back, and scarce tells whether
	// processors were scarce since.
	active   map[string]*activity
	adjusted time.Time
	scarce   func() bool
	// close ends the use of what scarce asks.
	close func()
}

// activity is what a namespace did lately.
type activity struct {
	last time.Time
	// begun counts the requests since it was adjusted last, limit bounds those under way.
	begun, limit int
}

func newTurns() *turns {
	gauge := pressure.New()
	return &turns{
		free: maxAccepted, busy: map[string]int{}, waiting: map[string][]chan struct{}{}, active: map[string]*activity{},
		scarce: gauge.Scarce, close: gauge.Close,
	}
}

// saw notes that a namespace sends an event, here or to another replica.
func (t *turns) saw(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	a := t.active[namespace]
	if a == nil {
		a = &activity{limit: maxAcceptedOfOne}
		t.active[namespace] = a
	}
	a.last = now
	a.begun++
	if now.Sub(t.adjusted) >= adjustEvery {
		t.adjusted = now
		t.adjust(now)
	}
}

// adjust decides who is held back. mu is held.
func (t *turns) adjust(now time.Time) {
	sum := 0
	for namespace, a := range t.active {
		if now.Sub(a.last) > activeFor {
			delete(t.active, namespace)
			continue
		}
		sum += a.begun
	}
	scarce := len(t.active) > 1 && t.scarce()
	for namespace, a := range t.active {
		switch {
		case len(t.active) < 2:
			a.limit = maxAcceptedOfOne
		case scarce && a.begun*len(t.active) > sum:
			a.limit = max(leastAccepted, min(a.limit, t.busy[namespace])*3/4)
		case !scarce:
			a.limit = min(a.limit+1+a.limit/16, maxAcceptedOfOne)
		}
		a.begun = 0
	}
	t.grant()
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
func (t *turns) may(namespace string) bool {
	limit := maxAcceptedOfOne
	if a := t.active[namespace]; a != nil {
		limit = a.limit
	}
	return t.free > 0 && t.busy[namespace] < limit
}

func (t *turns) begin(namespace string) {
	t.free--
	t.busy[namespace]++
}

// end ends a turn, and begins those that may be after it. mu is held, as in what follows.
func (t *turns) end(namespace string) {
	t.free++
	if t.busy[namespace]--; t.busy[namespace] == 0 {
		delete(t.busy, namespace)
	}
	t.grant()
}

// grant begins the turns that may be.
func (t *turns) grant() {
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
