package leader

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// Watch follows the leader until ctx is canceled, for a replica that does not take part in the election.
func (e *Election) Watch(ctx context.Context) {
	var leases coordinationclient.LeaseInterface = e.leases.Leases(e.namespace)
	options := func(o metav1.ListOptions) metav1.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, e.config.Name).String()
		return o
	}
	seen := func(obj any) {
		if lease, ok := obj.(*coordinationv1.Lease); ok {
			leader := ptr.Deref(lease.Spec.HolderIdentity, "")
			e.leader.Store(&leader)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return leases.List(ctx, options(o))
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return leases.Watch(ctx, options(o))
			},
		},
		ObjectType: &coordinationv1.Lease{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    seen,
			UpdateFunc: func(_, current any) { seen(current) },
		},
	})
	informer.RunWithContext(ctx)
}
