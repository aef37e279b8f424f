// Package v1alpha1 is the networking.internal.knative.dev/v1alpha1 API: ClusterDomainClaim.
//
// +k8s:deepcopy-gen=package
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.knative.internal.networking.v1alpha1
// +groupName=networking.internal.knative.dev
package v1alpha1
