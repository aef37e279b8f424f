package trigger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/deliveryhealth"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Reasons of the conditions of a Trigger, in addition to the reasons of destinations.
const (
	// ReasonBrokerDoesNotExist means that the Broker does not exist.
	ReasonBrokerDoesNotExist = "BrokerDoesNotExist"
	// ReasonBrokerNotConfigured means that the Broker has not been reconciled yet, or is not ready without a reason.
	ReasonBrokerNotConfigured = "BrokerNotConfigured"
	// ReasonLinksDisabled means that the Broker is in another namespace, which the settings do not allow.
	ReasonLinksDisabled = "CrossNamespaceLinksDisabled"
	// ReasonNotSubscribed means that the Broker's events do not reach the subscriber.
	ReasonNotSubscribed = "NotSubscribed"
	// ReasonDependencyDoesNotExist means that the object that the Trigger waits for does not exist.
	ReasonDependencyDoesNotExist = "DependencyDoesNotExist"
	// ReasonDependencyNotReady means that the object that the Trigger waits for is not ready.
	ReasonDependencyNotReady = "DependencyNotReady"
)

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{
	eventingv1.TriggerConditionBrokerReady,
	eventingv1.TriggerConditionSubscriberResolved,
	destination.ConditionDeadLetterSinkResolved,
	eventingv1.TriggerConditionDependencyReady,
	eventingv1.TriggerConditionSubscriptionReady,
	duckv1.ConditionOIDCIdentityCreated,
}

// findings determine a Trigger's status.
type findings struct {
	// subscriber and deadLetter are empty if they are not resolved.
	subscriber duckv1.Addressable
	deadLetter duckv1.DeliveryStatus

	broker, subscriberResolved, deadLetterResolved, dependency, subscription duckv1.Condition
	// account authenticates deliveries.
	account senderaccount.Found
}

// resolve resolves the references of a Trigger. parent is nil without a Broker.
func resolve(ctx context.Context, refs *destination.References, trigger *eventingv1.Trigger, parent *eventingv1.Broker) (found findings, err error) {
	found.broker = brokerReady(trigger, parent)
	found.subscriberResolved = reconciler.True(eventingv1.TriggerConditionSubscriberResolved)
	found.subscriber, err = refs.Resolve(ctx, &trigger.Spec.Subscriber)
	if fault, ok := destination.AsUnresolved(err); ok {
		found.subscriberResolved = fault.Condition(eventingv1.TriggerConditionSubscriberResolved, "Subscriber")
	} else if err != nil {
		return found, err
	}
	found.deadLetter, found.deadLetterResolved, err = deadLetterSink(ctx, refs, trigger, parent)
	if err != nil {
		return found, err
	}
	found.dependency, err = dependencyReady(ctx, refs, trigger)
	return found, err
}

// deadLetterSink returns the address of the dead letter sink of a Trigger, and the condition. The sink of a Broker of the same namespace
// has the same address from here. The sink of a Broker of another namespace has the address in that Broker's status.
func deadLetterSink(ctx context.Context, refs *destination.References, trigger *eventingv1.Trigger, parent *eventingv1.Broker) (duckv1.DeliveryStatus, duckv1.Condition, error) {
	delivery := deliveryOf(trigger, parent)
	inherited := parent != nil && trigger.IsLinked() && trigger.Spec.Delivery.IsEmpty()
	if !inherited || delivery == nil || delivery.DeadLetterSink == nil {
		return refs.DeadLetterSink(ctx, delivery)
	}
	resolved := parent.Status.Conditions.Get(destination.ConditionDeadLetterSinkResolved)
	if resolved == nil || resolved.Status != corev1.ConditionTrue || parent.Status.DeadLetterSinkURI == "" {
		return duckv1.DeliveryStatus{}, reconciler.False(destination.ConditionDeadLetterSinkResolved, ReasonBrokerNotConfigured,
			"The dead letter sink of the Broker is not resolved."), nil
	}
	return parent.Status.DeliveryStatus, reconciler.True(destination.ConditionDeadLetterSinkResolved), nil
}

// configured reports whether a Broker has been reconciled and has a stream.
func configured(parent *eventingv1.Broker) bool {
	return parent.Status.Address.GetURL() != "" && parent.Status.Conditions.Get(duckv1.ConditionReady) != nil
}

