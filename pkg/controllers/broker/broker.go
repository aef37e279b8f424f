// Package broker reconciles Brokers: the data plane keeps their events, and an address accepts them (eventing Broker
// Lifecycle).
package broker

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/authorization"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	eventingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/eventing/v1"
	eventinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/eventing/v1"
	eventinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1"
)

// Reconciler creates the streams of Brokers, and writes the status of Brokers.
type Reconciler struct {
	Client  eventingclient.EventingV1Interface
	Brokers eventinglisters.BrokerLister
	Streams eventing.Streams
	// Addresses returns the addresses at which a stream accepts events.
	Addresses func(eventing.Key) duckv1.AddressStatus
	// Policies finds the EventPolicies of Brokers.
	Policies *authorization.Policies
	// Archiving configures the archives of Brokers. Nil reads no configuration.
	Archiving *Archiving
	Tracker   *destination.Tracker
	Recorder  record.EventRecorder
	Clock     clock.PassiveClock
}

// Controller returns the controller that runs r, and sets Brokers, Policies and Tracker.
func (r *Reconciler) Controller(informers eventinginformers.Interface, policies authorization.Source, resolver *destination.Resolver) (*reconciler.Controller, error) {
	r.Brokers = informers.Brokers().Lister()
	controller := reconciler.New("broker", r)
	var err error
	if r.Tracker, err = resolver.Track(controller); err != nil {
		return nil, err
	}
	r.Policies, err = policies.Of(eventingv1.SchemeGroupVersion.WithKind("Broker").GroupKind(), controller, informers.Brokers().Informer())
	if err != nil {
		return nil, err
	}
	if err := r.watchConfigMaps(controller); err != nil {
		return nil, err
	}
	return controller, controller.Watch(informers.Brokers().Informer(), reconciler.KeyOf)
}

// Reconcile applies a Broker to its stream and then to its status, so that the status promises only working addresses. Brokers of
// other classes are left to their own controller once it has written a status.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	broker, ok, err := reconciler.Listed(r.Brokers.Brokers(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	var stream eventing.Stream
	if ok {
		stream, ok = streams.OfBroker(broker)
	}
	if !ok {
		r.Tracker.Forget(key)
		r.Archiving.remove(streams.BrokerKey(key))
		if err := r.Streams.RemoveStream(ctx, streams.BrokerKey(key)); err != nil {
			return reconciler.Result{}, fmt.Errorf("remove stream of %s: %w", streams.BrokerKey(key), err)
		}
		return reconciler.Result{}, r.reportForeign(ctx, request.Status, broker)
	}
	policies, err := r.Policies.Of(broker)
	if err != nil {
		return reconciler.Result{}, err
	}
	stream.Senders = policies.Senders
	// No event is accepted before it is known whether it is archived.
	archived, requeue, err := r.Archiving.apply(ctx, broker, &stream)
	if err != nil {
		return reconciler.Result{}, fmt.Errorf("set archive of %s: %w", stream.Key, err)
	}
	failed := r.Streams.SetStream(ctx, stream)
	refs := r.Tracker.Begin(key)
	deadLetter, resolved, err := refs.DeadLetterSink(ctx, broker.Spec.Delivery)
	if err != nil {
		return reconciler.Result{}, fmt.Errorf("resolve dead letter sink of %s: %w", stream.Key, err)
	}
	refs.End()

	updated := *broker
	updated.Status = *broker.Status.DeepCopy()
	updated.Status.DeliveryStatus, updated.Status.AppliedEventPoliciesStatus = deadLetter, policies.Status
	// A published address stays: it tells senders to retry.
	if failed == nil {
		updated.Status.AddressStatus = r.Addresses(stream.Key)
	}
	found := append(serving(&updated, failed), resolved, policies.Condition)
	observeArchive(&updated.Status.Conditions, archived, metav1.NewTime(r.Clock.Now()))
	reconciler.Observe(&updated.Status.Status, broker.Generation, metav1.NewTime(r.Clock.Now()), dependents, found...)
	written, err := request.Status.Write(ctx, reconciler.UpdateOf(r.Client.Brokers(key.Namespace), broker, &updated))
	if written {
		reconciler.RecordReady(r.Recorder, &updated, broker.Status.Conditions, updated.Status.Conditions)
	}
	if failed != nil {
		failed = fmt.Errorf("set stream of %s: %w", stream.Key, failed)
	}
	// A stream that could not be set is retried on every replica.
	return reconciler.Result{RequeueAfter: requeue}, errors.Join(failed, err)
}

// reportForeign writes the first status of a Broker of another class, unless its controller has. broker is nil if it does not exist.
func (r *Reconciler) reportForeign(ctx context.Context, status *reconciler.StatusWriter, broker *eventingv1.Broker) error {
	if broker == nil || len(broker.Status.Conditions) > 0 || broker.Status.ObservedGeneration != 0 || broker.Status.Address.GetURL() != "" {
		return nil
	}
	updated := *broker
	updated.Status = *broker.Status.DeepCopy()
	updated.Status.Conditions.Set(reconciler.Unknown(duckv1.ConditionReady, ReasonForeignClass, fmt.Sprintf(
		"The controller of Broker class %q has not reported a status yet.", broker.Annotations[eventingv1.BrokerClassAnnotationKey])), metav1.NewTime(r.Clock.Now()))
	_, err := status.Write(ctx, reconciler.UpdateOf(r.Client.Brokers(broker.Namespace), broker, &updated))
	return err
}
