// Package v1 is the serving.knative.dev/v1 API: Service, Configuration, Revision and Route.
//
// +k8s:deepcopy-gen=package
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.knative.serving.v1
// +groupName=serving.knative.dev
package v1
