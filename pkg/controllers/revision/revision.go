// Package revision reconciles Revisions: it passes them to the runtime and to the data plane, and writes their observed state to
// their status (serving 7.3, 9.4.3).
package revision

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// ReasonScaled is the reason of Events about a new desired scale.
const ReasonScaled = "Scaled"

// Sink is a part of the data plane that needs the Revisions.
type Sink interface {
	SetRevision(revision *routing.Revision)
	DeleteRevision(key routing.Key)
}

// Reconciler applies Revisions to the runtime and the data plane, and writes their status.
type Reconciler struct {
	Client   servingclient.RevisionsGetter
	Lister   servinglisters.RevisionLister
	Runtime  workload.Runtime
	Sinks    []Sink
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
	Settings func() *settings.Settings
	// Since is the start time of this process. The progress deadline of earlier Revisions starts then, and no scale is written
	// shortly after it, while the runtime still lists its workload.
	Since time.Time

	// mu guards known.
	mu    sync.Mutex
	known map[types.NamespacedName]*knowledge
}

// knowledge is the state of a Revision between two calls. Only the call for its key accesses it, and only one such call runs at a time.
type knowledge struct {
	// published is the Revision in the form that the sinks have.
	published *routing.Revision
	// wrote is the time of the last write of the status.
	wrote time.Time
}

// Controller returns the controller that runs r, and sets Lister and Since. Call its Enqueue whenever the workload observes another
// State of a Revision.
func (r *Reconciler) Controller(informers servinginformers.Interface) (*reconciler.Controller, error) {
	r.Lister, r.Since = informers.Revisions().Lister(), r.Clock.Now()
	controller := reconciler.New("revision", r)
	if err := controller.Watch(informers.Revisions().Informer(), reconciler.KeyOf); err != nil {
		return nil, err
	}
	return controller, nil
}

// Reconcile applies a Revision to the runtime and the data plane, and writes the observed state to its status.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	revision, ok, err := reconciler.Live(r.Lister.Revisions(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok {
		return reconciler.Result{}, r.remove(ctx, key, request.Writes)
	}
	if err := r.Runtime.Apply(ctx, revision, request.Writes); err != nil {
		return reconciler.Result{}, fmt.Errorf("run Revision %q: %w", key, err)
	}
	now, current := r.Clock.Now(), r.Settings()
	status, next := observe(facts{
		revision: revision,
		state:    r.state(key, revision),
		initial:  current.InitialScaleOf(revision.Annotations),
		deadline: progressDeadline(revision.Annotations, current),
		since:    r.Since,
		now:      now,
	})
	// The sinks get a Revision before its status says that it is ready.
	known := r.publish(key, routed(revision, started(&status)))
	rest, err := r.write(ctx, request.Status, revision, status, known, now)
	if rest > 0 && (next == 0 || rest < next) {
		next = rest
	}
	return reconciler.Result{RequeueAfter: next}, err
}

// state returns the State of a Revision that the runtime observes, or nil if it has not observed it yet.
func (r *Reconciler) state(key types.NamespacedName, revision *servingv1.Revision) *workload.State {
	state, ok := r.Runtime.State(key)
	if !ok || state.UID != revision.UID {
		return nil
	}
	return &state
}

// remove removes a deleted Revision from the sinks and the runtime.
func (r *Reconciler) remove(ctx context.Context, key types.NamespacedName, writes bool) error {
	for _, sink := range r.Sinks {
		sink.DeleteRevision(key)
	}
	r.mu.Lock()
	delete(r.known, key)
	r.mu.Unlock()
	state, ok := r.Runtime.State(key)
	if !ok {
		return nil
	}
	if err := r.Runtime.Remove(ctx, key, state.UID, writes); err != nil {
		return fmt.Errorf("remove Revision %q: %w", key, err)
	}
	return nil
}

// publish passes a Revision to the sinks, unless they have an equal one.
func (r *Reconciler) publish(key types.NamespacedName, revision *routing.Revision) *knowledge {
	r.mu.Lock()
	known := r.known[key]
	if known == nil {
		if r.known == nil {
			r.known = map[types.NamespacedName]*knowledge{}
		}
		known = &knowledge{wrote: r.Since}
		r.known[key] = known
	}
	r.mu.Unlock()
	if reflect.DeepEqual(known.published, revision) {
		return known
	}
	known.published = revision
	for _, sink := range r.Sinks {
		sink.SetRevision(revision)
	}
	return known
}

// write stores a status, unless it is stored already. If only the scale differs, the status is not written until it has been stored
// unchanged for an interval, so that a scale that changes quickly is written once; write returns the rest of that interval.
func (r *Reconciler) write(ctx context.Context, writer *reconciler.StatusWriter, observed *servingv1.Revision, status servingv1.RevisionStatus,
	known *knowledge, now time.Time,
) (rest time.Duration, err error) {
	if equality.Semantic.DeepEqual(observed.Status, status) {
		return 0, nil
	}
	if rest := known.wrote.Add(scaleInterval(&status)).Sub(now); rest > 0 && onlyScale(&observed.Status, &status) {
		return rest, nil
	}
	current := *observed
	current.Status = status
	write := writer.DeferUnknown
	if !equality.Semantic.DeepEqual(observed.Status.ContainerStatuses, status.ContainerStatuses) {
		// The next leader must run the same images.
		write = writer.Write
	}
	written, err := write(ctx, reconciler.UpdateOf(r.Client.Revisions(observed.Namespace), observed, &current))
	if written {
		known.wrote = now
		r.record(&current, &observed.Status)
	}
	return 0, err
}

// record records Events about the changes of a write.
func (r *Reconciler) record(current *servingv1.Revision, before *servingv1.RevisionStatus) {
	from, to := ptr.Deref(before.DesiredReplicas, 0), ptr.Deref(current.Status.DesiredReplicas, 0)
	if from != to {
		r.Recorder.Eventf(current, corev1.EventTypeNormal, ReasonScaled, "Scaled from %d to %d instances", from, to)
	}
	reconciler.RecordReady(r.Recorder, current, before.Conditions, current.Status.Conditions)
}
