package standalone

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// startWatch watches a namespace until the test ends.
func startWatch(t *testing.T, k harness.Kind, namespace string, options metav1.ListOptions) watch.Interface {
	t.Helper()
	w, err := admin.Dynamic.Resource(k.GVR()).Namespace(namespace).Watch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// next returns the next event.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	event, err := receive(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return event
}

func receive(ctx context.Context, w watch.Interface) (watch.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, harness.Patience)
	defer cancel()
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return event, errors.New("the watch ended")
		}
		return event, nil
	case <-ctx.Done():
		return watch.Event{}, ctx.Err()
	}
}

// wantEvent receives the next event and compares its type and object.
func wantEvent(t *testing.T, w watch.Interface, eventType watch.EventType, name string) *unstructured.Unstructured {
	t.Helper()
	event := next(t, w)
	obj, ok := event.Object.(*unstructured.Unstructured)
	if !ok || event.Type != eventType || obj.GetName() != name {
		t.Fatalf("got %s %v, want %s of %s", event.Type, event.Object, eventType, name)
	}
	return obj
}

// TestWatch covers conventions Verbs-7, conventions Concurrency-3.
func TestWatch(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns := namespace(t)
		w := startWatch(t, k, ns, metav1.ListOptions{})
		labelled := startWatch(t, k, ns, metav1.ListOptions{LabelSelector: "by=user"})
		named := startWatch(t, k, ns, metav1.ListOptions{FieldSelector: "metadata.name=b"})

		created := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, "a")}).Object(t)
		if added := wantEvent(t, w, watch.Added, "a"); added.GetResourceVersion() != created.GetResourceVersion() {
			t.Errorf("the event is of version %s, the object of %s", added.GetResourceVersion(), created.GetResourceVersion())
		}
		admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(created), ContentType: mergePatch, Body: label("user")}).Object(t)
		wantEvent(t, w, watch.Modified, "a")
		wantEvent(t, labelled, watch.Added, "a")
		controllers.Do(t, harness.Request{Method: "PATCH", Path: pathOf(created) + "/status", ContentType: mergePatch, Body: object{"status": readyStatus()}}).Object(t)
		wantEvent(t, w, watch.Modified, "a")
		wantEvent(t, labelled, watch.Modified, "a")
		admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(created), ContentType: mergePatch, Body: label("none")}).Object(t)
		wantEvent(t, w, watch.Modified, "a")
		wantEvent(t, labelled, watch.Deleted, "a")
		admin.Do(t, harness.Request{Method: "DELETE", Path: pathOf(created)})
		deleted := wantEvent(t, w, watch.Deleted, "a")
		if deleted.GetResourceVersion() == created.GetResourceVersion() {
			t.Error("a deletion must have its own resource version")
		}
		admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, "b")}).Object(t)
		wantEvent(t, w, watch.Added, "b")
		wantEvent(t, named, watch.Added, "b")

		// From the version of its creation, the watch delivers the later changes.
		replay := startWatch(t, k, ns, metav1.ListOptions{ResourceVersion: created.GetResourceVersion()})
		for range 3 {
			wantEvent(t, replay, watch.Modified, "a")
		}
		wantEvent(t, replay, watch.Deleted, "a")
		wantEvent(t, replay, watch.Added, "b")
	})
}

// TestWatchList checks that a watch with sendInitialEvents delivers the state first and marks its end (WatchList, P20).
func TestWatchList(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns := three(t, k)
		w := startWatch(t, k, ns, metav1.ListOptions{
			SendInitialEvents:    ptr.To(true),
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
			AllowWatchBookmarks:  true,
		})
		for _, name := range []string{"a", "b", "c"} {
			wantEvent(t, w, watch.Added, name)
		}
		event := next(t, w)
		bookmark, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type != watch.Bookmark || bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
			t.Fatalf("got %s %v, want the bookmark that ends the list", event.Type, event.Object)
		}
		if bookmark.GetKind() != k.Kind || bookmark.GetResourceVersion() == "" {
			t.Errorf("the bookmark is %v", bookmark.Object)
		}
		admin.Do(t, harness.Request{Method: "DELETE", Path: k.Path(ns, "b")})
		wantEvent(t, w, watch.Deleted, "b")
	})
}

// TestBookmarks checks bookmarks, which the library sends about once a minute, and shortly before the timeout of a watch.
func TestBookmarks(t *testing.T) {
	k := harness.KindOf("Broker")
	ns := namespace(t)
	obj := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, "a")}).Object(t)
	attempts := 0
	// A watch gets no bookmark of the change if the server or the test stalls for the few seconds of the watch.
	harness.Eventually(t, "a watch gets a bookmark", func() error {
		w := startWatch(t, k, "elsewhere", metav1.ListOptions{
			AllowWatchBookmarks: true, ResourceVersion: obj.GetResourceVersion(), TimeoutSeconds: ptr.To[int64](5),
		})
		defer w.Stop()
		// Objects change, but not in this watch.
		attempts++
		news := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, fmt.Sprintf("b-%d", attempts))}).Object(t)
		event, err := receive(t.Context(), w)
		if err != nil {
			return err
		}
		bookmark, ok := event.Object.(*unstructured.Unstructured)
		if !ok || event.Type != watch.Bookmark {
			return fmt.Errorf("got %s %v, want a bookmark of version %s", event.Type, event.Object, news.GetResourceVersion())
		}
		order, err := resourceversion.CompareResourceVersion(bookmark.GetResourceVersion(), news.GetResourceVersion())
		if err == nil && order < 0 {
			err = fmt.Errorf("the bookmark is of version %s, want at least %s", bookmark.GetResourceVersion(), news.GetResourceVersion())
		}
		return err
	})
}

func TestWatchOfOneKindSeesNoOther(t *testing.T) {
	ns := namespace(t)
	w := startWatch(t, harness.KindOf("Configuration"), ns, metav1.ListOptions{})
	for i, kind := range []string{"Service", "Route", "Configuration"} {
		k := harness.KindOf(kind)
		name := fmt.Sprintf("a-%d", i)
		admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object(ns, name)}).Object(t)
	}
	wantEvent(t, w, watch.Added, "a-2")
}
