package route

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// namespaces is an informer of Namespaces that has some from the start.
type namespaces struct {
	cache.SharedIndexInformer
	store cache.Store
}

func (n namespaces) GetStore() cache.Store { return n.store }

// namespaceWith returns the Namespace default with the annotation, or without it if value is nil.
func namespaceWith(value *string) namespaces {
	n := namespaces{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if value != nil {
		object.Annotations = map[string]string{servingv1.InvocationAnnotationKey: *value}
	}
	if err := n.store.Add(object); err != nil {
		panic(err)
	}
	return n
}

// The most specific of Route, Namespace and settings decides the allowed callers, and unknown values restrict.
func TestCallers(t *testing.T) {
	const open, rbac = servingv1.InvocationOpen, servingv1.InvocationRBAC
	for name, test := range map[string]struct {
		route, namespace *string
		setting          string
		restricted       bool
	}{
		"nothing":                   {},
		"setting":                   {setting: rbac, restricted: true},
		"setting open":              {setting: open},
		"namespace":                 {namespace: ptr.To(rbac), setting: open, restricted: true},
		"namespace over setting":    {namespace: ptr.To(open), setting: rbac},
		"route":                     {route: ptr.To(rbac), namespace: ptr.To(open), restricted: true},
		"route over namespace":      {route: ptr.To(open), namespace: ptr.To(rbac), setting: rbac},
		"unknown value of a Route":  {route: ptr.To("RBAC"), restricted: true},
		"unknown value":             {namespace: ptr.To("opne"), restricted: true},
		"empty value":               {namespace: ptr.To(""), restricted: true},
		"Route without a Namespace": {route: ptr.To(rbac), restricted: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Reconciler{URLs: URLs{ClusterDomain: "cluster.local"}, Namespaces: namespaceWith(test.namespace)}
			route := newRoute("hello")
			if test.route != nil {
				route.Annotations = map[string]string{servingv1.InvocationAnnotationKey: *test.route}
			}
			got, err := r.callers(route, &addresses{url: "http://hello.default.example.com"}, &settings.Settings{Network: settings.Network{Invocation: test.setting}})
			if err != nil {
				t.Fatal(err)
			}
			var want *routing.Callers
			if test.restricted {
				want = &routing.Callers{
					Audiences: []string{
						"http://hello.default.example.com", "http://hello.default.svc.cluster.local",
						"https://hello.default.example.com", "https://hello.default.svc.cluster.local",
					},
					Group: "serving.knative.dev", Resource: "routes", Name: "hello",
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("callers (-want +got):\n%s", diff)
			}
		})
	}
}

// Callers of a Route that a Service owns need the permission for the Service. The audience of a private Route is its internal URL, and
// URLs have the port of the gateway.
func TestCallersOfService(t *testing.T) {
	r := &Reconciler{URLs: URLs{ClusterDomain: "cluster.local", Port: 8080}}
	route := newRoute("hello")
	route.Annotations = map[string]string{servingv1.InvocationAnnotationKey: servingv1.InvocationRBAC}
	route.OwnerReferences = []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "shop", Controller: ptr.To(true)}}
	got, err := r.callers(route, &addresses{url: "http://hello.default.svc.cluster.local:8080"}, &settings.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	want := &routing.Callers{
		Audiences: []string{"http://hello.default.svc.cluster.local:8080", "https://hello.default.svc.cluster.local:8080"},
		Group:     "serving.knative.dev", Resource: "services", Name: "shop",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("callers (-want +got):\n%s", diff)
	}
}

// A Route is not served before its Namespace is known.
func TestCallersOfUnknownNamespace(t *testing.T) {
	r := &Reconciler{Namespaces: namespaces{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}}
	if _, err := r.callers(newRoute("hello"), &addresses{}, &settings.Settings{}); err == nil || !strings.Contains(err.Error(), "not known yet") {
		t.Errorf("got %v, want an error", err)
	}
}
