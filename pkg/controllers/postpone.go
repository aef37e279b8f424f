package controllers

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
	// postponement is how long a status that tells no news may stay unwritten, perObject how much longer for each other one
	// of its kind, maxPostponement how long at most.
	postponement    = 500 * time.Millisecond
	perObject       = 40 * time.Millisecond
	maxPostponement = 3 * time.Second
)

// errPostponed says that a status was not written because it may differ again soon.
var errPostponed = errors.New("the status is written later")

// postponed are the keys whose status is not written yet, with the time when it will be.
type postponed struct {
	mu  sync.Mutex
	due map[types.NamespacedName]time.Time
}

// Postpone has the status of an object written later where it says no more than why it is not known yet whether the object is
// ready: most such reasons do not last, and each write is one on the disk of each replica. That is half a second, and up to
// three where very many objects are on their way. Call it before Run.
func (c *Controller) Postpone() {
	c.postponed = &postponed{due: map[types.NamespacedName]time.Time{}}
}

type postponing struct{}

// allow lets UpdateStatus postpone the status of a key, unless that was done long enough.
func (p *postponed) allow(ctx context.Context, key types.NamespacedName) context.Context {
	if p == nil || leader.IsFollowing(ctx) {
		return ctx
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if due, found := p.due[key]; found && !time.Now().Before(due) {
		return ctx
	}
	return context.WithValue(ctx, postponing{}, true)
}

// AtOnce returns a context by which nothing is postponed.
func AtOnce(ctx context.Context) context.Context { return context.WithValue(ctx, postponing{}, nil) }

// note keeps in mind when the status of a key is to be written, if err says that it is postponed, and returns how long that is
// from now.
func (p *postponed) note(key types.NamespacedName, err error) time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, errPostponed) {
		delete(p.due, key)
		return 0
	}
	now := time.Now()
	if _, found := p.due[key]; !found {
		p.due[key] = now.Add(min(postponement+time.Duration(len(p.due))*perObject, maxPostponement))
	}
	return p.due[key].Sub(now)
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
