package destination

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
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

// growing is a mapper that has the kind Sink once it is reset.
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

// expect compares the results of a follower.
func expect(t *testing.T, f *follower, what string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.results()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestHost resolves any Addressable of the host cluster (eventing Destination Resolution-1).
func TestHost(t *testing.T) {
	client, host := newHost()
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.Fixture, f *follower, _ func()) {
		resource := client.Resource(sinks).Namespace("default")
		const missing = `example.com/v1 Sink "default/mine" does not exist`
		if seen := f.results(); len(seen) == 0 || seen[0] != missing {
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
			{"both", map[string]any{"address": map[string]any{"url": "http://a"}, "addresses": []any{map[string]any{"url": "http://y"}}}, "http://y"},
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
	follow(t, Options{Host: host}, nil, &duckv1.Destination{Ref: ref("v1", "Service", "web")}, func(_ *controllertest.Fixture, f *follower, _ func()) {
		if seen := f.results(); len(seen) == 0 || seen[0] != "http://web.default.svc.cluster.local" {
			t.Errorf("got %q", seen)
		}
		if err := client.Resource(core).Namespace("default").Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect(t, f, "deleted", `v1 Service "default/web" does not exist`)
	})
}

// TestHostForbidden checks that missing permissions of the controllers are reported, and that destinations are resolved once they are
// granted (eventing RBAC Profile).
func TestHostForbidden(t *testing.T) {
	client, host := newHost(newSink("mine", addressed("http://a")))
	var granted atomic.Bool
	client.PrependReactor("list", "sinks", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !granted.Load(), nil, apierrors.NewForbidden(sinks.GroupResource(), "", nil)
	})
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.Fixture, f *follower, retry func()) {
		seen := f.results()
		if len(seen) != 1 {
			t.Fatalf("got %q", seen)
		}
		const want = `example.com/v1 Sink "default/mine" cannot be read: the controllers may not list and watch its kind in the cluster; ` +
			`a ClusterRole labelled duck.knative.dev/addressable: "true" grants that: `
		if len(seen[0]) < len(want) || seen[0][:len(want)] != want {
			t.Errorf("got %q", seen[0])
		}
		retry()
		if repeated := f.results(); !cmp.Equal(repeated, seen) {
			t.Errorf("again: got %q", repeated)
		}
		granted.Store(true)
		pass(2 * time.Minute)
		if seen := f.results(); len(seen) == 0 || seen[len(seen)-1] != "http://a" {
			t.Errorf("granted: got %q", seen)
		}
	})
}

// TestHostForbiddenAndMissing checks that a missing object is looked up again once the controllers may read its kind.
func TestHostForbiddenAndMissing(t *testing.T) {
	client, host := newHost()
	var granted atomic.Bool
	client.PrependReactor("list", "sinks", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !granted.Load(), nil, apierrors.NewForbidden(sinks.GroupResource(), "", nil)
	})
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.Fixture, f *follower, _ func()) {
		f.results()
		granted.Store(true)
		pass(2 * time.Minute)
		expect(t, f, "granted", `example.com/v1 Sink "default/mine" does not exist`)
	})
}

// TestHostSilent checks that a kind for which the host does not respond does not delay others.
func TestHostSilent(t *testing.T) {
	client, host := newHost(newSink("mine", addressed("http://a")))
	client.PrependReactor("list", "sinks", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-time.After(3 * patience)
		return false, nil, nil
	})
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.Fixture, f *follower, _ func()) {
		expect(t, f, "before long")
		pass(patience)
		expect(t, f, "then", `example.com/v1 Sink "default/mine" cannot be read: the cluster has not answered yet`)
		pass(3 * patience)
		if seen := f.results(); len(seen) == 0 || seen[len(seen)-1] != "http://a" {
			t.Errorf("answered: got %q", seen)
		}
	})
}

