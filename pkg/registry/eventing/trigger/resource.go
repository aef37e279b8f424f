// Package trigger implements the API resource triggers.eventing.knative.dev.
package trigger

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/links"
)

// Resource describes Triggers. Their broker is immutable (eventing Trigger Lifecycle). If the class of a Trigger's Broker,
// which is read through brokers, is foreign, the controllers of that class own the status of the Trigger. links decides about
// references to Brokers of other namespaces. matcher knows recent events.
func Resource(controllers identity.Controllers, brokers rest.Getter, links *links.Links, authenticated func() bool, matcher *LateMatcher) *registry.Resource[*eventingv1.Trigger, eventingv1.TriggerSpec, eventingv1.TriggerStatus] {
	return &registry.Resource[*eventingv1.Trigger, eventingv1.TriggerSpec, eventingv1.TriggerStatus]{
		GroupVersion: eventingv1.SchemeGroupVersion,
		Plural:       "triggers",
		Singular:     "trigger",
		Categories:   []string{"all", "knative", "eventing"},
		New:          func() *eventingv1.Trigger { return &eventingv1.Trigger{} },
		NewList:      func() runtime.Object { return &eventingv1.TriggerList{} },
		Spec:         func(t *eventingv1.Trigger) *eventingv1.TriggerSpec { return &t.Spec },
		Status:       func(t *eventingv1.Trigger) *eventingv1.TriggerStatus { return &t.Status },
		Common:       common,
		Controllers:  controllers,
		ForeignStatus: func(ctx context.Context, t *eventingv1.Trigger) (bool, error) {
			name := t.BrokerName()
			obj, err := brokers.Get(request.WithNamespace(ctx, name.Namespace), name.Name, &metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			if err != nil {
				return false, fmt.Errorf("read Broker %q of the Trigger: %w", name, err)
			}
			return obj.(*eventingv1.Broker).IsForeign(), nil
		},
		Default:      eventingv1.SetDefaults_Trigger,
		Warnings:     func(t *eventingv1.Trigger) []string { return eventingv1.WarnTrigger(t, authenticated()) },
		Observations: func(ctx context.Context, t, old *eventingv1.Trigger) []string { return observe(ctx, matcher, t, old) },
		Validate: func(ctx context.Context, t *eventingv1.Trigger) field.ErrorList {
			return append(eventingv1.ValidateTrigger(t), links.Validate(ctx, link(t), t.Spec, nil)...)
		},
		ValidateUpdate: func(ctx context.Context, t, old *eventingv1.Trigger) field.ErrorList {
			return append(eventingv1.ValidateTriggerUpdate(t, old), links.Validate(ctx, link(t), t.Spec, old.Spec)...)
		},
		SelectableFields: func(t *eventingv1.Trigger) fields.Set {
			return fields.Set{eventingv1.TriggerBrokerField: t.BrokerName().Name}
		},
		Columns: append([]registry.Column[*eventingv1.Trigger]{
			{Name: "Broker", Type: "string", Description: "The Broker whose events are filtered.", Value: func(t *eventingv1.Trigger) any {
				return t.BrokerName().Name
			}},
			{Name: "Subscriber_URI", Type: "string", Description: "URI to which matching events are sent.", Value: func(t *eventingv1.Trigger) any {
				return t.Status.SubscriberURI
			}},
			registry.AgeColumn[*eventingv1.Trigger](),
		}, registry.ReadyColumns(common)...),
	}
}

// link returns the reference of a Trigger to its Broker.
func link(t *eventingv1.Trigger) links.Link {
	return links.Link{
		Object: t.Namespace, Target: t.BrokerName(), Resource: eventingv1.SchemeGroupVersion.WithResource("brokers").GroupResource(),
		Set: t.Spec.BrokerRef != nil, Path: field.NewPath("spec", "brokerRef"),
	}
}

func common(t *eventingv1.Trigger) *duckv1.Status { return &t.Status.Status }
