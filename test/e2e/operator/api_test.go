package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// A created object causes several writes and is deleted at the end, so it costs many times as much as a read.
	writeEvery, readEvery = time.Second, 200 * time.Millisecond
	// loadLabel is on the objects of a load; its value identifies the load.
	loadLabel = "operator-test"
)

// apiLoad creates, updates and lists objects through kube-apiserver, and watches them.
type apiLoad struct {
	writes, reads activity
	// watches counts broken watches; it makes no calls.
	watches  activity
	client   dynamic.ResourceInterface
	selector string
	informer cache.SharedIndexInformer

	mu sync.Mutex
	// acknowledged are the names of created objects.
	acknowledged []string // guarded by mu
	// added are the objects that the watch delivered.
	added map[string]bool // guarded by mu
}

// startAPI starts the calls, with a timeout for each attempt; they end once stop is closed, and the watch ends with the test.
func startAPI(t *testing.T, s *stage, limit time.Duration, stop <-chan struct{}, running *sync.WaitGroup) *apiLoad {
	t.Helper()
	kind, value := harness.KindOf("Trigger"), strings.ToLower(rand.Text())
	a := &apiLoad{
		writes: activity{name: "API writes", limit: limit}, reads: activity{name: "API reads", limit: limit}, watches: activity{name: "API watches"},
		client: node.Admin.Dynamic.Resource(kind.GVR()).Namespace(s.namespace), selector: loadLabel + "=" + value, added: map[string]bool{},
	}
	a.informer = dynamicinformer.NewFilteredDynamicInformer(node.Admin.Dynamic, kind.GVR(), s.namespace, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = a.selector }).Informer()
	_, err := a.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if u, ok := object.(*unstructured.Unstructured); ok {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.added[u.GetName()] = true
		}
	}})
	if err == nil {
		err = a.informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
			// An ended watch is restarted, which is not a failure.
			if !errors.Is(err, io.EOF) {
				a.watches.mu.Lock()
				defer a.watches.mu.Unlock()
				a.watches.note(time.Now(), err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	go a.informer.RunWithContext(t.Context())
	running.Go(func() {
		a.writes.run(t.Context(), stop, writeEvery, func(ctx context.Context, number int) error {
			return a.create(ctx, idleTrigger(s.namespace, fmt.Sprintf("%s-%d", value, number)), value)
		})
	})
	running.Go(func() {
		a.reads.run(t.Context(), stop, readEvery, func(ctx context.Context, _ int) error {
			// The objects become many.
			_, err := a.client.List(ctx, metav1.ListOptions{LabelSelector: a.selector, Limit: 10})
			return err
		})
	})
	return a
}

// idleTrigger is a Trigger without events.
func idleTrigger(namespace, name string) *unstructured.Unstructured {
	u := harness.KindOf("Trigger").Object(namespace, name)
	u.Object["spec"].(map[string]any)["filter"] = map[string]any{"attributes": map[string]any{"type": "operator.test.none"}}
	return u
}

// create creates an object of the load. An existing object is the result of an attempt whose response was lost.
func (a *apiLoad) create(ctx context.Context, u *unstructured.Unstructured, value string) error {
	u.SetLabels(map[string]string{loadLabel: value})
	if _, err := a.client.Create(ctx, u, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.acknowledged = append(a.acknowledged, u.GetName())
	return nil
}

// verify reports, requires that each acknowledged object exists and was delivered by the watch, and deletes all of them.
func (a *apiLoad) verify(t *testing.T) {
	t.Helper()
	a.writes.report(t)
	a.reads.report(t)
	for _, failure := range a.watches.failures {
		t.Log("   watch:", failure)
	}
	eventually(t, patience, "all acknowledged objects exist, and the watch has received them", func(ctx context.Context) error {
		list, err := a.client.List(ctx, metav1.ListOptions{LabelSelector: a.selector})
		if err != nil {
			return err
		}
		there := map[string]bool{}
		for i := range list.Items {
			there[list.Items[i].GetName()] = true
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		missing, unseen := 0, 0
		for _, name := range a.acknowledged {
			if !there[name] {
				missing++
			}
			if !a.added[name] {
				unseen++
			}
		}
		if missing+unseen > 0 {
			return fmt.Errorf("of %d objects %d are lost, and the watch has not received %d", len(a.acknowledged), missing, unseen)
		}
		return nil
	})
	// The rest is deleted with the namespace.
	if err := a.client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: a.selector}); err != nil {
		t.Logf("deleting the objects of the load: %v", err)
	}
}

// mustNotHaveFailed fails the test if any attempt of a call failed.
func (a *apiLoad) mustNotHaveFailed(t *testing.T) {
	t.Helper()
	a.writes.mustNotHaveFailed(t)
	a.reads.mustNotHaveFailed(t)
	a.watches.mustNotHaveFailed(t)
}
