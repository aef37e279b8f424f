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
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/links"
)

// Resource describes Subscriptions. Their channel is immutable (eventing Subscription Lifecycle). links decides about references to Channels of other
// namespaces.
func Resource(controllers identity.Controllers, links *links.Links, authenticated func() bool) *registry.Resource[*messagingv1.Subscription, messagingv1.SubscriptionSpec, messagingv1.SubscriptionStatus] {
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
		Warnings:     func(s *messagingv1.Subscription) []string { return messagingv1.WarnSubscription(s, authenticated()) },
		Validate: func(ctx context.Context, s *messagingv1.Subscription) field.ErrorList {
			return append(messagingv1.ValidateSubscription(s), links.Validate(ctx, link(s), s.Spec, nil)...)
		},
		ValidateUpdate: func(ctx context.Context, s, old *messagingv1.Subscription) field.ErrorList {
			return append(messagingv1.ValidateSubscriptionUpdate(s, old), links.Validate(ctx, link(s), s.Spec, old.Spec)...)
		},
		SelectableFields: func(s *messagingv1.Subscription) fields.Set {
			return fields.Set{messagingv1.SubscriptionChannelNameField: s.Spec.Channel.Name}
		},
		Columns: append([]registry.Column[*messagingv1.Subscription]{
			registry.AgeColumn[*messagingv1.Subscription](),
		}, registry.ReadyColumns(common)...),
	}
}

// link returns the reference of a Subscription to its Channel.
func link(s *messagingv1.Subscription) links.Link {
	return links.Link{
		Object: s.Namespace, Target: s.ChannelName(), Resource: messagingv1.SchemeGroupVersion.WithResource("channels").GroupResource(),
		Set: s.Spec.Channel.Namespace != "", Path: field.NewPath("spec", "channel", "namespace"),
	}
}

func common(s *messagingv1.Subscription) *duckv1.Status { return &s.Status.Status }
