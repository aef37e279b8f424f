package kubernetes

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisions"
)

// pods are the Pods labeled with the name of a Revision, with the tasks that observe them. The lock of entry guards them.
type pods struct {
	entry   *revisions.Entry
	runtime *Runtime
	byUID   map[types.UID]*pod
}

// of returns the Pods of a Revision, oldest first, including Pods from before a restore.
func (s *pods) of(uid types.UID) []*pod {
	sorted := slices.SortedFunc(maps.Values(s.byUID), oldestFirst)
	return slices.DeleteFunc(sorted, func(p *pod) bool { return p.Labels[podspec.RevisionUIDLabelKey] != string(origin.UID(uid)) })
}

// oldestFirst compares Pods by creation time.
func oldestFirst(a, b *pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// podChanged handles a Pod from the watch.
func (rt *Runtime) podChanged(object *corev1.Pod, gone bool) {
	key, ok := keyOf(object)
	if !ok {
		return
	}
	r := rt.revisions.LockOrCreate(key)
	defer r.Unlock()
	if gone {
		r.pods.delete(object.UID)
		return
	}
	r.pods.update(rt.ctx, object)
}

func (s *pods) delete(uid types.UID) {
	if p := s.byUID[uid]; p != nil {
		p.stopTasks()
		delete(s.byUID, uid)
	}
}

// update stores a Pod, and starts or stops its tasks.
func (s *pods) update(ctx context.Context, object *corev1.Pod) {
	p := s.byUID[object.UID]
	if p == nil {
		p = newPod()
		s.byUID[object.UID] = p
	}
	p.update(object)
	p.observeStart(s.runtime.clock.Now())
	p.probing.run(ctx, p.wantsProbe(), func(ctx context.Context) { s.probe(ctx, p) })
	p.inspecting.run(ctx, p.creating(), func(ctx context.Context) { s.inspect(ctx, p) })
}

// StartOf returns when this replica observed the steps of a Pod's start. The time of the scale is the one at which the Deployment last left
// zero.
func (rt *Runtime) StartOf(key types.NamespacedName, backend string) (workload.Start, bool) {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return workload.Start{}, false
	}
	defer r.Unlock()
	for _, p := range r.pods.byUID {
		if p.Name == backend {
			start := p.start
			start.Scaled = r.deployment.raised
			return start, true
		}
	}
	return workload.Start{}, false
}

// Drained reports that this replica has no request left at a draining backend. It has no effect if Options.Drain is set.
func (rt *Runtime) Drained(key types.NamespacedName, backend string) {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return
	}
	defer r.Unlock()
	for _, p := range r.pods.byUID {
		if p.Name == backend && p.draining() {
			p.drained()
		}
	}
}
