// Package v1beta1 is the serving.knative.dev/v1beta1 API: DomainMapping, and ServiceMetrics, which are not stored.
//
// +k8s:deepcopy-gen=package
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.knative.serving.v1beta1
// +groupName=serving.knative.dev
package v1beta1
