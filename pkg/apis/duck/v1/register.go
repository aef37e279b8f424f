package v1

import "k8s.io/apimachinery/pkg/runtime/schema"

// SchemeGroupVersion names this package for generated code. Nothing is served under it.
var SchemeGroupVersion = schema.GroupVersion{Group: "duck.knative.dev", Version: "v1"}
