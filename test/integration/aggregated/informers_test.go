package aggregated

import (
	stdcontext "context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// view is the state according to an informer's events: the resourceVersion of each object by name.
type view struct {
	mu       sync.Mutex
	objects  map[string]string // guarded by mu
	mistakes []string          // guarded by mu
}

func (v *view) record(what string, obj any, wantKnown, keep bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	o := obj.(metav1.Object)
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.objects[o.GetName()]; known != wantKnown {
		v.mistakes = append(v.mistakes, fmt.Sprintf("%s of %s, known: %t", what, o.GetName(), known))
	}
	if keep {
		v.objects[o.GetName()] = o.GetResourceVersion()
	} else {
		delete(v.objects, o.GetName())
	}
}

func (v *view) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { v.record("addition", obj, false, true) },
		UpdateFunc: func(_, obj any) { v.record("update", obj, true, true) },
		DeleteFunc: func(obj any) { v.record("deletion", obj, true, false) },
	}
}

// equals waits until the view equals the stored objects.
func (v *view) equals(t *testing.T, stored map[string]string) {
	t.Helper()
	within(t, rediscovery, "the informer equals the stored objects", func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if !maps.Equal(v.objects, stored) {
			return fmt.Errorf("it has %v, stored are %v", v.objects, stored)
		}
		return nil
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.mistakes) > 0 {
		t.Errorf("inconsistent events: %q", v.mistakes)
	}
}

func stored(t *testing.T, ns string) map[string]string {
	t.Helper()
	list, err := host.Admin.Knative.EventingV1().Triggers(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	result := map[string]string{}
	for _, item := range list.Items {
		result[item.Name] = item.ResourceVersion
	}
	return result
}

// TestInformers runs an informer of the generated clientset across kill -9 of the server: every acknowledged write is stored
// afterwards, no event is missed and none is invented (P20).
// It covers conventions Concurrency-3.
func TestInformers(t *testing.T) {
	host.StartAfter(t)
	ns := host.Namespace(t, "informers", nil)
	kind := harness.KindOf("Trigger")
	for i := range 5 {
		mustCreate(t, kind.Object(ns, fmt.Sprintf("before-%d", i)))
	}
	list, err := host.Admin.Knative.EventingV1().Triggers(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	start := list.ResourceVersion

	ctx, cancel := stdcontext.WithCancel(t.Context())
	factory := externalversions.NewSharedInformerFactoryWithOptions(host.Admin.Knative, 0, externalversions.WithNamespace(ns))
	informer := factory.Eventing().V1().Triggers().Informer()
	seen := &view{objects: map[string]string{}}
	if _, err := informer.AddEventHandler(seen.handler()); err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer does not start")
	}
	seen.equals(t, stored(t, ns))

	// Writes continue until the kill, so that a lost acknowledged write would be detected.
	var acknowledged atomic.Int64
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		for i := range 10000 {
			request := harness.Request{Method: http.MethodPost, Path: kind.Collection(ns), Body: kind.Object(ns, fmt.Sprintf("write-%d", i))}
			response, err := host.Admin.Send(ctx, request)
			if err != nil || response.Code != http.StatusCreated {
				return
			}
			acknowledged.Add(1)
		}
	}()
	harness.Eventually(t, "20 writes are acknowledged", func() error {
		if n := acknowledged.Load(); n < 20 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	host.Server.Kill()
	<-writing
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	after := stored(t, ns)
	for i := range acknowledged.Load() {
		if _, ok := after[fmt.Sprintf("write-%d", i)]; !ok {
			t.Errorf("write-%d was acknowledged and is lost", i)
		}
	}
	for i := range 3 {
		wantCode(t, remove(t, host.Admin, kind.Object(ns, fmt.Sprintf("before-%d", i))), http.StatusOK)
		wantCode(t, patch(t, host.Admin, kind.Path(ns, fmt.Sprintf("write-%d", i)), `{"metadata":{"labels":{"a":"b"}}}`), http.StatusOK)
		mustCreate(t, kind.Object(ns, fmt.Sprintf("after-%d", i)))
	}
	seen.equals(t, stored(t, ns))
	resume(t, ns, start, slices.Collect(maps.Keys(after)))
}

// resume watches from a resourceVersion before the restart: either the watch delivers all later events, or the server responds
// 410 Gone and the client lists again.
func resume(t *testing.T, ns, resourceVersion string, names []string) {
	t.Helper()
	ctx, cancel := stdcontext.WithTimeout(t.Context(), rediscovery)
	defer cancel()
	watch, err := host.Admin.Dynamic.Resource(harness.KindOf("Trigger").GVR()).Namespace(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: resourceVersion})
	if err != nil {
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("watching from an old resourceVersion: %v, want 410", err)
		}
		return
	}
	defer watch.Stop()
	missing := map[string]bool{}
	for _, name := range names {
		missing[name] = true
	}
	for i := range 5 {
		delete(missing, fmt.Sprintf("before-%d", i))
	}
	for len(missing) > 0 {
		event, ok := <-watch.ResultChan()
		if !ok {
			t.Fatalf("the watch ended before it delivered %v", missing)
		}
		if status, ok := event.Object.(*metav1.Status); ok {
			if status.Code != http.StatusGone || status.Reason != metav1.StatusReasonExpired {
				t.Errorf("the watch ended with %+v, want 410 Expired", status)
			}
			return
		}
		delete(missing, event.Object.(metav1.Object).GetName())
	}
}
