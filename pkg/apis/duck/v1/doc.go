// Package v1 contains the types that Knative's kinds share ("duck types"): conditions, addresses,
// destinations, references and delivery options. It defines no resource.
//
// +k8s:deepcopy-gen=package
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.knative.duck.v1
package v1
