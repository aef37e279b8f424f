// Package clusterdomainclaim implements the API resource clusterdomainclaims.networking.internal.knative.dev.
package clusterdomainclaim

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes ClusterDomainClaims, which have no status.
func Resource(controllers identity.Controllers) *registry.Resource[*networkingv1alpha1.ClusterDomainClaim, networkingv1alpha1.ClusterDomainClaimSpec, struct{}] {
	return &registry.Resource[*networkingv1alpha1.ClusterDomainClaim, networkingv1alpha1.ClusterDomainClaimSpec, struct{}]{
		GroupVersion:  networkingv1alpha1.SchemeGroupVersion,
		Plural:        "clusterdomainclaims",
		Singular:      "clusterdomainclaim",
		ShortNames:    []string{"cdc"},
		Categories:    []string{"knative-internal", "networking"},
		ClusterScoped: true,
		New:           func() *networkingv1alpha1.ClusterDomainClaim { return &networkingv1alpha1.ClusterDomainClaim{} },
		NewList:       func() runtime.Object { return &networkingv1alpha1.ClusterDomainClaimList{} },
		Spec: func(c *networkingv1alpha1.ClusterDomainClaim) *networkingv1alpha1.ClusterDomainClaimSpec {
			return &c.Spec
		},
		Controllers: controllers,
		Warnings:    networkingv1alpha1.WarnClusterDomainClaim,
		Validate: func(_ context.Context, c *networkingv1alpha1.ClusterDomainClaim) field.ErrorList {
			return networkingv1alpha1.ValidateClusterDomainClaim(c)
		},
		ValidateUpdate: func(_ context.Context, c, old *networkingv1alpha1.ClusterDomainClaim) field.ErrorList {
			return networkingv1alpha1.ValidateClusterDomainClaimUpdate(c, old)
		},
		Columns: []registry.Column[*networkingv1alpha1.ClusterDomainClaim]{registry.AgeColumn[*networkingv1alpha1.ClusterDomainClaim]()},
	}
}
