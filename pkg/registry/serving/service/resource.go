// Package service implements the API resource services.serving.knative.dev.
package service

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes Services. The settings at the time of a write supply defaults and limits.
func Resource(controllers identity.Controllers, settings func() servingv1.Settings) *registry.Resource[*servingv1.Service, servingv1.ServiceSpec, servingv1.ServiceStatus] {
	return &registry.Resource[*servingv1.Service, servingv1.ServiceSpec, servingv1.ServiceStatus]{
		GroupVersion: servingv1.SchemeGroupVersion,
		Plural:       "services",
		Singular:     "service",
		ShortNames:   []string{"kservice", "ksvc"},
		Categories:   []string{"all", "knative", "serving"},
		New:          func() *servingv1.Service { return &servingv1.Service{} },
		NewList:      func() runtime.Object { return &servingv1.ServiceList{} },
		Spec:         func(s *servingv1.Service) *servingv1.ServiceSpec { return &s.Spec },
		Status:       func(s *servingv1.Service) *servingv1.ServiceStatus { return &s.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      servingv1.SetDefaults_Service,
		DefaultOnCreate: func(s *servingv1.Service) {
			s.Spec.Template.Spec.SetCreateDefaults(&s.ObjectMeta, settings())
		},
		DefaultOnUpdate: func(_ context.Context, s, old *servingv1.Service) {
			s.Spec.Template.SetUpdateDefaults(&old.Spec.Template, &s.ObjectMeta, settings())
		},
		Warnings: func(s *servingv1.Service) []string { return servingv1.WarnService(s, settings()) },
		Validate: func(_ context.Context, s *servingv1.Service) field.ErrorList {
			return servingv1.ValidateService(s, settings())
		},
		ValidateUpdate: func(_ context.Context, s, old *servingv1.Service) field.ErrorList {
			return servingv1.ValidateServiceUpdate(s, old, settings())
		},
		Columns: append([]registry.Column[*servingv1.Service]{
			{Name: "URL", Type: "string", Description: "URL of the application.", Value: func(s *servingv1.Service) any {
				return s.Status.URL
			}},
			{Name: "LatestCreated", Type: "string", Description: "The most recently created Revision.", Value: func(s *servingv1.Service) any {
				return s.Status.LatestCreatedRevisionName
			}},
			{Name: "LatestReady", Type: "string", Description: "The most recently created Revision that is ready.", Value: func(s *servingv1.Service) any {
				return s.Status.LatestReadyRevisionName
			}},
		}, registry.ReadyColumns(common)...),
	}
}

func common(s *servingv1.Service) *duckv1.Status { return &s.Status.Status }
