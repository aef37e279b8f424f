package app

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
	generated "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/eventing/v1"
)

// serveNamespaces runs an API server with some Namespaces, and returns a client of its controllers.
func serveNamespaces(t *testing.T, names ...string) (*apiserver.Server, versioned.Interface) {
	t.Helper()
	_, server := serveAPI(t)
	client, err := versioned.NewForConfig(server.ControllersConfig())
	if err != nil {
		t.Fatal(err)
	}
	core, err := newCoreKinds(server.ControllersConfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := core.kubernetes.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return server, client
}

// TestStored checks that lists and watches of Stored return what a client gets, and share the memory of the watch cache.
func TestStored(t *testing.T) {
	server, client := serveNamespaces(t, "default")
	brokers := client.EventingV1().Brokers("default")
	var direct apiserver.Stored
	kinds := map[string]bool{}
	for _, resource := range server.Stored() {
		kinds[fmt.Sprintf("%T", resource.New())] = true
		if _, ok := resource.New().(*eventingv1.Broker); ok {
			direct = resource
		}
	}
	if len(kinds) != 12 || !kinds["*v1.Service"] || !kinds["*v1alpha1.EventRun"] {
		t.Fatalf("stored kinds are %v", kinds)
	}
	for _, name := range []string{"a", "b"} {
		create(t, brokers, name)
	}
	viaClient, err := client.EventingV1().Brokers("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	listed, err := direct.ListWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list := listed.(*eventingv1.BrokerList)
	if len(list.Items) != 2 || list.ResourceVersion != viaClient.ResourceVersion || !equality.Semantic.DeepEqual(list.Items, viaClient.Items) {
		t.Fatalf("listed %+v, a client gets %+v", list, viaClient)
	}

	// With this many watches, the watch cache encodes each object once for all.
	options := metav1.ListOptions{ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true}
	reference, err := client.EventingV1().Brokers("").Watch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer reference.Stop()
	var watches []watch.Interface
	for range 4 {
		w, err := direct.WatchWithContext(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		watches = append(watches, w)
	}
	create(t, brokers, "c")
	if _, err := brokers.Patch(t.Context(), "c", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"colour":"red"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := brokers.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		expected := next(t, reference)
		if expected.Type != want {
			t.Fatalf("a client gets %+v, want %s", expected, want)
		}
		for n, w := range watches {
			event := next(t, w)
			if event.Type != expected.Type || !equality.Semantic.DeepEqual(event.Object, expected.Object) {
				t.Errorf("watch %d returns %s %+v, a client gets %s %+v", n, event.Type, event.Object, expected.Type, expected.Object)
			}
		}
	}

	create(t, brokers, "d")
	listed, err = direct.ListWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	items := listed.(*eventingv1.BrokerList).Items
	last := items[len(items)-1]
	for n, w := range watches {
		created := next(t, w).Object.(*eventingv1.Broker)
		if created.Name != "d" || last.Name != "d" || reflect.ValueOf(created.Labels).Pointer() != reflect.ValueOf(last.Labels).Pointer() {
			t.Errorf("watch %d returns %s, a copy of %s in the watch cache", n, created.Name, last.Name)
		}
	}
}

// TestNamespacesOfStored checks that each namespace with objects is found, once.
func TestNamespacesOfStored(t *testing.T) {
	server, client := serveNamespaces(t, "a", "b", "empty")
	for namespace, names := range map[string][]string{"a": {"a", "b"}, "b": {"a"}} {
		for _, name := range names {
			create(t, client.EventingV1().Brokers(namespace), name)
		}
	}
	found := sets.Set[string]{}
	for _, resource := range server.Stored() {
		// A list at the latest version, so that the watch cache has all objects.
		if _, err := resource.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		namespaces, err := resource.Namespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found = found.Union(namespaces)
	}
	if !found.Equal(sets.New("a", "b")) {
		t.Errorf("namespaces with objects are %v", sets.List(found))
	}
}

// TestStoredWithoutInformers checks that a process that only serves the API keeps no second copy of its objects.
func TestStoredWithoutInformers(t *testing.T) {
	_, server := serveAPI(t)
	api := &aggregated{}
	if got := api.stored(server); len(got) != 0 {
		t.Errorf("only with the API, informers of %d resources are started", len(got))
	}
	api.Eventing = &EventingConfig{}
	if got := api.stored(server); len(got) != len(server.Stored()) || len(got) == 0 {
		t.Errorf("with Eventing, %d of %d resources are read without requests", len(got), len(server.Stored()))
	}
}

func create(t *testing.T, brokers generated.BrokerInterface, name string) {
	t.Helper()
	broker := &eventingv1.Broker{}
	broker.Name, broker.Labels = name, map[string]string{"name": name}
	if _, err := brokers.Create(t.Context(), broker, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// next returns the next event that is not a bookmark.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	for event := range w.ResultChan() {
		if event.Type != watch.Bookmark {
			return event
		}
	}
	t.Fatal("the watch has ended")
	return watch.Event{}
}
