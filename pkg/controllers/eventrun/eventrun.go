// Package eventrun reconciles EventRuns: it starts and stops the runs of the data plane, and writes their progress.
package eventrun

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	eventingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	eventinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1"
	eventingalphalisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1alpha1"
	messaginglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// Reasons of the condition Succeeded.
const (
	ReasonRunning = "Running"
	// ReasonWaiting means that events cannot be queued at the moment. The message has the reason.
	ReasonWaiting = "Waiting"
	// ReasonEventsFailed means that all other events are queued.
	ReasonEventsFailed = "EventsFailed"
	// ReasonStoreDisabled means that the server has no dead letter store.
	ReasonStoreDisabled = "DeadLetterStoreDisabled"
)

// pollInterval is the time between looks at the progress of a run.
const pollInterval = time.Second

var dependents = []duckv1.ConditionType{eventingv1alpha1.EventRunConditionSucceeded}

// Reconciler runs EventRuns whose Trigger or Subscription gets its events from a Broker or Channel that this replica owns.
type Reconciler struct {
	Client        eventingclient.EventingV1alpha1Interface
	EventRuns     eventingalphalisters.EventRunLister
	Triggers      eventinglisters.TriggerLister
	Subscriptions messaginglisters.SubscriptionLister
	// Runs executes runs. Nil without a dead letter store.
	Runs  eventing.Runs
	Clock clock.PassiveClock
}

// Controller returns the controller that runs r, and sets its listers.
func (r *Reconciler) Controller(informers externalversions.SharedInformerFactory) (*reconciler.Controller, error) {
	runs, triggers, subscriptions := informers.Eventing().V1alpha1().EventRuns(), informers.Eventing().V1().Triggers(), informers.Messaging().V1().Subscriptions()
	r.EventRuns, r.Triggers, r.Subscriptions = runs.Lister(), triggers.Lister(), subscriptions.Lister()
	controller := reconciler.New("eventrun", r)
	controller.Await(triggers.Informer())
	controller.Await(subscriptions.Informer())
	return controller, controller.Watch(runs.Informer(), reconciler.KeyOf)
}

// Reconcile starts or stops the run of an EventRun, and writes its progress.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	run, ok, err := reconciler.Listed(r.EventRuns.EventRuns(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok || !request.Writes || run.DeletionTimestamp != nil || run.Ended() {
		r.stop(key)
		return reconciler.Result{}, nil
	}
	target, ok, err := r.target(run)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok || !metav1.IsControlledBy(run, target) {
		// The garbage collector deletes the EventRun, unless the target is not known yet.
		r.stop(key)
		return reconciler.Result{RequeueAfter: pollInterval}, nil
	}
	updated := *run
	updated.Status = *run.Status.DeepCopy()
	switch {
	case r.Runs == nil:
		r.begin(&updated.Status)
		r.end(&updated, reconciler.False(eventingv1alpha1.EventRunConditionSucceeded, ReasonStoreDisabled, "This server has no dead letter store."))
	case run.Status.StartTime == nil:
		// The end is stored before the first event is queued, so that a run which is interrupted ends at the same event.
		if updated.Status.Last, err = r.Runs.Last(ctx, key.Namespace); err != nil {
			return reconciler.Result{}, fmt.Errorf("find the last dead letter of namespace %s: %w", key.Namespace, err)
		}
		r.begin(&updated.Status)
		r.observe(&updated, eventing.RunProgress{Counted: updated.Status.Last == "", Ended: updated.Status.Last == ""})
	default:
		r.observe(&updated, r.Runs.Start(key, runOf(run, target)))
	}
	_, err = request.Status.Write(ctx, reconciler.UpdateOf(r.Client.EventRuns(key.Namespace), run, &updated))
	return reconciler.Result{RequeueAfter: pollInterval}, err
}

func (r *Reconciler) stop(key types.NamespacedName) {
	if r.Runs != nil {
		r.Runs.Stop(key)
	}
}

