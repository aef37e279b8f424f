// Package domainmapping implements the API resource domainmappings.serving.knative.dev.
package domainmapping

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes DomainMappings. The settings at the time of a write decide about warnings. clusterDomain is the DNS domain of the cluster, whose names may not be mapped.
func Resource(controllers identity.Controllers, settings func() servingv1.Settings, clusterDomain string) *registry.Resource[*servingv1beta1.DomainMapping, servingv1beta1.DomainMappingSpec, servingv1beta1.DomainMappingStatus] {
	return &registry.Resource[*servingv1beta1.DomainMapping, servingv1beta1.DomainMappingSpec, servingv1beta1.DomainMappingStatus]{
		GroupVersion: servingv1beta1.SchemeGroupVersion,
		Plural:       "domainmappings",
		Singular:     "domainmapping",
		ShortNames:   []string{"dm"},
		Categories:   []string{"all", "knative", "serving"},
		New:          func() *servingv1beta1.DomainMapping { return &servingv1beta1.DomainMapping{} },
		NewList:      func() runtime.Object { return &servingv1beta1.DomainMappingList{} },
		Spec:         func(m *servingv1beta1.DomainMapping) *servingv1beta1.DomainMappingSpec { return &m.Spec },
		Status:       func(m *servingv1beta1.DomainMapping) *servingv1beta1.DomainMappingStatus { return &m.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      servingv1beta1.SetDefaults_DomainMapping,
		Warnings:     func(m *servingv1beta1.DomainMapping) []string { return servingv1beta1.WarnDomainMapping(m, settings()) },
		Validate: func(_ context.Context, m *servingv1beta1.DomainMapping) field.ErrorList {
			return servingv1beta1.ValidateDomainMapping(m, clusterDomain)
		},
		ValidateUpdate: func(_ context.Context, m, old *servingv1beta1.DomainMapping) field.ErrorList {
			return servingv1beta1.ValidateDomainMappingUpdate(m, old, clusterDomain)
		},
		Columns: append([]registry.Column[*servingv1beta1.DomainMapping]{
			{Name: "URL", Type: "string", Description: "URL of the host name.", Value: func(m *servingv1beta1.DomainMapping) any {
				return m.Status.URL
			}},
		}, registry.ReadyColumns(common)...),
	}
}

func common(m *servingv1beta1.DomainMapping) *duckv1.Status { return &m.Status.Status }
