package destination

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
)

var (
	sinks    = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "sinks"}
	kindSink = sinks.GroupVersion().WithKind("Sink")
	core     = schema.GroupVersionResource{Version: "v1", Resource: "services"}
)

// newSink is an object of the host cluster with a status.
func newSink(name string, status any) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	obj.SetGroupVersionKind(kindSink)
	obj.SetNamespace("default")
	obj.SetName(name)
	return obj
}

func addressed(url string) map[string]any {
	return map[string]any{"address": map[string]any{"url": url}}
}

// growing is a mapper that knows the kind Sink from when it is reset.
type growing struct {
	*meta.DefaultRESTMapper
	resets atomic.Int32
}

func (g *growing) Reset() {
	g.resets.Add(1)
	g.Add(kindSink, meta.RESTScopeNamespace)
}

func newHost(objects ...runtime.Object) (*fake.FakeDynamicClient, *Host) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(kindSink, meta.RESTScopeNamespace)
	mapper.Add(schema.GroupVersionKind{Version: "v1", Kind: "Service"}, meta.RESTScopeNamespace)
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{sinks: "SinkList", core: "ServiceList"}, objects...)
	return client, &Host{Client: client, Mapper: mapper, Clock: clock.RealClock{}}
}

func toSink(name string) *duckv1.Destination {
	return &duckv1.Destination{Ref: ref("example.com/v1", "Sink", name)}
}

// expect compares what a follower found.
func expect(t *testing.T, f *follower, what string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.take()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestHost follows any Addressable of the host cluster (eventing Destination Resolution-1).
func TestHost(t *testing.T) {
	client, host := newHost()
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.World, f *follower, _ func()) {
		resource := client.Resource(sinks).Namespace("default")
		const missing = `example.com/v1 Sink "default/mine" does not exist`
		if seen := f.take(); len(seen) == 0 || seen[0] != missing {
			t.Errorf("missing: got %q", seen)
		}
		if _, err := resource.Create(t.Context(), newSink("mine", map[string]any{}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(t, f, "created", `example.com/v1 Sink "default/mine" has no address in status.address.url yet`)
		for _, tt := range []struct {
			name   string
			status any
			want   string
		}{
			{"address", addressed("http://a"), "http://a"},
			{"several", map[string]any{"addresses": []any{map[string]any{"name": "x", "url": "http://x"}, map[string]any{"url": "http://y"}}}, "http://x"},
			{"both", map[string]any{"address": map[string]any{"url": "http://a"}, "addresses": []any{map[string]any{"url": "http://y"}}}, "http://a"},
			{"no address", map[string]any{"phase": "Ready"}, `example.com/v1 Sink "default/mine" has no address in status.address.url yet`},
			{"status is no object", "fine", `example.com/v1 Sink "default/mine" has a status that is no object`},
			{"address is no object", map[string]any{"address": "http://a"},
				`example.com/v1 Sink "default/mine" has a status.address of another form: cannot restore struct from: string`},
		} {
			if _, err := resource.Update(t.Context(), newSink("mine", tt.status), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			expect(t, f, tt.name, tt.want)
		}
		if err := resource.Delete(t.Context(), "mine", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(t, f, "deleted", missing)
	})
}

// TestHostCoreService resolves a core Service if the host has it (eventing Destination Resolution-2).
func TestHostCoreService(t *testing.T) {
	web := &unstructured.Unstructured{}
	web.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Service"})
	web.SetNamespace("default")
	web.SetName("web")
	client, host := newHost(web)
	follow(t, Options{Host: host}, nil, &duckv1.Destination{Ref: ref("v1", "Service", "web")}, func(_ *controllertest.World, f *follower, _ func()) {
		if seen := f.take(); len(seen) == 0 || seen[0] != "http://web.default.svc.cluster.local" {
			t.Errorf("got %q", seen)
		}
		if err := client.Resource(core).Namespace("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(t, f, "deleted", `v1 Service "default/web" does not exist`)
	})
}

// TestHostForbidden says what the controllers may not read, and goes on once they may (eventing RBAC Profile).
func TestHostForbidden(t *testing.T) {
	client, host := newHost(newSink("mine", addressed("http://a")))
	var granted atomic.Bool
	client.PrependReactor("list", "sinks", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !granted.Load(), nil, apierrors.NewForbidden(sinks.GroupResource(), "", nil)
	})
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.World, f *follower, again func()) {
		seen := f.take()
		if len(seen) != 1 {
			t.Fatalf("got %q", seen)
		}
		const want = `example.com/v1 Sink "default/mine" cannot be read: the controllers may not list and watch its kind in the cluster; ` +
			`a ClusterRole labelled duck.knative.dev/addressable: "true" grants that: `
		if len(seen[0]) < len(want) || seen[0][:len(want)] != want {
			t.Errorf("got %q", seen[0])
		}
		again()
		if again := f.take(); !cmp.Equal(again, seen) {
			t.Errorf("again: got %q", again)
		}
		granted.Store(true)
		pass(2 * time.Minute)
		if seen := f.take(); len(seen) == 0 || seen[len(seen)-1] != "http://a" {
			t.Errorf("granted: got %q", seen)
		}
	})
}

// TestHostForbiddenAndMissing looks again for an object that is not there, once it may be read.
func TestHostForbiddenAndMissing(t *testing.T) {
	client, host := newHost()
	var granted atomic.Bool
	client.PrependReactor("list", "sinks", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !granted.Load(), nil, apierrors.NewForbidden(sinks.GroupResource(), "", nil)
	})
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.World, f *follower, _ func()) {
		f.take()
		granted.Store(true)
		pass(2 * time.Minute)
		expect(t, f, "granted", `example.com/v1 Sink "default/mine" does not exist`)
	})
}

