// Package v1alpha1 is the eventing.knative.dev/v1alpha1 API: EventPolicy, EventRun, and DeadLetter and EventMetrics, which are not stored.
//
// +k8s:deepcopy-gen=package
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.knative.eventing.v1alpha1
// +groupName=eventing.knative.dev
package v1alpha1
