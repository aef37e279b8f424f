// Package configuration implements the API resource configurations.serving.knative.dev.
package configuration

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes Configurations. The settings at the time of a write supply defaults and limits.
func Resource(controllers identity.Controllers, settings func() servingv1.Settings) *registry.Resource[*servingv1.Configuration, servingv1.ConfigurationSpec, servingv1.ConfigurationStatus] {
	return &registry.Resource[*servingv1.Configuration, servingv1.ConfigurationSpec, servingv1.ConfigurationStatus]{
		GroupVersion: servingv1.SchemeGroupVersion,
		Plural:       "configurations",
		Singular:     "configuration",
		ShortNames:   []string{"config", "cfg"},
		Categories:   []string{"all", "knative", "serving"},
		New:          func() *servingv1.Configuration { return &servingv1.Configuration{} },
		NewList:      func() runtime.Object { return &servingv1.ConfigurationList{} },
		Spec:         func(c *servingv1.Configuration) *servingv1.ConfigurationSpec { return &c.Spec },
		Status:       func(c *servingv1.Configuration) *servingv1.ConfigurationStatus { return &c.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      servingv1.SetDefaults_Configuration,
		DefaultOnCreate: func(c *servingv1.Configuration) {
			c.Spec.Template.Spec.SetCreateDefaults(&c.ObjectMeta, settings())
		},
		DefaultOnUpdate: func(_ context.Context, c, old *servingv1.Configuration) {
			c.Spec.Template.SetUpdateDefaults(&old.Spec.Template, &c.ObjectMeta, settings())
		},
		Warnings: servingv1.WarnConfiguration,
		Validate: func(_ context.Context, c *servingv1.Configuration) field.ErrorList {
			return servingv1.ValidateConfiguration(c, settings())
		},
		ValidateUpdate: func(_ context.Context, c, old *servingv1.Configuration) field.ErrorList {
			return servingv1.ValidateConfigurationUpdate(c, old, settings())
		},
		Columns: append([]registry.Column[*servingv1.Configuration]{
			{Name: "LatestCreated", Type: "string", Description: "The most recently created Revision.", Value: func(c *servingv1.Configuration) any {
				return c.Status.LatestCreatedRevisionName
			}},
			{Name: "LatestReady", Type: "string", Description: "The most recently created Revision that is ready.", Value: func(c *servingv1.Configuration) any {
				return c.Status.LatestReadyRevisionName
			}},
		}, registry.ReadyColumns(common)...),
	}
}

func common(c *servingv1.Configuration) *duckv1.Status { return &c.Status.Status }
