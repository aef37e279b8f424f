// Package eventrun reconciles EventRuns: it starts and stops the runs of the data plane, and writes their progress.
package eventrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
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
	// ReasonArchiveDisabled means that the server has no archives.
	ReasonArchiveDisabled = "ArchiveDisabled"
	// ReasonArchiveReplaced means that the archive was deleted during a replay.
	ReasonArchiveReplaced = "ArchiveReplaced"
	// ReasonPositionInvalid means that the status was changed.
	ReasonPositionInvalid = "PositionInvalid"
	// ReasonEventsEvicted means that events were deleted from the archive before a replay had read them. All others are queued.
	ReasonEventsEvicted = "EventsEvicted"
)

// pollInterval is the time between looks at the progress of a run.
const pollInterval = time.Second

var dependents = []duckv1.ConditionType{eventingv1alpha1.EventRunConditionSucceeded}

// Reconciler runs EventRuns whose target is a Broker that this replica owns, or gets its events from a Broker or Channel that this replica owns.
type Reconciler struct {
	Client    eventingclient.EventingV1alpha1Interface
	EventRuns eventingalphalisters.EventRunLister
	Triggers  eventinglisters.TriggerLister
	// TriggerIndex has the Triggers, for streams.TriggersOf.
	TriggerIndex  cache.Indexer
	Brokers       eventinglisters.BrokerLister
	Subscriptions messaginglisters.SubscriptionLister
	// Runs executes runs. Nil without a dead letter store and archives.
	Runs eventing.Runs
	// DeadLetters is true if the server has a dead letter store, Archives if it has archives.
	DeadLetters, Archives bool
	Clock                 clock.PassiveClock

	destinations *destination.Tracker
}

// Controller returns the controller that runs r, and sets its listers. resolver finds the addresses of destinations.
func (r *Reconciler) Controller(informers externalversions.SharedInformerFactory, resolver *destination.Resolver) (*reconciler.Controller, error) {
	runs, subscriptions := informers.Eventing().V1alpha1().EventRuns(), informers.Messaging().V1().Subscriptions()
	triggers, brokers := informers.Eventing().V1().Triggers(), informers.Eventing().V1().Brokers()
	r.EventRuns, r.Triggers, r.Brokers, r.Subscriptions = runs.Lister(), triggers.Lister(), brokers.Lister(), subscriptions.Lister()
	if err := streams.IndexByBroker(triggers.Informer()); err != nil {
		return nil, err
	}
	r.TriggerIndex = triggers.Informer().GetIndexer()
	controller := reconciler.New("eventrun", r)
	var err error
	if r.destinations, err = resolver.Track(controller); err != nil {
		return nil, err
	}
	controller.Await(triggers.Informer())
	controller.Await(brokers.Informer())
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
	spec, ok, err := r.runOf(run)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok {
		// The garbage collector deletes the EventRun, unless its target is not known yet.
		r.stop(key)
		return reconciler.Result{RequeueAfter: pollInterval}, nil
	}
	updated := *run
	updated.Status = *run.Status.DeepCopy()
	const succeeded = eventingv1alpha1.EventRunConditionSucceeded
	switch replay := spec.Replay != nil; {
	case replay && !r.Archives:
		r.begin(&updated.Status)
		r.end(&updated, reconciler.False(succeeded, ReasonArchiveDisabled, "This server has no archives of Brokers."))
	case !replay && !r.DeadLetters:
		r.begin(&updated.Status)
		r.end(&updated, reconciler.False(succeeded, ReasonStoreDisabled, "This server has no dead letter store."))
	case replay:
		if run.Status.StartTime == nil {
			r.begin(&updated.Status)
		}
		ready, err := r.serves(&spec)
		if err != nil {
			return reconciler.Result{}, err
		}
		if !ready {
			r.set(&updated, reconciler.Unknown(succeeded, ReasonWaiting, "The Triggers of the Broker are not ready yet."))
			break
		}
		r.observeReplay(&updated, r.Runs.Start(key, spec))
	case run.Status.StartTime == nil:
		// The end is stored before the first event is queued, so that a run which is interrupted ends at the same event.
		if updated.Status.Last, err = r.Runs.Last(ctx, key.Namespace); err != nil {
			return reconciler.Result{}, fmt.Errorf("find the last dead letter of namespace %s: %w", key.Namespace, err)
		}
		r.begin(&updated.Status)
		r.observe(&updated, eventing.RunProgress{Counted: updated.Status.Last == "", Ended: updated.Status.Last == ""})
	default:
		var unresolved *destination.Unresolved
		if spec.Destination, unresolved, err = r.destination(ctx, key, run.Spec.Redrive); err != nil {
			return reconciler.Result{}, err
		}
		if unresolved != nil {
			r.Runs.Stop(key)
			r.set(&updated, reconciler.Unknown(succeeded, ReasonWaiting, "The destination has no address: "+unresolved.Message))
			break
		}
		r.observe(&updated, r.Runs.Start(key, spec))
	}
	_, err = request.Status.Write(ctx, reconciler.UpdateOf(r.Client.EventRuns(key.Namespace), run, &updated))
	return reconciler.Result{RequeueAfter: pollInterval}, err
}

