package aggregated

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestWatchList receives the existing objects, a bookmark that marks their end, and then changes, in one watch (P20).
func TestWatchList(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "watchlist", nil)
	kind := harness.KindOf("Route")
	for i := range 3 {
		mustCreate(t, kind.Object(ns, fmt.Sprintf("route-%d", i)))
	}
	events, err := host.Admin.Dynamic.Resource(kind.GVR()).Namespace(ns).Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: ptr.To(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	next := func(want watch.EventType) *unstructured.Unstructured {
		t.Helper()
		event := <-events.ResultChan()
		if event.Type != want {
			t.Fatalf("event %+v, want %s", event, want)
		}
		return event.Object.(*unstructured.Unstructured)
	}
	for range 3 {
		next(watch.Added)
	}
	if bookmark := next(watch.Bookmark); bookmark.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" || bookmark.GetResourceVersion() == "" {
		t.Errorf("bookmark %v, want one that ends the initial events", bookmark)
	}
	mustCreate(t, kind.Object(ns, "later"))
	if name := next(watch.Added).GetName(); name != "later" {
		t.Errorf("%s was added, want later", name)
	}
}

// TestPaging checks that the pages of a list show the state of one moment (P20).
func TestPaging(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "paging", nil)
	kind := harness.KindOf("Channel")
	for i := range 5 {
		mustCreate(t, kind.Object(ns, fmt.Sprintf("channel-%d", i)))
	}
	channels := host.Admin.Dynamic.Resource(kind.GVR()).Namespace(ns)
	first, err := channels.List(t.Context(), metav1.ListOptions{Limit: 2})
	if err != nil || len(first.Items) != 2 || first.GetContinue() == "" || *first.GetRemainingItemCount() != 3 {
		t.Fatalf("the first page: %v, %v", first, err)
	}
	mustCreate(t, kind.Object(ns, "channel-9"))
	rest, err := channels.List(t.Context(), metav1.ListOptions{Limit: 10, Continue: first.GetContinue()})
	if err != nil || len(rest.Items) != 3 || rest.GetContinue() != "" || rest.GetResourceVersion() != first.GetResourceVersion() {
		t.Errorf("the rest: %v, %v", rest, err)
	}
}

// TestProtobufFirst checks that a client that prefers protobuf receives JSON, and that one that accepts nothing else is
// rejected (P15).
func TestProtobufFirst(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "protobuf", nil)
	const protobuf = "application/vnd.kubernetes.protobuf"
	for _, kind := range harness.Kinds() {
		object := mustCreate(t, kind.Object(ns, "one"))
		for _, request := range []harness.Request{
			{Method: http.MethodGet, Path: pathOf(object)},
			{Method: http.MethodGet, Path: kind.Collection(ns)},
			{Method: http.MethodPut, Path: pathOf(object), Body: object},
			{Method: http.MethodGet, Path: kind.Path(ns, "missing")},
			{Method: http.MethodDelete, Path: kind.Collection(ns)},
		} {
			request.Accept = protobuf + ",application/json"
			response := do(t, host.Admin, request)
			if contentType := response.Header.Get("Content-Type"); contentType != "application/json" || !strings.HasPrefix(string(response.Body), "{") {
				t.Errorf("%s %s: code %d, %s, want JSON", request.Method, request.Path, response.Code, contentType)
			}
		}
		// Metadata and tables are also available as protobuf.
		metadata := "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
		response := do(t, host.Admin, harness.Request{Method: http.MethodGet, Path: kind.Collection(ns), Accept: strings.Replace(metadata, "application/json", protobuf, 1) + "," + metadata})
		wantCode(t, response, http.StatusOK)
		response = do(t, host.Admin, harness.Request{Method: http.MethodGet, Path: kind.Collection(ns), Accept: protobuf})
		wantCode(t, response, http.StatusNotAcceptable)
	}
}