// brokerReady is False, never Unknown, unless the Broker is ready (eventing Trigger Lifecycle). The Broker's condition of an older
// generation counts until it changes, so that a change of the Broker's delivery options does not interrupt its Triggers.
func brokerReady(trigger *eventingv1.Trigger, parent *eventingv1.Broker) duckv1.Condition {
	const t = eventingv1.TriggerConditionBrokerReady
	if parent == nil {
		return reconciler.False(t, ReasonBrokerDoesNotExist, fmt.Sprintf("Broker %q does not exist.", trigger.BrokerName()))
	}
	ready := parent.Status.Conditions.Get(duckv1.ConditionReady)
	if ready != nil && ready.Status != corev1.ConditionTrue && ready.Reason != "" {
		return reconciler.False(t, ready.Reason, fmt.Sprintf("Broker \"%s/%s\" is not ready: %s", parent.Namespace, parent.Name, ready.Message))
	}
	if !configured(parent) || ready.Status != corev1.ConditionTrue {
		return reconciler.False(t, ReasonBrokerNotConfigured, fmt.Sprintf("Broker \"%s/%s\" has not been configured yet.", parent.Namespace, parent.Name))
	}
	return reconciler.True(t)
}

// dependencyReady returns DependencyReady: whether the object that an annotation names is ready.
func dependencyReady(ctx context.Context, refs *destination.References, trigger *eventingv1.Trigger) (duckv1.Condition, error) {
	const t = eventingv1.TriggerConditionDependencyReady
	value, found := trigger.Annotations[eventingv1.DependencyAnnotationKey]
	if !found {
		return reconciler.True(t), nil
	}
	var reference corev1.ObjectReference
	if err := json.Unmarshal([]byte(value), &reference); err != nil {
		// Validation rejects such an annotation. A retry cannot succeed until the Trigger is updated.
		return reconciler.False(t, "Dependency"+destination.ReasonInvalid,
			fmt.Sprintf("Annotation %s is no JSON ObjectReference: %v", eventingv1.DependencyAnnotationKey, err)), nil
	}
	ready, err := refs.Ready(ctx, &duckv1.KReference{
		APIVersion: reference.APIVersion, Kind: reference.Kind,
		Namespace: cmp.Or(reference.Namespace, trigger.Namespace), Name: reference.Name,
	})
	if fault, ok := destination.AsUnresolved(err); ok {
		condition := fault.Condition(t, "Dependency")
		switch fault.Reason {
		case destination.ReasonNotFound:
			condition.Reason = ReasonDependencyDoesNotExist
		case destination.ReasonUnavailable:
			condition.Status = corev1.ConditionUnknown
		}
		return condition, nil
	}
	name := fmt.Sprintf("%s %s \"%s/%s\"", reference.APIVersion, reference.Kind, trigger.Namespace, reference.Name)
	switch {
	case err != nil:
		return duckv1.Condition{}, err
	case ready == nil:
		return reconciler.Unknown(t, ReasonDependencyNotReady, name+" has no Ready condition yet."), nil
	case ready.Status == corev1.ConditionTrue:
		return reconciler.True(t), nil
	}
	condition := reconciler.Unknown(t, ReasonDependencyNotReady, fmt.Sprintf("%s is not ready: %s: %s", name, ready.Reason, ready.Message))
	if ready.Status == corev1.ConditionFalse {
		condition.Status = corev1.ConditionFalse
	}
	return condition, nil
}

// status returns the status of a Trigger.
func (f *findings) status(trigger *eventingv1.Trigger, health eventing.Health, now metav1.Time) eventingv1.TriggerStatus {
	status := *trigger.Status.DeepCopy()
	status.SubscriberURI = f.subscriber.URL
	status.SubscriberCACerts, status.SubscriberAudience = f.subscriber.CACerts, f.subscriber.Audience
	status.DeliveryStatus = f.deadLetter
	status.Auth = f.account.Auth
	deliveryhealth.Observe(&status.Conditions, health, now)
	reconciler.Observe(&status.Status, trigger.Generation, now, dependents,
		f.broker, f.subscription, f.dependency, f.subscriberResolved, f.deadLetterResolved, f.account.Condition)
	return status
}
