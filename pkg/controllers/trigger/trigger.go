// Package trigger reconciles Triggers: the data plane sends the events of their Broker that match to their subscriber
// (eventing Trigger Lifecycle).
package trigger

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/deliveryhealth"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	eventingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/eventing/v1"
	eventinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/eventing/v1"
	eventinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1"
)

// Reconciler applies Triggers to the data plane as consumers, and writes the status of Triggers.
type Reconciler struct {
	Client    eventingclient.EventingV1Interface
	Triggers  eventinglisters.TriggerLister
	Brokers   eventinglisters.BrokerLister
	Consumers eventing.Consumers
	// Links reports whether Triggers may receive events of Brokers of other namespaces. Call EnqueueLinked when that changes.
	Links func() bool
	// Accounts has the ServiceAccounts of Triggers. Controller sets it.
	Accounts *senderaccount.Accounts
	Tracker  *destination.Tracker
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
}

// Controller returns the controller that runs r, and sets Triggers, Brokers, Accounts and Tracker. Call its Enqueue when the Health of a Trigger's deliveries changes. Run it
// once the controller of Brokers is Primed: Triggers of streams that are not set yet would become not ready.
func (r *Reconciler) Controller(informers eventinginformers.Interface, accounts senderaccount.Source, resolver *destination.Resolver) (*reconciler.Controller, error) {
	triggers, brokers := informers.Triggers(), informers.Brokers()
	err := streams.IndexByBroker(triggers.Informer())
	if err != nil {
		return nil, err
	}
	r.Triggers, r.Brokers = triggers.Lister(), brokers.Lister()
	controller := reconciler.New("trigger", r)
	if r.Tracker, err = resolver.Track(controller); err != nil {
		return nil, err
	}
	if r.Accounts, err = accounts.Of(eventingv1.SchemeGroupVersion.WithKind("Trigger"), controller); err != nil {
		return nil, err
	}
	if err := controller.Watch(triggers.Informer(), reconciler.KeyOf); err != nil {
		return nil, err
	}
	index := triggers.Informer().GetIndexer()
	// A Broker may have many Triggers, which most changes of its status do not affect.
	err = controller.Watch(reconciler.Changes(brokers.Informer(), sameToTriggers), func(obj metav1.Object) []types.NamespacedName {
		triggers, err := streams.TriggersOf(index, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()})
		if err != nil {
			return nil
		}
		keys := make([]types.NamespacedName, 0, len(triggers))
		for _, trigger := range triggers {
			keys = append(keys, types.NamespacedName{Namespace: trigger.Namespace, Name: trigger.Name})
		}
		return keys
	})
	return controller, err
}

// sameToTriggers reports whether two states of a Broker are equivalent for its Triggers.
func sameToTriggers(old, current *eventingv1.Broker) bool {
	return streams.Same(old, current, duckv1.ConditionReady, destination.ConditionDeadLetterSinkResolved) &&
		equality.Semantic.DeepEqual(old.Spec, current.Spec) &&
		equality.Semantic.DeepEqual(old.Status.Address, current.Status.Address) &&
		equality.Semantic.DeepEqual(old.Status.DeliveryStatus, current.Status.DeliveryStatus)
}

// Key is the consumer's key of a Trigger.
func Key(trigger types.NamespacedName) eventing.Key {
	return eventing.Key{Kind: eventing.Trigger, Namespace: trigger.Namespace, Name: trigger.Name}
}

// Reconcile applies a Trigger to its consumer and then to its status, so that the status is true when it is written. Triggers
// of Brokers of other classes are left to their own controller.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	trigger, ok, err := reconciler.Live(r.Triggers.Triggers(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok {
		return reconciler.Result{}, r.release(ctx, key)
	}
	broker := trigger.BrokerName()
	parent, exists, err := reconciler.Listed(r.Brokers.Brokers(broker.Namespace), broker.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !exists || !r.allowed(trigger) {
		parent = nil
	} else if _, ours := streams.OfBroker(parent); !ours {
		return reconciler.Result{}, r.release(ctx, key)
	}
	refs := r.Tracker.Begin(key)
	found, err := resolve(ctx, refs, trigger, parent)
	if err != nil {
		return reconciler.Result{}, fmt.Errorf("resolve references of %s: %w", Key(key), err)
	}
	if !r.allowed(trigger) {
		found.broker = reconciler.False(eventingv1.TriggerConditionBrokerReady, ReasonLinksDisabled,
			"The Broker is in another namespace, but cross-namespace-event-links of config-features is not enabled.")
	}
	refs.End()
	account, unidentified := r.Accounts.Apply(ctx, trigger, request.Writes)
	found.account = account
	failed := r.subscribe(ctx, trigger, parent, &found)

	updated := *trigger
	updated.Status = found.status(trigger, r.Consumers.Health(Key(key)), metav1.NewTime(r.Clock.Now()))
	written, err := request.Status.Write(ctx, reconciler.UpdateOf(r.Client.Triggers(key.Namespace), trigger, &updated))
	if written {
		reconciler.RecordReady(r.Recorder, &updated, trigger.Status.Conditions, updated.Status.Conditions)
		deliveryhealth.Record(r.Recorder, &updated, trigger.Status.Conditions, updated.Status.Conditions)
	}
	return reconciler.Result{}, errors.Join(err, unidentified, failed)
}

// allowed reports whether the settings allow the link of a Trigger to its Broker.
func (r *Reconciler) allowed(trigger *eventingv1.Trigger) bool {
	return !trigger.IsLinked() || r.Links != nil && r.Links()
}

// EnqueueLinked enqueues the Triggers of Brokers of other namespaces.
func (r *Reconciler) EnqueueLinked(controller *reconciler.Controller) {
	controller.Requeue(func(key types.NamespacedName) bool {
		trigger, err := r.Triggers.Triggers(key.Namespace).Get(key.Name)
		return err == nil && trigger.IsLinked()
	})
}

// release removes the consumer and the references of a Trigger that is deleted or belongs to another controller.
func (r *Reconciler) release(ctx context.Context, key types.NamespacedName) error {
	r.Tracker.Forget(key)
	return r.remove(ctx, key)
}
