// Package v1 is the messaging.knative.dev/v1 API: Channel and Subscription.
//
// +k8s:deepcopy-gen=package
// +k8s:defaulter-gen=TypeMeta
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.knative.messaging.v1
// +groupName=messaging.knative.dev
package v1
