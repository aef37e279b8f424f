package process

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisions"
)

// revision holds the backends of a Revision. A Revision with the same name and another UID replaces it while backends of
// the old one are still draining.
type revision struct {
	*revisions.Entry
	runtime *Runtime

	uid      types.UID
	plan     *plan
	replicas int32
	// raised is the time at which replicas left zero.
	raised time.Time
	// refused describes why no backend can run, failure why the newest backends do not become ready.
	refused, failure *workload.Failure
	// changes counts the changes of objects that the plan refers to; awaiting is true if the last failure was caused by one
	// of them.
	changes  int64
	awaiting bool
	// slots has one slot for each desired backend, oldest first.
	slots []*slot
	// backends are all backends with processes, oldest first.
	backends []*backend
	// removed Revisions are deleted once they have no backend.
	removed bool
}

// slot is a desired backend: the current one, or its replacement after a crash.
type slot struct {
	backend *backend
	// crashes is the number of crashes in a row.
	crashes int
	// restart is the timer that starts the replacement, or nil.
	restart clock.Timer
}

func (r *revision) apply(revision *servingv1.Revision) {
	if r.plan != nil && r.uid == revision.UID && !r.removed {
		return
	}
	r.replicas = 0
	r.reconcile()
	r.uid, r.removed = revision.UID, false
	r.failure, r.awaiting = nil, false
	r.plan, r.refused = newPlan(revision)
}

func (r *revision) scale(replicas int32) {
	if r.removed {
		return
	}
	before := r.replicas
	r.replicas = max(replicas, 0)
	if before == 0 && r.replicas > 0 {
		r.raised = r.runtime.clock.Now()
	}
	r.reconcile()
}

func (r *revision) remove(uid types.UID) {
	if r.removed || r.uid != uid {
		return
	}
	r.removed, r.replicas = true, 0
	r.reconcile()
}

// reconcile starts or stops backends until their number is the desired one.
func (r *revision) reconcile() {
	want := int(r.replicas)
	if r.refused != nil || r.runtime.stopping.Load() {
		want = 0
	}
	for len(r.slots) < want {
		s := &slot{}
		r.slots = append(r.slots, s)
		r.start(s)
	}
	for len(r.slots) > want {
		r.deleteSlot(r.surplus())
	}
}

// surplus returns the index of the slot to delete: the newest that is not ready, or else the newest.
func (r *revision) surplus() int {
	for n := len(r.slots) - 1; n >= 0; n-- {
		if b := r.slots[n].backend; b == nil || !b.ready {
			return n
		}
	}
	return len(r.slots) - 1
}

// deleteSlot deletes a slot. A ready backend is drained for up to the request timeout.
func (r *revision) deleteSlot(n int) {
	s := r.slots[n]
	r.slots = slices.Delete(r.slots, n, n+1)
	if s.restart != nil {
		s.restart.Stop()
	}
	b := s.backend
	if b == nil {
		return
	}
	b.slot = nil
	if !b.ready {
		b.stop()
		return
	}
	b.draining = true
	b.deadline = r.runtime.clock.AfterFunc(b.plan.timeout, b.stop)
}

func (r *revision) drained(name string) {
	for _, b := range r.backends {
		if b.name == name && b.draining {
			b.stop()
		}
	}
}

func (r *revision) start(s *slot) {
	s.restart = nil
	s.backend = newBackend(r, s)
	r.backends = append(r.backends, s.backend)
	r.runtime.live.Store(s.backend.name, s.backend)
	r.runtime.running.Go(s.backend.run)
}

const (
	firstRestartDelay = time.Second
	maxRestartDelay   = 5 * time.Minute
	// A backend that was ready for this long resets the count of crashes.
	healthyAfter = 10 * time.Minute
)

// restartDelay returns the delay before a backend is replaced after a number of crashes in a row. The first replacement
// starts at once.
func restartDelay(crashes int) time.Duration {
	return backoff.Delay(crashes-1, firstRestartDelay, maxRestartDelay)
}

// containersStarted records that all containers of a backend run.
func (r *revision) containersStarted(b *backend) {
	r.Lock()
	defer r.Unlock()
	b.startedAt = r.runtime.clock.Now()
}

// startOf returns when the steps of a backend's start happened.
func (r *revision) startOf(name string) (workload.Start, bool) {
	for _, b := range r.backends {
		if b.name == name {
			return workload.Start{Scaled: r.raised, Created: b.created, Started: b.startedAt, Ready: b.readySince}, true
		}
	}
	return workload.Start{}, false
}

// setReady records whether a backend accepts requests.
func (r *revision) setReady(b *backend, ready bool) {
	r.Lock()
	defer r.Unlock()
	if b.slot == nil {
		return
	}
	b.ready = ready
	if ready {
		r.failure, r.awaiting = nil, false
		if b.readySince.IsZero() {
			b.readySince = r.runtime.clock.Now()
		}
	}
}

