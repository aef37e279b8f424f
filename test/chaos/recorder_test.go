package chaos

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
)

// recorder records the history of a run.
type recorder struct {
	began time.Time

	mu      sync.Mutex
	history history.History // guarded by mu
	// latest is the latest start of a successful probe, by aspect.
	latest map[string]history.Time // guarded by mu
}

func newRecorder() *recorder {
	return &recorder{began: time.Now(), latest: map[string]history.Time{}}
}

func (r *recorder) now() history.Time { return time.Since(r.began) }

// record changes the history.
func (r *recorder) record(change func(*history.History)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.history)
}

// succeeded records a successful probe of an aspect that started at some time.
func (r *recorder) succeeded(aspect string, start history.Time) {
	end := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Successes = append(r.history.Successes, history.Success{Aspect: aspect, Start: start, End: end})
	r.latest[aspect] = max(r.latest[aspect], start)
}

// origin records the namespace of some content.
func (r *recorder) origin(place, want, got string) {
	r.record(func(h *history.History) {
		h.Origins = append(h.Origins, history.Origin{Place: place, Want: want, Got: got})
	})
}

// recovered reports whether every aspect recovered after a time.
func (r *recorder) recovered(after history.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, aspect := range aspects {
		if r.latest[aspect] < after {
			return false
		}
	}
	return true
}

// names returns the names of all objects of the writers.
func (r *recorder) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]bool{}
	for i := range r.history.Operations {
		_, name, _ := strings.Cut(r.history.Operations[i].Key, "/")
		all[name] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// pending returns the number of watches and deliveries that have not caught up.
func (r *recorder) pending() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.Pending()
}