// TestHostSilent does not hold up others for a kind that the host does not answer for.
func TestHostSilent(t *testing.T) {
	client, host := newHost(newSink("mine", addressed("http://a")))
	client.PrependReactor("list", "sinks", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-time.After(3 * patience)
		return false, nil, nil
	})
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.World, f *follower, _ func()) {
		expect(t, f, "before long")
		pass(patience)
		expect(t, f, "then", `example.com/v1 Sink "default/mine" cannot be read: the cluster has not answered yet`)
		pass(3 * patience)
		if seen := f.take(); len(seen) == 0 || seen[len(seen)-1] != "http://a" {
			t.Errorf("answered: got %q", seen)
		}
	})
}

// TestHostUnknownKind looks again for a kind that the host does not serve yet.
func TestHostUnknownKind(t *testing.T) {
	_, host := newHost(newSink("mine", addressed("http://a")))
	mapper := &growing{DefaultRESTMapper: meta.NewDefaultRESTMapper(nil)}
	host.Mapper = mapper
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.World, f *follower, again func()) {
		const unknown = `example.com/v1 Sink "default/mine" does not exist: the cluster serves no such kind`
		expect(t, f, "unknown", unknown)
		again()
		expect(t, f, "at once", unknown)
		if n := mapper.resets.Load(); n > 0 {
			t.Errorf("the host was asked %d times for its kinds", n)
		}
		pass(rediscovery)
		if seen := f.take(); len(seen) == 0 || seen[len(seen)-1] != "http://a" {
			t.Errorf("known: got %q", seen)
		}
		if n := mapper.resets.Load(); n != 1 {
			t.Errorf("the host was asked %d times for its kinds", n)
		}
	})
}

// TestHostObject gives a whole object, and says why there is none.
func TestHostObject(t *testing.T) {
	refs := begin(t, controllertest.New(t), Options{})
	_, err := refs.HostObject(t.Context(), ref("example.com/v1", "Sink", "mine"))
	want := &Unresolved{ReasonNotFound, `example.com/v1 Sink "default/mine" cannot be read: this server runs without a cluster`}
	if fault, _ := AsUnresolved(err); !cmp.Equal(want, fault) {
		t.Errorf("without a host: got %v", err)
	}
	_, host := newHost(newSink("mine", addressed("http://a")))
	refs = begin(t, controllertest.New(t), Options{Host: host})
	obj, err := refs.HostObject(t.Context(), ref("example.com/v1", "Sink", "mine"))
	if err != nil || obj.GetName() != "mine" {
		t.Errorf("got %v, %v", obj, err)
	}
}
