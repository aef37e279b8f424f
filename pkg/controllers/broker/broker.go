// Package broker reconciles Brokers: the data plane keeps their events, and an address accepts them (eventing Broker
// Lifecycle).
package broker

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	eventingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/eventing/v1"
	eventinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/eventing/v1"
	eventinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1"
)

// Reconciler has the events of Brokers kept, and writes the status of Brokers.
type Reconciler struct {
	Client  eventingclient.EventingV1Interface
	Brokers eventinglisters.BrokerLister
	Streams eventing.Streams
	// Address is where a stream accepts events.
	Address  func(eventing.Key) duckv1.Addressable
	Tracker  *destination.Tracker
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
}

// New returns the controller of Brokers.
func New(client eventingclient.EventingV1Interface, informers eventinginformers.Interface, streams eventing.Streams,
	address func(eventing.Key) duckv1.Addressable, resolver *destination.Resolver, recorder record.EventRecorder, now clock.PassiveClock,
) (*reconciler.Controller, error) {
	r := &Reconciler{
		Client:   client,
		Brokers:  informers.Brokers().Lister(),
		Streams:  streams,
		Address:  address,
		Recorder: recorder,
		Clock:    now,
	}
	controller := reconciler.New("broker", r)
	var err error
	if r.Tracker, err = resolver.Track(controller); err != nil {
		return nil, err
	}
	return controller, controller.Watch(informers.Brokers().Informer(), reconciler.KeyOf)
}

// Reconcile brings stream and status in line with a Broker, in this order: what the status promises is served
// already. Brokers of other classes are left to their own controller, once it has written a status.
func (r *Reconciler) Reconcile(ctx context.Context, key types.NamespacedName) error {
	broker, ok, err := reconciler.Listed(r.Brokers.Brokers(key.Namespace), key.Name)
	if err != nil {
		return err
	}
	var stream eventing.Stream
	if ok {
		stream, ok = streams.OfBroker(broker)
	}
	if !ok {
		r.Tracker.Forget(key)
		if err := r.Streams.RemoveStream(ctx, streams.BrokerKey(key)); err != nil {
			return fmt.Errorf("removing the stream of %s: %w", streams.BrokerKey(key), err)
		}
		return r.reportForeign(ctx, broker)
	}
	failed := r.Streams.SetStream(ctx, stream)
	refs := r.Tracker.Begin(key)
	deadLetter, resolved, err := refs.DeadLetterSink(ctx, broker.Spec.Delivery)
	if err != nil {
		return fmt.Errorf("resolving the dead letter sink of %s: %w", stream.Key, err)
	}
	refs.End()

	updated := *broker
	updated.Status = *broker.Status.DeepCopy()
	updated.Status.DeliveryStatus = deadLetter
	// An address that was given out stays: senders are told there to come back.
	if failed == nil {
		address := r.Address(stream.Key)
		updated.Status.Address = &address
	}
	found := append(serving(&updated, failed), resolved)
	reconciler.Observe(&updated.Status.Status, broker.Generation, metav1.NewTime(r.Clock.Now()), dependents, found...)
	unwritten := reconciler.UpdateStatus(ctx, r.Client.Brokers(key.Namespace), broker, &updated)
	if unwritten == nil {
		reconciler.RecordReady(r.Recorder, &updated, broker.Status.Conditions, updated.Status.Conditions)
	}
	if failed != nil {
		failed = fmt.Errorf("setting the stream of %s: %w", stream.Key, failed)
	}
	// Replicas that may not write try the stream again nevertheless.
	return errors.Join(failed, unwritten)
}

// reportForeign writes the status of a Broker of another class, which is nil if the Broker does not exist, unless a user has
// written one.
func (r *Reconciler) reportForeign(ctx context.Context, broker *eventingv1.Broker) error {
	if broker == nil || len(broker.Status.Conditions) > 0 || broker.Status.ObservedGeneration != 0 || broker.Status.Address.GetURL() != "" {
		return nil
	}
	updated := *broker
	updated.Status = *broker.Status.DeepCopy()
	updated.Status.Conditions.Set(reconciler.Unknown(duckv1.ConditionReady, ReasonForeignClass, fmt.Sprintf(
		"The controller of Broker class %q has not reported a status yet.", broker.Annotations[eventingv1.BrokerClassAnnotationKey])), metav1.NewTime(r.Clock.Now()))
	return reconciler.UpdateStatus(ctx, r.Client.Brokers(broker.Namespace), broker, &updated)
}