// TestHostUnknownKind checks that a kind that the host does not serve yet is looked up again.
func TestHostUnknownKind(t *testing.T) {
	_, host := newHost(newSink("mine", addressed("http://a")))
	mapper := &growing{DefaultRESTMapper: meta.NewDefaultRESTMapper(nil)}
	host.Mapper = mapper
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.Fixture, f *follower, retry func()) {
		const unknown = `example.com/v1 Sink "default/mine" does not exist: the cluster serves no such kind`
		expect(t, f, "unknown", unknown)
		retry()
		expect(t, f, "at once", unknown)
		if n := mapper.resets.Load(); n > 0 {
			t.Errorf("the host was asked %d times for its kinds", n)
		}
		pass(rediscovery)
		if seen := f.results(); len(seen) == 0 || seen[len(seen)-1] != "http://a" {
			t.Errorf("known: got %q", seen)
		}
		if n := mapper.resets.Load(); n != 1 {
			t.Errorf("the host was asked %d times for its kinds", n)
		}
	})
}

// TestHostObject checks that a complete object is returned, or the reason why it cannot be read.
func TestHostObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
	})
}

// manyKinds returns a host with many numbered kinds, with one object each, and destinations for them.
func manyKinds(n int) (*fake.FakeDynamicClient, *Host, func(i int) *duckv1.Destination) {
	mapper, lists := meta.NewDefaultRESTMapper(nil), map[schema.GroupVersionResource]string{}
	var objects []runtime.Object
	for i := range n {
		kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: fmt.Sprint("Sink", i)}
		mapper.Add(kind, meta.RESTScopeNamespace)
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		lists[plural] = kind.Kind + "List"
		obj := newSink("mine", addressed(fmt.Sprint("http://", i)))
		obj.SetGroupVersionKind(kind)
		objects = append(objects, obj)
	}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	return client, &Host{Client: client, Mapper: mapper, Clock: clock.RealClock{}}, func(i int) *duckv1.Destination {
		return &duckv1.Destination{Ref: ref("example.com/v1", fmt.Sprint("Sink", i), "mine")}
	}
}

// watching returns the watched kinds.
func watching(f *follower) int {
	h := f.tracker.resolver.host
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watched)
}

// TestHostUnused checks that the watch of a kind stops some time after the last reference to it was removed, and starts again with a new reference.
func TestHostUnused(t *testing.T) {
	client, host, to := manyKinds(2)
	var watches, ended atomic.Int32
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		watches.Add(1)
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		return true, &counted{w, &ended}, err
	})
	follow(t, Options{Host: host}, nil, to(0), func(_ *controllertest.Fixture, f *follower, retry func()) {
		last := func(want string) {
			t.Helper()
			pass(time.Second)
			if seen := f.results(); len(seen) == 0 || seen[len(seen)-1] != want {
				t.Errorf("got %q, want %q", seen, want)
			}
		}
		last("http://0")
		f.refer(to(1))
		retry()
		last("http://1")
		if n := watching(f); n != 2 {
			t.Errorf("%d kinds are watched, want 2 for a while", n)
		}
		pass(unused + time.Second)
		if n := watching(f); n != 1 || ended.Load() != 1 {
			t.Errorf("%d kinds are watched and %d watches have ended, want 1 and 1", n, ended.Load())
		}
		// A watch with a new reference before that is not stopped.
		f.refer(nil)
		retry()
		pass(unused / 2)
		f.refer(to(1))
		retry()
		f.results()
		pass(unused)
		if n := watching(f); n != 1 || ended.Load() != 1 {
			t.Errorf("%d kinds are watched and %d watches have ended, want 1 and 1", n, ended.Load())
		}
		f.refer(to(0))
		retry()
		last("http://0")
		f.tracker.Forget(referrer)
		pass(unused + time.Second)
		if n := watching(f); n != 0 || watches.Load() != 3 || ended.Load() != 3 {
			t.Errorf("%d kinds are watched, %d watches have begun and %d ended, want 0, 3 and 3", n, watches.Load(), ended.Load())
		}
	})
}

// counted counts watches that were stopped.
type counted struct {
	watch.Interface
	ended *atomic.Int32
}

func (c *counted) Stop() {
	c.ended.Add(1)
	c.Interface.Stop()
}

