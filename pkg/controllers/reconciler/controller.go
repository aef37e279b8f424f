// Package reconciler runs reconcilers: it queues keys, limits retries and writes statuses. Each kind has a package of its own.
package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/leader"
)

// Reconciler brings one object nearer to its desired state. It reads what is from listers, is called again
// after an error, and returns nil where there is nothing to do, which includes objects that are gone.
type Reconciler interface {
	Reconcile(ctx context.Context, key types.NamespacedName) error
}

// timeout bounds one call of a Reconciler. It is tried again, so that neither a worker nor the first pass hangs on
// a server that does not answer.
const timeout = 30 * time.Second

// Controller calls a Reconciler for each key that was enqueued: one call at a time for a key, and again with
// exponential delay where it fails.
type Controller struct {
	name       string
	reconciler Reconciler
	queue      workqueue.TypedRateLimitingInterface[types.NamespacedName]
	synced     []cache.InformerSynced
	sources    []source
	first      *firstPass
	// owns tells the objects that this replica writes about; nil stands for all.
	owns func(key types.NamespacedName) bool
	// postponed is nil where Postpone was not called.
	postponed *postponed
}

// source is an informer that is watched, and the keys that each of its objects concerns.
type source struct {
	informer cache.SharedIndexInformer
	keys     func(obj metav1.Object) []types.NamespacedName
}

// New returns a controller whose name is that of its queue in metrics and logs.
func New(name string, reconciler Reconciler) *Controller {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](5*time.Millisecond, time.Minute)
	return &Controller{
		name:       name,
		reconciler: reconciler,
		first:      newFirstPass(),
		queue:      workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: name}),
	}
}

// Lead leaves to other replicas what is written about objects that owns is false for: reconciling them tells the data
// plane of this replica, and ends in success where it comes to a write. owns is asked before each reconciliation. Call it
// before Run.
func (c *Controller) Lead(owns func(key types.NamespacedName) bool) { c.owns = owns }

// Requeue has all keys reconciled that the watched objects concern and which is true for. It is to be called when this
// replica begins to own objects, with those.
func (c *Controller) Requeue(which func(key types.NamespacedName) bool) {
	for _, s := range c.sources {
		for _, obj := range s.informer.GetStore().List() {
			obj, ok := obj.(metav1.Object)
			if !ok {
				continue
			}
			for _, key := range s.keys(obj) {
				if which(key) {
					c.Enqueue(key)
				}
			}
		}
	}
}

// Enqueue has a key reconciled.
func (c *Controller) Enqueue(key types.NamespacedName) {
	c.first.enqueued(key)
	c.queue.Add(key)
}

// EnqueueAfter has a key reconciled after some time.
func (c *Controller) EnqueueAfter(key types.NamespacedName, after time.Duration) {
	c.queue.AddAfter(key, after)
}

// Watch enqueues keys(object) whenever an object of the informer changes. Changes of an object hand over
// both its old and its new state. Call it before Run.
func (c *Controller) Watch(informer cache.SharedIndexInformer, keys func(obj metav1.Object) []types.NamespacedName) error {
	enqueue := func(obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if obj, ok := obj.(metav1.Object); ok {
			for _, key := range keys(obj) {
				c.Enqueue(key)
			}
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(old, current any) { enqueue(old); enqueue(current) },
		DeleteFunc: enqueue,
	})
	if err != nil {
		return fmt.Errorf("watching for %s: %w", c.name, err)
	}
	c.synced = append(c.synced, registration.HasSynced)
	c.sources = append(c.sources, source{informer, keys})
	return nil
}

// KeyOf is the key of the object itself.
func KeyOf(obj metav1.Object) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

// ControllerOf returns a function that gives the key of the object's controller, if that is of a kind.
func ControllerOf(kind string) func(obj metav1.Object) []types.NamespacedName {
	return func(obj metav1.Object) []types.NamespacedName {
		if owner := metav1.GetControllerOfNoCopy(obj); owner != nil && owner.Kind == kind {
			return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: owner.Name}}
		}
		return nil
	}
}

// Primed is closed once every object that there was when Run began has been reconciled once, with whatever
// outcome.
func (c *Controller) Primed() <-chan struct{} { return c.first.over }

// Run reconciles by a number of workers until ctx ends, from when the watched informers have synced.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer c.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return
	}
	c.first.begin()
	var running sync.WaitGroup
	for range workers {
		running.Go(func() { wait.UntilWithContext(ctx, c.work, time.Second) })
	}
	<-ctx.Done()
	c.queue.ShutDown()
	running.Wait()
}

func (c *Controller) work(ctx context.Context) {
	for {
		key, done := c.queue.Get()
		if done {
			return
		}
		c.reconcile(ctx, key)
		c.first.reconciled(key)
	}
}

func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName) {
	defer c.queue.Done(key)
	logger := klog.FromContext(ctx).WithValues("controller", c.name, "object", key)
	limited, cancel := context.WithTimeout(klog.NewContext(ctx, logger), timeout)
	defer cancel()
	if c.owns != nil && !c.owns(key) {
		limited = leader.Following(limited)
	}
	err := c.reconciler.Reconcile(c.postponed.allow(limited, key), key)
	later, due := c.postponed.note(key, err)
	for _, other := range due {
		c.queue.Add(other)
	}
	switch {
	case err == nil, leader.OnlyFollowing(err):
		c.queue.Forget(key)
		return
	case leader.Only(err, errPostponed):
		c.queue.Forget(key)
		c.EnqueueAfter(key, later)
		return
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The object will be deleted as well.
		logger.V(4).Info("The namespace is being deleted", "reason", err.Error())
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		// The informers lag behind; they will bring the newer object.
		logger.V(4).Info("Trying again", "reason", err.Error())
	default:
		logger.Error(err, "Reconciling failed")
	}
	c.queue.AddRateLimited(key)
}
