// Package channel implements the API resource channels.messaging.knative.dev.
package channel

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes Channels. The current settings supply the defaults of new Channels. Their template is immutable
// (eventing Channel Lifecycle), and only controllers write their subscribers.
func Resource(controllers identity.Controllers, settings func() messagingv1.Settings, authenticated func() bool) *registry.Resource[*messagingv1.Channel, messagingv1.ChannelSpec, messagingv1.ChannelStatus] {
	subscribersUnchanged := func(ctx context.Context, c *messagingv1.Channel, old []duckv1.SubscriberSpec) field.ErrorList {
		if controllers.Made(ctx) || equality.Semantic.DeepEqual(c.Spec.Subscribers, old) {
			return nil
		}
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "subscribers"),
			"may only be written by the controllers; create a Subscription to the Channel instead")}
	}
	return &registry.Resource[*messagingv1.Channel, messagingv1.ChannelSpec, messagingv1.ChannelStatus]{
		GroupVersion: messagingv1.SchemeGroupVersion,
		Plural:       "channels",
		Singular:     "channel",
		ShortNames:   []string{"ch"},
		Categories:   []string{"all", "knative", "messaging", "channel"},
		New:          func() *messagingv1.Channel { return &messagingv1.Channel{} },
		NewList:      func() runtime.Object { return &messagingv1.ChannelList{} },
		Spec:         func(c *messagingv1.Channel) *messagingv1.ChannelSpec { return &c.Spec },
		Status:       func(c *messagingv1.Channel) *messagingv1.ChannelStatus { return &c.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      messagingv1.SetDefaults_Channel,
		DefaultOnCreate: func(c *messagingv1.Channel) {
			c.SetCreateDefaults(settings())
		},
		DefaultOnUpdate: func(ctx context.Context, c, old *messagingv1.Channel) {
			c.SetUpdateDefaults(old)
			// A user that replaces a Channel by a manifest does not intend to remove its Subscriptions.
			if len(c.Spec.Subscribers) == 0 && !controllers.Made(ctx) {
				c.Spec.Subscribers = old.Spec.Subscribers
			}
		},
		Warnings: func(c *messagingv1.Channel) []string { return messagingv1.WarnChannel(c, authenticated()) },
		Validate: func(ctx context.Context, c *messagingv1.Channel) field.ErrorList {
			return append(messagingv1.ValidateChannel(c), subscribersUnchanged(ctx, c, nil)...)
		},
		ValidateUpdate: func(ctx context.Context, c, old *messagingv1.Channel) field.ErrorList {
			return append(messagingv1.ValidateChannelUpdate(c, old), subscribersUnchanged(ctx, c, old.Spec.Subscribers)...)
		},
		Columns: append([]registry.Column[*messagingv1.Channel]{
			{Name: "URL", Type: "string", Description: "URL at which the Channel accepts events.", Value: func(c *messagingv1.Channel) any {
				return c.Status.Address.GetURL()
			}},
			registry.AgeColumn[*messagingv1.Channel](),
		}, registry.ReadyColumns(common)...),
	}
}

func common(c *messagingv1.Channel) *duckv1.Status { return &c.Status.Status }
