package v1

import "github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"

// fault is an expected error.
type fault apitest.Fault