// destination returns the address of the destination of a redrive; nil if it has none. unresolved is why it is not known.
func (r *Reconciler) destination(ctx context.Context, key types.NamespacedName, redrive *eventingv1alpha1.EventRunRedrive) (to *eventing.Endpoint, unresolved *destination.Unresolved, err error) {
	if redrive == nil || redrive.Destination == nil {
		return nil, nil, nil
	}
	refs := r.destinations.Begin(key)
	found, err := refs.Resolve(ctx, redrive.Destination)
	if unresolved, ok := destination.AsUnresolved(err); ok {
		refs.End()
		return nil, unresolved, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("find the destination of EventRun %s: %w", key, err)
	}
	refs.End()
	return &eventing.Endpoint{URL: found.URL, CACerts: ptr.Deref(found.CACerts, "")}, nil, nil
}

func (r *Reconciler) stop(key types.NamespacedName) {
	r.destinations.Forget(key)
	if r.Runs != nil {
		r.Runs.Stop(key)
	}
}

// runOf returns the run of an EventRun. ok is false if its target, or the Broker of a replay, is not known or is another one than at its creation.
func (r *Reconciler) runOf(run *eventingv1alpha1.EventRun) (spec eventing.Run, ok bool, err error) {
	target, ok, err := r.target(run)
	if err != nil || !ok || !metav1.IsControlledBy(run, target) {
		return spec, false, err
	}
	spec.ID = origin.UID(run.UID)
	if kind := eventing.Kind(run.Spec.Target.Kind); kind != eventing.Broker {
		spec.Consumer = eventing.Key{Kind: kind, Namespace: run.Namespace, Name: run.Spec.Target.Name}
		spec.ConsumerUID = origin.UID(target.GetUID())
	}
	if replay := run.Spec.Replay; replay != nil {
		broker, ok, err := reconciler.Listed(r.Brokers.Brokers(run.Namespace), replay.Broker)
		if err != nil || !ok {
			return spec, false, err
		}
		spec.Replay = &eventing.Replay{
			Broker: streams.BrokerKey(types.NamespacedName{Namespace: broker.Namespace, Name: broker.Name}), BrokerUID: origin.UID(broker.UID),
			To: replay.To.Time, Stored: storedOf(&run.Status),
		}
		if replay.From != nil {
			spec.Replay.From = replay.From.Time
		}
		spec.Filters, spec.Rate = filtersOf(replay.Selector), int(ptr.Deref(replay.Rate, 0))
		return spec, true, nil
	}
	spec.Last, spec.Begin = run.Status.Last, run.Status.Total != nil
	if redrive := run.Spec.Redrive; redrive != nil {
		spec.Filters, spec.Rate = filtersOf(redrive.Selector), int(ptr.Deref(redrive.Rate, 0))
	}
	return spec, spec.Consumer.Name != "", nil
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
	case eventing.Broker:
		broker, ok, err := reconciler.Listed(r.Brokers.Brokers(run.Namespace), target.Name)
		return broker, ok, err
	}
	return nil, false, nil
}

