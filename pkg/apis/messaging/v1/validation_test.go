package v1

import "github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"

// fault is what a test expects of one error.
type fault apitest.Fault
