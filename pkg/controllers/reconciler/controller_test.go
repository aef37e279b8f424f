package reconciler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// reconcile is a Reconciler.
type reconcile func(ctx context.Context, request Request) error

func (r reconcile) Reconcile(ctx context.Context, request Request) (Result, error) {
	return Result{}, r(ctx, request)
}

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// run runs a controller in a synctest bubble until fn returns.
func run(t *testing.T, c *Controller, workers int, fn func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { c.Run(ctx, workers) })
	// Run polls whether the informers have synced.
	<-time.After(time.Second)
	synctest.Wait()
	fn()
}

func isPrimed(c *Controller) bool {
	select {
	case <-c.Primed():
		return true
	default:
		return false
	}
}

// A controller is primed once all initial objects have been reconciled once, with or without an error, and immediately without
// objects.
func TestPrimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		c := New("test", reconcile(func(_ context.Context, request Request) error {
			if request.Key.Name == "held" {
				<-held
			}
			return errors.New("broken")
		}))
		c.Enqueue(named("failing"))
		c.Enqueue(named("held"))
		run(t, c, 2, func() {
			if isPrimed(c) {
				t.Error("primed before all was reconciled")
			}
			close(held)
			synctest.Wait()
			if !isPrimed(c) {
				t.Error("not primed after all was reconciled")
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		c := New("test", reconcile(nil))
		run(t, c, 1, func() {
			if !isPrimed(c) {
				t.Error("not primed without any object")
			}
		})
	})
}

// A server that does not respond blocks a worker for a bounded time.
func TestReconcileIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New("test", reconcile(func(ctx context.Context, _ Request) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		c.Enqueue(named("hanging"))
		run(t, c, 1, func() {
			if isPrimed(c) {
				t.Error("primed before anything was reconciled")
			}
			<-time.After(timeout)
			synctest.Wait()
			if !isPrimed(c) {
				t.Error("still not primed")
			}
		})
	})
}

// Failed keys are retried with increasing delay, successful ones are not.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		c := New("test", reconcile(func(context.Context, Request) error {
			if at = append(at, time.Now()); len(at) < 4 {
				return errors.New("broken")
			}
			return nil
		}))
		c.Enqueue(named("a"))
		run(t, c, 1, func() {
			<-time.After(time.Hour)
			synctest.Wait()
			if len(at) != 4 {
				t.Fatalf("%d calls, want 4", len(at))
			}
			for i := 2; i < len(at); i++ {
				if before, after := at[i-1].Sub(at[i-2]), at[i].Sub(at[i-1]); after < 2*before {
					t.Errorf("call %d comes %v after the previous one, which came after %v", i, after, before)
				}
			}
		})
	})
}

// Objects whose namespace is being deleted are retried rarely: they will be deleted.
func TestRetriesInDeletedNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		refused := apierrors.NewForbidden(schema.GroupResource{Resource: "routes"}, "a", errors.New("the namespace is being deleted"))
		refused.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		c := New("test", reconcile(func(context.Context, Request) error {
			calls++
			return fmt.Errorf("create Route: %w", refused)
		}))
		c.Enqueue(named("a"))
		run(t, c, 1, func() {
			<-time.After(3*terminatingDelay + terminatingDelay/2)
			synctest.Wait()
			if calls != 4 {
				t.Errorf("%d calls in three and a half delays, want 4", calls)
			}
		})
	})
}

// requeueing is a Reconciler that returns the same result and error each time.
type requeueing struct {
	result Result
	err    error
	calls  []time.Duration
	start  time.Time
}

func (r *requeueing) Reconcile(context.Context, Request) (Result, error) {
	r.calls = append(r.calls, time.Since(r.start))
	return r.result, r.err
}

// A Reconciler is called again after its RequeueAfter, also if it returns an error with a longer backoff.
func TestRequeueAfter(t *testing.T) {
	for name, err := range map[string]error{"success": nil, "error": errors.New("broken")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &requeueing{result: Result{RequeueAfter: time.Second}, err: err}
				c := New("test", r)
				run(t, c, 1, func() {
					r.start = time.Now()
					c.Enqueue(named("a"))
					<-time.After(time.Hour)
					synctest.Wait()
				})
				for i := 1; i < len(r.calls); i++ {
					if pause := r.calls[i] - r.calls[i-1]; pause > time.Second || err == nil && pause != time.Second {
						t.Fatalf("call %d comes after %v", i, pause)
					}
				}
				if len(r.calls) < 3600 {
					t.Errorf("%d calls in an hour", len(r.calls))
				}
			})
		})
	}
}

// Changes enqueue the keys of an object's old and new state, and of a deleted object whose deletion was missed, once Run has begun.
func TestWatch(t *testing.T) {
	informer := &fakeInformer{}
	c := New("test", reconcile(nil))
	if err := c.Watch(informer, ControllerOf("Service")); err != nil {
		t.Fatal(err)
	}
	owned := func(kind, name string) *servingv1.Route {
		route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "route"}}
		route.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: name}, servingv1.SchemeGroupVersion.WithKind(kind))}
		return route
	}
	next := func() types.NamespacedName {
		key, _ := c.queue.Get()
		c.queue.Done(key)
		return key
	}
	informer.OnAdd(owned("Service", "early"), true)
	if got := c.queue.Len(); got != 0 {
		t.Errorf("%d keys before Run, want none", got)
	}
	c.watching.Store(true)
	informer.OnAdd(owned("Other", "none"), false)
	informer.OnUpdate(owned("Service", "old"), owned("Service", "new"))
	informer.OnDelete(cache.DeletedFinalStateUnknown{Key: "default/route", Obj: owned("Service", "gone")})
	if got := c.queue.Len(); got != 3 {
		t.Fatalf("%d keys, want 3", got)
	}
	for _, want := range []string{"old", "new", "gone"} {
		if got := next(); got != named(want) {
			t.Errorf("key is %q, want %q", got, named(want))
		}
	}
}

// fakeInformer records the handler that is added to it.
type fakeInformer struct {
	cache.SharedIndexInformer
	cache.ResourceEventHandler
}

func (f *fakeInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	f.ResourceEventHandler = handler
	return registration{}, nil
}

type registration struct {
	cache.ResourceEventHandlerRegistration
}

func (registration) HasSynced() bool { return true }
