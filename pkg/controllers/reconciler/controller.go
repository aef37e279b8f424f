// Package reconciler runs reconcilers: it queues the keys of objects, limits retries, decides which replica writes, and writes
// statuses. Each kind has a package of its own beside this one.
package reconciler

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
)

// Reconciler brings one object closer to its desired state. Reconcile reads the current state from listers, is retried after an
// error, and returns nil if the object needs no action, for example because the object no longer exists.
type Reconciler interface {
	Reconcile(ctx context.Context, request Request) (Result, error)
}

// Request asks a Reconciler to reconcile one object.
type Request struct {
	Key types.NamespacedName
	// Writes is true on the replica that owns the object. That replica alone creates, updates and deletes API objects; all
	// replicas update their own data plane.
	Writes bool
	// Status writes the status of the object if Writes is true, and nothing otherwise.
	Status *StatusWriter
}

// NewRequest returns a request whose status updates are not deferred.
func NewRequest(key types.NamespacedName, writes bool) Request {
	return newRequest(key, writes, newOwnWrites())
}

func newRequest(key types.NamespacedName, writes bool, own *ownWrites) Request {
	return Request{Key: key, Writes: writes, Status: &StatusWriter{writes: writes, own: own}}
}

// Result determines when an object is reconciled again.
type Result struct {
	// RequeueAfter is the time until the object is reconciled again even if nothing changes; 0 waits for a change. After an
	// error the object is also retried with backoff, which may be sooner.
	RequeueAfter time.Duration
}

// timeout bounds one call of a Reconciler, so that a server that does not respond blocks neither a worker nor the first pass.
const timeout = 30 * time.Second

// terminatingDelay is the time until an object is reconciled again whose namespace is being deleted.
const terminatingDelay = time.Minute

// Controller calls a Reconciler for each enqueued key: one call at a time per key, with exponential backoff after errors.
type Controller struct {
	name       string
	reconciler Reconciler
	queue      workqueue.TypedRateLimitingInterface[types.NamespacedName]
	synced     []cache.InformerSynced
	sources    []source
	first      *firstPass
	// watching is true once changes of watched objects are enqueued: Run begins with all objects.
	watching atomic.Bool
	// owns reports whether this replica writes about an object; nil means all objects.
	owns      func(key types.NamespacedName) bool
	deferrals *deferrals
	written   *ownWrites
}

// source is a watched informer with the keys to enqueue for each of its objects.
type source struct {
	informer cache.SharedIndexInformer
	keys     func(obj metav1.Object) []types.NamespacedName
}

// New returns a controller. name names its queue in metrics and logs.
func New(name string, reconciler Reconciler) *Controller {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](5*time.Millisecond, time.Minute)
	return &Controller{
		name:       name,
		reconciler: reconciler,
		first:      newFirstPass(),
		deferrals:  newDeferrals(),
		written:    newOwnWrites(),
		queue:      workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: name}),
	}
}

// Lead restricts writes to the objects for which owns returns true; other replicas write the others. See Request.Writes. owns
// is called before each reconciliation. Call Lead before Run.
func (c *Controller) Lead(owns func(key types.NamespacedName) bool) { c.owns = owns }

// Requeue enqueues the keys of all watched objects for which the function returns true. Call it when this replica becomes the
// owner of objects, with those objects.
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

// RequeueAll enqueues the keys of all watched objects.
func (c *Controller) RequeueAll() { c.Requeue(func(types.NamespacedName) bool { return true }) }

// Enqueue adds a key to the queue.
func (c *Controller) Enqueue(key types.NamespacedName) {
	c.first.enqueued(key)
	c.queue.Add(key)
}

// EnqueueAfter adds a key to the queue after a delay.
func (c *Controller) EnqueueAfter(key types.NamespacedName, after time.Duration) {
	c.queue.AddAfter(key, after)
}

// Watch enqueues keys(object) for all objects of the informer when Run begins, and whenever one changes afterwards. For an update, keys is
// called with both the old and the new object. Call Watch before Run.
func (c *Controller) Watch(informer cache.SharedIndexInformer, keys func(obj metav1.Object) []types.NamespacedName) error {
	enqueue := func(obj any) {
		if !c.watching.Load() {
			return
		}
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
		return fmt.Errorf("add event handler of controller %q: %w", c.name, err)
	}
	c.synced = append(c.synced, registration.HasSynced)
	c.sources = append(c.sources, source{informer, keys})
	return nil
}

// Await makes Run wait until an informer has synced, without reconciling objects when its objects change.
func (c *Controller) Await(informer cache.SharedIndexInformer) {
	c.synced = append(c.synced, informer.HasSynced)
}

// KeyOf returns the key of the object itself.
func KeyOf(obj metav1.Object) []types.NamespacedName {
	return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
}

// ControllerOf returns a function that returns the key of an object's controller if the controller is of the given kind.
func ControllerOf(kind string) func(obj metav1.Object) []types.NamespacedName {
	return func(obj metav1.Object) []types.NamespacedName {
		if owner := metav1.GetControllerOfNoCopy(obj); owner != nil && owner.Kind == kind {
			return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: owner.Name}}
		}
		return nil
	}
}

// Primed returns a channel that is closed once every object that existed when Run started has been reconciled once, with or
// without an error.
func (c *Controller) Primed() <-chan struct{} { return c.first.over }

// Run waits for the watched informers to sync and reconciles with the given number of workers until ctx is done.
func (c *Controller) Run(ctx context.Context, workers int) {
	defer c.queue.ShutDown()
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return
	}
	c.watching.Store(true)
	c.RequeueAll()
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
		// A worker that never waits, such as after a restart, would use its processor for 10 ms before a request gets it.
		runtime.Gosched()
	}
}

func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName) {
	defer c.queue.Done(key)
	logger := klog.FromContext(ctx).WithValues("controller", c.name, "object", key)
	limited, cancel := context.WithTimeout(klog.NewContext(ctx, logger), timeout)
	defer cancel()
	request := newRequest(key, c.owns == nil || c.owns(key), c.written)
	if request.Status.deferrable = c.deferrals.allow(key); !request.Writes {
		limited = leader.Following(limited)
	}
	result, err := c.reconciler.Reconcile(limited, request)
	delay, due := c.deferrals.note(key, request.Status.deferred)
	for _, other := range due {
		c.queue.Add(other)
	}
	if result.RequeueAfter > 0 {
		c.EnqueueAfter(key, result.RequeueAfter)
	}
	switch {
	case err == nil:
		c.queue.Forget(key)
		if request.Status.deferred {
			c.EnqueueAfter(key, delay)
		}
		return
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// The object will be deleted as well. Retries of many objects whose children were deleted first would delay that.
		logger.V(4).Info("Namespace is being deleted", "reason", err.Error())
		c.queue.Forget(key)
		c.EnqueueAfter(key, terminatingDelay)
		return
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		// The informers lag behind and will deliver the newer object.
		logger.V(4).Info("Retrying after a conflict", "reason", err.Error())
	default:
		logger.Error(err, "Failed to reconcile")
	}
	c.queue.AddRateLimited(key)
}
