// Package eventpolicy implements the API resource eventpolicies.eventing.knative.dev.
package eventpolicy

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes EventPolicies. They can be created while the current settings authenticate senders.
func Resource(controllers identity.Controllers, settings func() eventingv1.Settings) *registry.Resource[*eventingv1alpha1.EventPolicy, eventingv1alpha1.EventPolicySpec, eventingv1alpha1.EventPolicyStatus] {
	return &registry.Resource[*eventingv1alpha1.EventPolicy, eventingv1alpha1.EventPolicySpec, eventingv1alpha1.EventPolicyStatus]{
		GroupVersion: eventingv1alpha1.SchemeGroupVersion,
		Plural:       "eventpolicies",
		Singular:     "eventpolicy",
		Categories:   []string{"all", "knative", "eventing"},
		New:          func() *eventingv1alpha1.EventPolicy { return &eventingv1alpha1.EventPolicy{} },
		NewList:      func() runtime.Object { return &eventingv1alpha1.EventPolicyList{} },
		Spec:         func(p *eventingv1alpha1.EventPolicy) *eventingv1alpha1.EventPolicySpec { return &p.Spec },
		Status:       func(p *eventingv1alpha1.EventPolicy) *eventingv1alpha1.EventPolicyStatus { return &p.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      eventingv1alpha1.SetDefaults_EventPolicy,
		Warnings:     eventingv1alpha1.WarnEventPolicy,
		Validate: func(_ context.Context, p *eventingv1alpha1.EventPolicy) field.ErrorList {
			return eventingv1alpha1.ValidateEventPolicy(p, settings().OIDC)
		},
		ValidateUpdate: func(_ context.Context, p, old *eventingv1alpha1.EventPolicy) field.ErrorList {
			return eventingv1alpha1.ValidateEventPolicyUpdate(p, old)
		},
		Columns: registry.ReadyColumns(common),
	}
}

func common(p *eventingv1alpha1.EventPolicy) *duckv1.Status { return &p.Status.Status }