// storedOf returns the stored progress of a replay.
func storedOf(status *eventingv1alpha1.EventRunStatus) eventing.ReplayProgress {
	stored := eventing.ReplayProgress{Position: status.Position, Queued: status.Queued, Failed: status.Failed, Evicted: status.Evicted}
	if status.LastEventTime != nil {
		stored.LastEvent = status.LastEventTime.Time
	}
	return stored
}

// serves reports whether all Triggers that are subscribed to the Broker of a run get its events. After a start or a handover, some are set
// later than the Broker: they would miss the events of a replay to all Triggers.
func (r *Reconciler) serves(run *eventing.Run) (bool, error) {
	if run.Consumer.Name != "" {
		// Events wait for it.
		return true, nil
	}
	broker := run.Replay.Broker
	triggers, err := streams.TriggersOf(r.TriggerIndex, types.NamespacedName{Namespace: broker.Namespace, Name: broker.Name})
	if err != nil {
		return false, err
	}
	for _, t := range triggers {
		if t.DeletionTimestamp != nil {
			continue
		}
		subscribed := t.Status.Conditions.Get(eventingv1.TriggerConditionSubscriptionReady)
		key := eventing.Key{Kind: eventing.Trigger, Namespace: t.Namespace, Name: t.Name}
		if subscribed != nil && subscribed.Status == corev1.ConditionTrue && !r.Runs.Serves(key, origin.UID(t.UID)) {
			return false, nil
		}
	}
	return true, nil
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
		r.end(run, reconciler.False(t, ReasonEventsFailed, fmt.Sprintf("%d events are too large, or the destination does not accept them; they remain dead letters.", progress.Failed)))
	case progress.Ended:
		r.end(run, reconciler.True(t))
	case progress.Waiting != "":
		r.set(run, reconciler.Unknown(t, ReasonWaiting, "The next event waits: "+progress.Waiting))
	default:
		r.set(run, reconciler.Unknown(t, ReasonRunning, ""))
	}
}

// observeReplay records the progress of a replay.
func (r *Reconciler) observeReplay(run *eventingv1alpha1.EventRun, progress eventing.RunProgress) {
	const t = eventingv1alpha1.EventRunConditionSucceeded
	status, replay := &run.Status, progress.Replay
	status.Position, status.Queued, status.Failed, status.Evicted = replay.Position, replay.Queued, replay.Failed, replay.Evicted
	if !replay.LastEvent.IsZero() {
		// Stored times have seconds: another value would be a change each time.
		status.LastEventTime = ptr.To(metav1.NewTime(replay.LastEvent.Truncate(time.Second)))
	}
	succeeded := reconciler.Unknown(t, ReasonRunning, "")
	switch {
	case errors.Is(progress.Err, eventing.ErrArchiveReplaced):
		succeeded = reconciler.False(t, ReasonArchiveReplaced, "The archive of the Broker was deleted before all events were queued.")
	case progress.Err != nil:
		succeeded = reconciler.False(t, ReasonPositionInvalid, progress.Err.Error())
	case progress.Ended && replay.Failed > 0:
		succeeded = reconciler.False(t, ReasonEventsFailed, fmt.Sprintf("%d events are too large to be delivered again; they remain in the archive.", replay.Failed))
	case progress.Ended:
		succeeded = reconciler.True(t)
		if replay.Evicted {
			succeeded.Reason, succeeded.Message = ReasonEventsEvicted, "Some events were deleted from the archive before they were read: it was full, or they were too old."
		}
	case progress.Waiting != "":
		succeeded = reconciler.Unknown(t, ReasonWaiting, "The next event waits: "+progress.Waiting)
	}
	if progress.Ended {
		r.end(run, succeeded)
		return
	}
	r.set(run, succeeded)
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
