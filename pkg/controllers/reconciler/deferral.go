package reconciler

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/leader"
)

const (
	// postponement is how long a status that tells no news stays unwritten, and maxPostponement how long where more than few
	// objects of its namespace are on their way.
	postponement    = 500 * time.Millisecond
	maxPostponement = 30 * time.Second
	few             = 10
)

// errPostponed says that a status was not written because it may differ again soon.
var errPostponed = errors.New("the status is written later")

// postponed are the keys whose status is not written yet, by namespace: with the time since when.
type postponed struct {
	mu    sync.Mutex
	since map[string]map[string]time.Time
}

func newPostponed() *postponed { return &postponed{since: map[string]map[string]time.Time{}} }

// Postpone has the status of an object written later where it says no more than why it is not known yet whether the object is
// ready: most such reasons do not last, and each write is one on the disk of each replica. That is half a second. Where many
// objects of a namespace are on their way they wait until few are left, or for half a minute. Call it before Run.
func (c *Controller) Postpone() {
	c.postponed = newPostponed()
}

type postponing struct{}

// allow lets UpdateStatus postpone the status of a key, unless that was done long enough.
func (p *postponed) allow(ctx context.Context, key types.NamespacedName) context.Context {
	if p == nil || leader.IsFollowing(ctx) {
		return ctx
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if since, found := p.since[key.Namespace][key.Name]; found && time.Since(since) >= p.patience(key.Namespace) {
		return ctx
	}
	return context.WithValue(ctx, postponing{}, true)
}

// AtOnce returns a context by which nothing is postponed.
func AtOnce(ctx context.Context) context.Context { return context.WithValue(ctx, postponing{}, nil) }

// patience returns how long a status of a namespace may be postponed. The lock is held.
func (p *postponed) patience(namespace string) time.Duration {
	if len(p.since[namespace]) > few {
		return maxPostponement
	}
	return postponement
}

// note keeps in mind that the status of a key is postponed, if err says so, and returns how long that is from now. Else it
// returns the keys that need not wait for so many others any more.
func (p *postponed) note(key types.NamespacedName, err error) (wait time.Duration, due []types.NamespacedName) {
	if p == nil {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	others := p.since[key.Namespace]
	since, found := others[key.Name]
	switch {
	case errors.Is(err, errPostponed):
		if others == nil {
			others = map[string]time.Time{}
			p.since[key.Namespace] = others
		}
		if !found {
			since = time.Now()
			others[key.Name] = since
		}
		return p.patience(key.Namespace) - time.Since(since), nil
	case found:
		delete(others, key.Name)
		switch len(others) {
		case 0:
			delete(p.since, key.Namespace)
		case few:
			for name := range others {
				due = append(due, types.NamespacedName{Namespace: key.Namespace, Name: name})
			}
		}
	}
	return 0, due
}

// mayWait tells whether a status can wait to be written: Ready is Unknown in it and in the one before, which is of the same
// generation, or there is none.
func mayWait(observed, current any) bool {
	before, now := statusOf(observed), statusOf(current)
	if before == nil || now == nil {
		return false
	}
	undetermined := func(s *duckv1.Status) bool {
		ready := s.Conditions.Get(duckv1.ConditionReady)
		return ready != nil && ready.Status == corev1.ConditionUnknown
	}
	first := before.ObservedGeneration == 0 && len(before.Conditions) == 0
	return undetermined(now) && (first || before.ObservedGeneration == now.ObservedGeneration && undetermined(before))
}

// statusOf returns what the status of an object has in common with that of other kinds, or nil.
func statusOf(object any) *duckv1.Status {
	status := reflect.Indirect(reflect.ValueOf(object)).FieldByName("Status")
	if !status.IsValid() || !status.FieldByName("Status").IsValid() {
		return nil
	}
	common, ok := status.FieldByName("Status").Interface().(duckv1.Status)
	if !ok {
		return nil
	}
	return &common
}