// TestHostTooManyKinds checks that the number of watched kinds is bounded, that exceeding it is reported, and that further kinds are
// watched once fewer are.
func TestHostTooManyKinds(t *testing.T) {
	_, host, to := manyKinds(maxKinds + 1)
	follow(t, Options{Host: host}, nil, nil, func(_ *controllertest.Fixture, f *follower, retry func()) {
		others, err := f.tracker.resolver.Track(controllertest.Silent{})
		if err != nil {
			t.Fatal(err)
		}
		refs := others.Begin(referrer)
		for i := range maxKinds {
			if got, err := refs.Resolve(context.WithoutCancel(t.Context()), to(i)); err != nil || got.URL != fmt.Sprint("http://", i) {
				t.Errorf("kind %d: %q, %v", i, got.URL, err)
			}
		}
		refs.End()
		f.results()
		f.refer(to(maxKinds))
		retry()
		const full = `example.com/v1 Sink64 "default/mine" cannot be read: this server watches 64 kinds of the cluster already, and no more than that`
		expect(t, f, "too many", full)
		pass(rediscovery)
		expect(t, f, "still too many", full)
		others.Forget(referrer)
		pass(rediscovery + time.Second)
		if seen := f.results(); len(seen) == 0 || seen[len(seen)-1] != "http://64" {
			t.Errorf("below the limit: got %q", seen)
		}
	})
}

// TestHostBuiltIn checks that Kubernetes' own kinds except core Services are never watched, because they may have many objects.
func TestHostBuiltIn(t *testing.T) {
	client, host := newHost()
	refs := begin(t, controllertest.New(t), Options{Host: host})
	for _, kind := range []string{
		"v1 Pod", "v1 Event", "v1 Secret", "v1 ConfigMap", "v1 Node", "apps/v1 Deployment", "batch/v1 Job", "events.k8s.io/v1 Event",
		"discovery.k8s.io/v1 EndpointSlice", "autoscaling/v2 HorizontalPodAutoscaler", "v2 Service",
	} {
		apiVersion, kind, _ := strings.Cut(kind, " ")
		r := ref(apiVersion, kind, "mine")
		want := fmt.Sprintf("%s %s %q has no address: of Kubernetes' own kinds, only Services can be referred to", apiVersion, kind, "default/mine")
		for what, ask := range map[string]func() error{
			"Resolve":    func() error { _, err := refs.Resolve(t.Context(), &duckv1.Destination{Ref: r}); return err },
			"Ready":      func() error { _, err := refs.Ready(t.Context(), r); return err },
			"HostObject": func() error { _, err := refs.HostObject(t.Context(), r); return err },
		} {
			err := ask()
			if fault, _ := AsUnresolved(err); fault == nil || fault.Reason != ReasonNotAddressable || fault.Message != want {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
	}
	if actions := client.Actions(); len(actions) > 0 {
		t.Errorf("the host was asked: %v", actions)
	}
}

// TestHostAccess checks that a kind is watched only once this server has the permission.
func TestHostAccess(t *testing.T) {
	client, host := newHost(newSink("mine", addressed("http://a")))
	var verbs atomic.Value
	verbs.Store("")
	var fails atomic.Bool
	fails.Store(true)
	reviews := kubefake.NewClientset()
	reviews.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		if fails.Load() {
			return true, nil, apierrors.NewServiceUnavailable("not now")
		}
		asked := review.Spec.ResourceAttributes
		if asked.Group != sinks.Group || asked.Resource != sinks.Resource || asked.Namespace != "" {
			t.Errorf("asked for %+v", asked)
		}
		review = review.DeepCopy()
		review.Status.Allowed = strings.Contains(verbs.Load().(string), asked.Verb)
		return true, review, nil
	})
	host.Access = reviews.AuthorizationV1().SelfSubjectAccessReviews()
	follow(t, Options{Host: host}, nil, toSink("mine"), func(_ *controllertest.Fixture, f *follower, retry func()) {
		last := func(what string, want ...string) {
			t.Helper()
			retry()
			seen := f.results()
			for _, part := range want {
				if len(seen) == 0 || !strings.Contains(seen[len(seen)-1], part) {
					t.Errorf("%s: got %q, want %q", what, seen, part)
				}
			}
		}
		last("no answer", "cannot be read", "not now")
		fails.Store(false)
		for _, may := range []string{"", "list"} {
			verbs.Store(may)
			pass(time.Minute)
			last("may only "+may, "cannot be read", `duck.knative.dev/addressable: "true"`, `resource "sinks" in API group "example.com"`)
			if n := len(client.Actions()); n > 0 {
				t.Errorf("it was listed without permission: %v", client.Actions())
			}
		}
		verbs.Store("list watch")
		pass(time.Minute)
		last("granted", "http://a")
	})
}

