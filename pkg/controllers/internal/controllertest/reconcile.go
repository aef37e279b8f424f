package controllertest

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reconcile reconciles an object once on the replica that owns it.
func Reconcile(ctx context.Context, r reconciler.Reconciler, key types.NamespacedName) error {
	_, err := r.Reconcile(ctx, reconciler.NewRequest(key, true))
	return err
}