// target returns the listed object of the target of an EventRun, and false if it does not exist.
func (r *Reconciler) target(run *eventingv1alpha1.EventRun) (metav1.Object, bool, error) {
	switch target := run.Spec.Target; eventing.Kind(target.Kind) {
	case eventing.Trigger:
		trigger, ok, err := reconciler.Listed(r.Triggers.Triggers(run.Namespace), target.Name)
		return trigger, ok, err
	case eventing.Subscription:
		subscription, ok, err := reconciler.Listed(r.Subscriptions.Subscriptions(run.Namespace), target.Name)
		return subscription, ok, err
	}
	return nil, false, nil
}

// runOf returns the run of an EventRun of a Trigger or Subscription.
func runOf(run *eventingv1alpha1.EventRun, target metav1.Object) eventing.Run {
	spec := eventing.Run{
		ID:       origin.UID(run.UID),
		Consumer: eventing.Key{Kind: eventing.Kind(run.Spec.Target.Kind), Namespace: run.Namespace, Name: run.Spec.Target.Name}, ConsumerUID: origin.UID(target.GetUID()),
		Last: run.Status.Last, Begin: run.Status.Total != nil,
	}
	if redrive := run.Spec.Redrive; redrive != nil {
		spec.Filters, spec.Rate = filtersOf(redrive.Selector), int(ptr.Deref(redrive.Rate, 0))
	}
	return spec
}

// filtersOf returns the filters of a selector.
func filtersOf(selector *eventingv1alpha1.EventSelector) []eventing.Filter {
	if selector == nil {
		return nil
	}
	filters := streams.FiltersOf(selector.Filters)
	exact := map[string]string{}
	for name, value := range map[string]string{"id": selector.ID, "source": selector.Source, "type": selector.Type} {
		if value != "" {
			exact[name] = value
		}
	}
	if len(exact) > 0 {
		filters = append(filters, eventing.Filter{Exact: exact})
	}
	return filters
}

// begin records the start of a run.
func (r *Reconciler) begin(status *eventingv1alpha1.EventRunStatus) {
	status.StartTime, status.Phase = ptr.To(metav1.NewTime(r.Clock.Now())), eventingv1alpha1.EventRunRunning
}

// observe records the progress of a run. Events that a run before the last start had queued are no longer among the remaining ones.
func (r *Reconciler) observe(run *eventingv1alpha1.EventRun, progress eventing.RunProgress) {
	const t = eventingv1alpha1.EventRunConditionSucceeded
	status := &run.Status
	if progress.Counted {
		if status.Total == nil {
			status.Total = ptr.To(progress.Remaining)
		}
		status.Queued, status.Failed = max(*status.Total-progress.Remaining, 0)+progress.Queued, progress.Failed
	}
	switch {
	case progress.Ended && progress.Failed > 0:
		r.end(run, reconciler.False(t, ReasonEventsFailed, fmt.Sprintf("%d events are too large to be delivered again; they remain dead letters.", progress.Failed)))
	case progress.Ended:
		r.end(run, reconciler.True(t))
	case progress.Waiting != "":
		r.set(run, reconciler.Unknown(t, ReasonWaiting, "The next event waits: "+progress.Waiting))
	default:
		r.set(run, reconciler.Unknown(t, ReasonRunning, ""))
	}
}

// end records the end of a run.
func (r *Reconciler) end(run *eventingv1alpha1.EventRun, succeeded duckv1.Condition) {
	run.Status.Phase = eventingv1alpha1.EventRunSucceeded
	if succeeded.Status == corev1.ConditionFalse {
		run.Status.Phase = eventingv1alpha1.EventRunFailed
	}
	run.Status.CompletionTime = ptr.To(metav1.NewTime(r.Clock.Now()))
	r.set(run, succeeded)
}

func (r *Reconciler) set(run *eventingv1alpha1.EventRun, succeeded duckv1.Condition) {
	reconciler.Observe(&run.Status.Status, run.Generation, metav1.NewTime(r.Clock.Now()), dependents, succeeded)
}