// TestHostDiscoveryFails checks that a kind whose server does not respond is not reported as missing.
func TestHostDiscoveryFails(t *testing.T) {
	_, host := newHost()
	host.Mapper = meta.NewDefaultRESTMapper(nil)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"down":       {apierrors.NewServiceUnavailable("no endpoints"), ReasonUnavailable},
		"not served": {apierrors.NewNotFound(schema.GroupResource{}, ""), ReasonNotFound},
		"not cached": {memory.ErrCacheNotFound, ReasonNotFound},
		"other kind": {nil, ReasonNotFound},
	} {
		host.Kinds = kindsOf{tt.err}
		refs := begin(t, controllertest.New(t), Options{Host: host})
		_, err := refs.Resolve(t.Context(), toSink("mine"))
		if fault, _ := AsUnresolved(err); fault == nil || fault.Reason != tt.want {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}

// kindsOf fails requests for the kinds of a group.
type kindsOf struct{ err error }

func (k kindsOf) ServerResourcesForGroupVersion(string) (*metav1.APIResourceList, error) {
	return &metav1.APIResourceList{}, k.err
}

func (kindsOf) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return nil, nil, nil
}
func (kindsOf) ServerPreferredResources() ([]*metav1.APIResourceList, error) { return nil, nil }
func (kindsOf) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return nil, nil
}

// TestTrimmed checks that only the fields that are read are kept, so that the memory of an object does not grow with the others.
func TestTrimmed(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	whole := newSink("mine", map[string]any{
		"address": map[string]any{"url": "http://a"}, "observedGeneration": int64(3), "conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		"subscribers": []any{map[string]any{"uid": "1"}}, "deadLetterSinkUri": "http://dead", "history": large,
	})
	whole.Object["spec"] = map[string]any{"subscribers": []any{map[string]any{"uid": "1"}}, "delivery": map[string]any{"retry": int64(1)}, "template": large}
	whole.Object["data"] = large
	whole.SetGeneration(3)
	whole.SetResourceVersion("7")
	whole.SetUID("uid")
	whole.SetOwnerReferences([]metav1.OwnerReference{{Kind: "Channel", Name: "mine", UID: "owner"}})
	whole.SetLabels(map[string]string{"a": large})
	whole.SetAnnotations(map[string]string{AllowFromAnnotationKey: "default", "a": large})
	whole.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: large}})
	got, err := trimmed(whole)
	if err != nil {
		t.Fatal(err)
	}
	small := got.(*unstructured.Unstructured)
	text, err := small.MarshalJSON()
	if err != nil || len(text) > 1000 {
		t.Errorf("%d bytes are kept, %v", len(text), err)
	}
	for _, path := range [][]string{{"metadata", "uid"}, {"metadata", "resourceVersion"}, {"metadata", "generation"}, {"metadata", "ownerReferences"}, {"spec", "subscribers"}, {"spec", "delivery"}, {"status", "address"}, {"status", "conditions"},
		{"status", "subscribers"}, {"status", "observedGeneration"}, {"status", "deadLetterSinkUri"}} {
		want, _, _ := unstructured.NestedFieldNoCopy(whole.Object, path...)
		if got, found, _ := unstructured.NestedFieldNoCopy(small.Object, path...); !found || !cmp.Equal(want, got) {
			t.Errorf("%v is %v, want %v", path, got, want)
		}
	}
	if annotation(small) != "default" {
		t.Errorf("annotations: %v", small.GetAnnotations())
	}
}
