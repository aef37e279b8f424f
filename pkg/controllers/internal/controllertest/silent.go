package controllertest

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Silent replaces the controller of a Reconciler that the test calls itself. It watches nothing.
type Silent struct{}

// Watch does nothing.
func (Silent) Watch(cache.SharedIndexInformer, func(metav1.Object) []types.NamespacedName) error {
	return nil
}

// Enqueue does nothing.
func (Silent) Enqueue(types.NamespacedName) {}

// EnqueueAfter does nothing.
func (Silent) EnqueueAfter(types.NamespacedName, time.Duration) {}
