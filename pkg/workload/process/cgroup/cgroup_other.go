//go:build !linux

package cgroup

import (
	"errors"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Groups enforces no limits on this system.
type Groups struct{}

// New returns Groups that enforce no limits.
func New(string, klog.Logger) *Groups { return &Groups{} }

// Dir returns an error.
func (*Groups) Dir(string, string) (string, error) { return "", errors.ErrUnsupported }

// Create returns nil.
func (*Groups) Create(string, string, corev1.ResourceList) (*os.File, error) { return nil, nil }

// Remove does nothing.
func (*Groups) Remove(string) {}

// Close does nothing.
func (*Groups) Close() {}
