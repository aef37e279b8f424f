package v1

import "k8s.io/apimachinery/pkg/runtime/schema"

// SchemeGroupVersion identifies this package in generated code. No API is served under it.
var SchemeGroupVersion = schema.GroupVersion{Group: "duck.knative.dev", Version: "v1"}
