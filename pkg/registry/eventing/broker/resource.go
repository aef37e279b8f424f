// Package broker implements the API resource brokers.eventing.knative.dev.
package broker

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes Brokers. The current settings supply the defaults of new Brokers; their class and configuration are
// immutable afterwards (eventing Broker Lifecycle).
func Resource(controllers identity.Controllers, settings func() eventingv1.Settings) *registry.Resource[*eventingv1.Broker, eventingv1.BrokerSpec, eventingv1.BrokerStatus] {
	columns := []registry.Column[*eventingv1.Broker]{
		{Name: "URL", Type: "string", Description: "URL at which the Broker accepts events.", Value: func(b *eventingv1.Broker) any {
			return b.Status.Address.GetURL()
		}},
		registry.AgeColumn[*eventingv1.Broker](),
	}
	columns = append(columns, registry.ReadyColumns(common)...)
	columns = append(columns, registry.Column[*eventingv1.Broker]{
		Name: "Class", Type: "string", Wide: true, Description: "The implementation of the Broker.", Value: func(b *eventingv1.Broker) any {
			return b.Annotations[eventingv1.BrokerClassAnnotationKey]
		},
	})
	return &registry.Resource[*eventingv1.Broker, eventingv1.BrokerSpec, eventingv1.BrokerStatus]{
		GroupVersion: eventingv1.SchemeGroupVersion,
		Plural:       "brokers",
		Singular:     "broker",
		Categories:   []string{"all", "knative", "eventing"},
		New:          func() *eventingv1.Broker { return &eventingv1.Broker{} },
		NewList:      func() runtime.Object { return &eventingv1.BrokerList{} },
		Spec:         func(b *eventingv1.Broker) *eventingv1.BrokerSpec { return &b.Spec },
		Status:       func(b *eventingv1.Broker) *eventingv1.BrokerStatus { return &b.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      eventingv1.SetDefaults_Broker,
		ForeignStatus: func(_ context.Context, b *eventingv1.Broker) (bool, error) {
			return b.IsForeign(), nil
		},
		DefaultOnCreate: func(b *eventingv1.Broker) {
			b.SetCreateDefaults(settings())
		},
		DefaultOnUpdate: func(_ context.Context, b, old *eventingv1.Broker) {
			b.SetUpdateDefaults(old)
		},
		Warnings: func(b *eventingv1.Broker) []string { return eventingv1.WarnBroker(b, settings().OIDC) },
		Validate: func(_ context.Context, b *eventingv1.Broker) field.ErrorList {
			return eventingv1.ValidateNewBroker(b, settings())
		},
		ValidateUpdate: func(_ context.Context, b, old *eventingv1.Broker) field.ErrorList {
			return eventingv1.ValidateBrokerUpdate(b, old)
		},
		Columns: columns,
	}
}

func common(b *eventingv1.Broker) *duckv1.Status { return &b.Status.Status }
