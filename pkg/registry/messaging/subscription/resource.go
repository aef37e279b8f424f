// Package subscription implements the API resource subscriptions.messaging.knative.dev.
package subscription

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes Subscriptions. Their channel is immutable (eventing Subscription Lifecycle).
func Resource(controllers identity.Controllers) *registry.Resource[*messagingv1.Subscription, messagingv1.SubscriptionSpec, messagingv1.SubscriptionStatus] {
	return &registry.Resource[*messagingv1.Subscription, messagingv1.SubscriptionSpec, messagingv1.SubscriptionStatus]{
		GroupVersion: messagingv1.SchemeGroupVersion,
		Plural:       "subscriptions",
		Singular:     "subscription",
		ShortNames:   []string{"sub"},
		Categories:   []string{"all", "knative", "messaging"},
		New:          func() *messagingv1.Subscription { return &messagingv1.Subscription{} },
		NewList:      func() runtime.Object { return &messagingv1.SubscriptionList{} },
		Spec:         func(s *messagingv1.Subscription) *messagingv1.SubscriptionSpec { return &s.Spec },
		Status:       func(s *messagingv1.Subscription) *messagingv1.SubscriptionStatus { return &s.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      messagingv1.SetDefaults_Subscription,
		Warnings:     messagingv1.WarnSubscription,
		Validate: func(_ context.Context, s *messagingv1.Subscription) field.ErrorList {
			return messagingv1.ValidateSubscription(s)
		},
		ValidateUpdate: func(_ context.Context, s, old *messagingv1.Subscription) field.ErrorList {
			return messagingv1.ValidateSubscriptionUpdate(s, old)
		},
		SelectableFields: func(s *messagingv1.Subscription) fields.Set {
			return fields.Set{messagingv1.SubscriptionChannelNameField: s.Spec.Channel.Name}
		},
		Columns: append([]registry.Column[*messagingv1.Subscription]{
			registry.AgeColumn[*messagingv1.Subscription](),
		}, registry.ReadyColumns(common)...),
	}
}

func common(s *messagingv1.Subscription) *duckv1.Status { return &s.Status.Status }
