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

// postponement is how long a status that tells no news may stay unwritten.
const postponement = 500 * time.Millisecond

// errPostponed says that a status was not written because it may differ again soon.
var errPostponed = errors.New("the status is written later")

// postponed are the keys whose status is not written yet.
type postponed struct {
	mu    sync.Mutex
	since map[types.NamespacedName]time.Time
}

// Postpone has the status of an object written up to half a second later where it says no more than another reason why it is
// not known yet whether the object is ready: most such reasons do not last, and each write is one on the disk of each
// replica. Call it before Run.
func (c *Controller) Postpone() {
	c.postponed = &postponed{since: map[types.NamespacedName]time.Time{}}
}

type postponing struct{}

// allow lets UpdateStatus postpone the status of a key, unless that was done long enough.
func (p *postponed) allow(ctx context.Context, key types.NamespacedName) context.Context {
	if p == nil || leader.IsFollowing(ctx) {
		return ctx
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if since, found := p.since[key]; found && time.Since(since) >= postponement {
		return ctx
	}
	return context.WithValue(ctx, postponing{}, true)
}

// AtOnce returns a context by which nothing is postponed.
func AtOnce(ctx context.Context) context.Context { return context.WithValue(ctx, postponing{}, nil) }

// note keeps in mind since when the status of a key is postponed, if err says that it is.
func (p *postponed) note(key types.NamespacedName, err error) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, errPostponed) {
		delete(p.since, key)
	} else if _, found := p.since[key]; !found {
		p.since[key] = time.Now()
	}
}

// mayWait tells whether a status can wait to be written: it is of the generation that the one before is of, and Ready is
// Unknown in both.
func mayWait(observed, current any) bool {
	before, now := statusOf(observed), statusOf(current)
	if before == nil || now == nil || before.ObservedGeneration != now.ObservedGeneration {
		return false
	}
	undetermined := func(s *duckv1.Status) bool {
		ready := s.Conditions.Get(duckv1.ConditionReady)
		return ready != nil && ready.Status == corev1.ConditionUnknown
	}
	return undetermined(before) && undetermined(now)
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