// failed records that a backend failed, and schedules its replacement. Some of its processes may still run.
func (r *revision) failed(b *backend, failure *workload.Failure) {
	r.Lock()
	defer r.Unlock()
	b.ready = false
	s := b.slot
	if s == nil {
		b.draining = false
		return
	}
	b.slot, s.backend = nil, nil
	now := r.runtime.clock.Now()
	wasReady := !b.readySince.IsZero()
	if wasReady && now.Sub(b.readySince) >= healthyAfter {
		s.crashes = 0
	}
	s.crashes++
	b.logger().Info("Backend failed", "reason", failure.Reason, "message", failure.Message, "crashes", s.crashes)
	if !wasReady || s.crashes > 1 {
		r.failure, r.awaiting = failure, false
	}
	r.startAfter(s, restartDelay(s.crashes))
}

// inputRetryPeriod is the delay before a backend with a missing object is started again, unless a change of the object is
// reported earlier. The kubelet uses the same period.
const inputRetryPeriod = 10 * time.Second

// inputFailed records that a backend did not start because of an object that it refers to. This does not count as a crash: the
// replacement starts when such an object changes.
func (r *revision) inputFailed(b *backend, failure *workload.Failure) {
	r.Lock()
	defer r.Unlock()
	s := b.slot
	if s == nil {
		return
	}
	b.slot, s.backend = nil, nil
	if r.failure == nil || *r.failure != *failure {
		b.logger().Info("Failed to start backend", "reason", failure.Reason, "message", failure.Message)
	}
	r.failure, r.awaiting = failure, true
	if b.changes != r.changes {
		// The object may have changed after the backend read it.
		r.startAfter(s, 0)
		return
	}
	r.startAfter(s, inputRetryPeriod)
}

// objectChanged starts the backends that wait for an object. It returns true if the last backend lacked an object, and none
// is desired now.
func (r *revision) objectChanged(reference objects.Reference) (activate bool) {
	if r.plan == nil || r.removed || !slices.Contains(r.plan.references(), reference) {
		return false
	}
	r.changes++
	for _, b := range r.backends {
		select {
		case b.refresh <- struct{}{}:
		default:
		}
	}
	if !r.awaiting {
		return false
	}
	for _, s := range r.slots {
		if s.backend == nil && s.restart != nil && s.restart.Stop() {
			r.start(s)
		}
	}
	return len(r.slots) == 0
}

// startAfter starts a backend in an empty slot after a delay.
func (r *revision) startAfter(s *slot, delay time.Duration) {
	if delay == 0 {
		r.start(s)
		return
	}
	var timer clock.Timer
	timer = r.runtime.clock.AfterFunc(delay, func() {
		// The clock may hold its lock during this call, so the revision's lock is acquired in another goroutine.
		go func() {
			r.Lock()
			defer r.Unlock()
			// The slot may have been deleted while the timer fired.
			if s.restart == timer && slices.Contains(r.slots, s) {
				r.start(s)
			}
		}()
	})
	s.restart = timer
}

// ended records that all processes of a backend have exited.
func (r *revision) ended(b *backend) {
	r.Lock()
	defer r.Unlock()
	if b.deadline != nil {
		b.deadline.Stop()
	}
	r.backends = slices.DeleteFunc(r.backends, func(other *backend) bool { return other == b })
	r.runtime.live.Delete(b.name)
	select {
	case r.runtime.ended <- struct{}{}:
	default:
	}
	live := func(name string) bool {
		return slices.ContainsFunc(r.backends, func(other *backend) bool { return other.name == name })
	}
	if err := r.runtime.logs.Prune(r.Key, live); err != nil {
		b.logger().Error(err, "Failed to delete old logs")
	}
}

// Observe returns the State of the Revision.
func (r *revision) Observe() *workload.State {
	if r.Unused() {
		return nil
	}
	state := &workload.State{UID: r.uid, Desired: r.replicas, Failure: r.failure, LogURL: r.runtime.logs.URL(r.Key)}
	if r.refused != nil {
		state.Failure = r.refused
	}
	for _, b := range r.backends {
		if b.ready || b.draining {
			state.Instances = append(state.Instances, workload.Instance{Name: b.name, Address: b.address, Draining: b.draining})
		}
		if b.ready && !b.draining {
			state.Ready++
		}
	}
	return state
}

// Unused reports whether the Revision is removed and has no process.
func (r *revision) Unused() bool { return r.removed && len(r.backends) == 0 }

// Deleted deletes the logs of the Revision.
func (r *revision) Deleted() {
	if err := r.runtime.logs.Remove(r.Key); err != nil {
		r.runtime.logger.Error(err, "Failed to delete logs of Revision", "revision", r.Key)
	}
}
