package destination

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// begin returns the References of an object of the namespace default, with some existing objects.
func begin(t *testing.T, w *controllertest.Fixture, o Options) *References {
	t.Helper()
	o.Informers = w.Factory
	if o.ClusterDomain == "" {
		o.ClusterDomain = "cluster.local"
	}
	tracker, err := New(t.Context(), o).Track(controllertest.Silent{})
	if err != nil {
		t.Fatal(err)
	}
	w.SyncEventing()
	return tracker.Begin(referrer)
}

// TestResolve covers the destinations that this server resolves without a host cluster (eventing Destination
// Resolution-1 to -3; eventing Addressable Resolution; eventing duckv1.Destination).
func TestResolve(t *testing.T) {
	secure := service("secure", "https://secure.default.svc")
	secure.Status.Address.CACerts, secure.Status.Address.Audience = ptr.To("theirs\n"), ptr.To("them")
	internal := service("internal", "http://internal")
	internal.Status.Address.Name = ptr.To("plain")
	foreignService := service("elsewhere", "http://elsewhere.other")
	foreignService.Namespace = "other"
	grants := service("granting", "http://granting.other")
	grants.Namespace, grants.Annotations = "other", map[string]string{AllowFromAnnotationKey: "team-a, default"}
	notGranted := func(name string) *Unresolved {
		return &Unresolved{"NotGranted", `serving.knative.dev/v1 Service "other/` + name + `" is in another namespace than "default". ` +
			`If it exists, its annotation eventing.knative.dev/allow-from has to list "default"; ` +
			`the server's flag --allow-cross-namespace-destinations makes such references free`}
	}
	both := broker("both", "http://ingress/default/both")
	both.Status.Address.Name = ptr.To("http")
	encrypted := duckv1.Addressable{Name: ptr.To("https"), URL: "https://ingress/default/both", CACerts: ptr.To("authority")}
	both.Status.Addresses = []duckv1.Addressable{encrypted, *both.Status.Address}
	objects := []runtime.Object{
		service("hello", "http://hello.default"), service("new", ""), service("odd", "ftp://odd/"), service("empty", ""),
		secure, internal, foreignService, grants, route("way", "http://way.default"), broker("orders", "http://127.0.0.1:8081/default/orders"),
		channel("topic", "http://127.0.0.1:8081/channels/default/topic"),
		&servingv1.Configuration{ObjectMeta: named("hello")}, both,
	}
	const serving = "serving.knative.dev/v1"
	to := func(r *duckv1.KReference) duckv1.Destination { return duckv1.Destination{Ref: r} }
	relative := func(r *duckv1.KReference, uri string) duckv1.Destination { return duckv1.Destination{Ref: r, URI: uri} }
	address := func(r *duckv1.KReference, name string) duckv1.Destination {
		r.Address = &name
		return to(r)
	}
	foreign := ref(serving, "Service", "elsewhere")
	absent, granting := ref(serving, "Service", "absent"), ref(serving, "Service", "granting")
	foreign.Namespace, absent.Namespace, granting.Namespace = "other", "other", "other"
	tests := []struct {
		name string
		in   duckv1.Destination
		// apart is true if references to other namespaces require a grant.
		apart bool
		want  duckv1.Addressable
		err   *Unresolved
	}{
		{name: "Service", in: to(ref(serving, "Service", "hello")), want: duckv1.Addressable{URL: "http://hello.default"}},
		{name: "Route", in: to(ref(serving, "Route", "way")), want: duckv1.Addressable{URL: "http://way.default"}},
		{name: "Broker", in: to(ref("eventing.knative.dev/v1", "Broker", "orders")), want: duckv1.Addressable{URL: "http://127.0.0.1:8081/default/orders"}},
		{name: "Channel", in: to(ref("messaging.knative.dev/v1", "Channel", "topic")), want: duckv1.Addressable{URL: "http://127.0.0.1:8081/channels/default/topic"}},
		{name: "core Service", in: to(ref("v1", "Service", "web")), want: duckv1.Addressable{URL: "http://web.default.svc.cluster.local"}},
		{name: "uri", in: duckv1.Destination{URI: "http://example.com/a?b=c", CACerts: ptr.To("ours"), Audience: ptr.To("us")},
			want: duckv1.Addressable{URL: "http://example.com/a?b=c", CACerts: ptr.To("ours"), Audience: ptr.To("us")}},
		{name: "rooted uri and ref", in: relative(ref("v1", "Service", "test"), "/update"), want: duckv1.Addressable{URL: "http://test.default.svc.cluster.local/update"}},
		{name: "relative uri and ref", in: relative(ref("eventing.knative.dev/v1", "Broker", "orders"), "other?x=1"), want: duckv1.Addressable{URL: "http://127.0.0.1:8081/default/other?x=1"}},
		{name: "relative uri and a host", in: relative(ref("v1", "Service", "test"), "update"), want: duckv1.Addressable{URL: "http://test.default.svc.cluster.local/update"}},
		{name: "query and ref", in: relative(ref(serving, "Service", "hello"), "?a=b"), want: duckv1.Addressable{URL: "http://hello.default?a=b"}},
		{name: "certificates and audience of the address", in: to(ref(serving, "Service", "secure")),
			want: duckv1.Addressable{URL: "https://secure.default.svc", CACerts: ptr.To("theirs\n"), Audience: ptr.To("them")}},
		{name: "the first of several addresses", in: to(ref("eventing.knative.dev/v1", "Broker", "both")), want: encrypted},
		{name: "an address by its name", in: to(&duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Name: "both", Address: ptr.To("http")}),
			want: duckv1.Addressable{Name: ptr.To("http"), URL: "http://ingress/default/both"}},
		{name: "certificates of both, audience of the address first", in: duckv1.Destination{Ref: ref(serving, "Service", "secure"), CACerts: ptr.To("ours"), Audience: ptr.To("us")},
			want: duckv1.Addressable{URL: "https://secure.default.svc", CACerts: ptr.To("theirs\nours"), Audience: ptr.To("them")}},
		{name: "certificates and audience of the destination", in: duckv1.Destination{Ref: ref(serving, "Service", "hello"), CACerts: ptr.To("ours"), Audience: ptr.To("us")},
			want: duckv1.Addressable{URL: "http://hello.default", CACerts: ptr.To("ours"), Audience: ptr.To("us")}},
		{name: "address by name", in: address(ref(serving, "Service", "internal"), "plain"), want: duckv1.Addressable{Name: ptr.To("plain"), URL: "http://internal"}},
		{name: "no address of that name", in: address(ref(serving, "Service", "internal"), "other"),
			err: &Unresolved{"NotAddressable", `serving.knative.dev/v1 Service "default/internal" has no address named "other"`}},
		{name: "core Service has no address of a name", in: address(ref("v1", "Service", "web"), "other"),
			err: &Unresolved{"NotAddressable", `v1 Service "default/web" has no address named "other"`}},
		{name: "missing", in: to(ref(serving, "Service", "none")), err: &Unresolved{"NotFound", `serving.knative.dev/v1 Service "default/none" does not exist`}},
		{name: "another kind of that name", in: to(ref(serving, "Route", "hello")), err: &Unresolved{"NotFound", `serving.knative.dev/v1 Route "default/hello" does not exist`}},
		{name: "no address yet", in: to(ref(serving, "Service", "new")), err: &Unresolved{"NotAddressable", `serving.knative.dev/v1 Service "default/new" has no address in status.address.url yet`}},
		{name: "empty address", in: to(ref(serving, "Service", "empty")), err: &Unresolved{"NotAddressable", `serving.knative.dev/v1 Service "default/empty" has no address in status.address.url yet`}},
		{name: "kind without addresses", in: to(ref(serving, "Configuration", "hello")),
			err: &Unresolved{"NotAddressable", `serving.knative.dev/v1 Configuration "default/hello" has no address in status.address.url yet`}},
		{name: "no address for events", in: to(ref(serving, "Service", "odd")),
			err: &Unresolved{"NotAddressable", `serving.knative.dev/v1 Service "default/odd" has the address "ftp://odd/": not an absolute http or https URL`}},
		{name: "no absolute uri", in: duckv1.Destination{URI: "/update"}, err: &Unresolved{"Invalid", `uri is "/update": not an absolute http or https URL`}},
		{name: "no uri", in: duckv1.Destination{URI: "http://%zz"}, err: &Unresolved{"Invalid", `uri is "http://%zz": invalid URL escape "%zz"`}},
		{name: "another namespace", in: to(foreign), want: duckv1.Addressable{URL: "http://elsewhere.other"}},
		{name: "another namespace without a grant", in: to(foreign), apart: true, err: notGranted("elsewhere")},
		{name: "missing in another namespace, with the same error as an existing object", in: to(absent), apart: true, err: notGranted("absent")},
		{name: "another namespace that grants it", in: to(granting), apart: true, want: duckv1.Addressable{URL: "http://granting.other"}},
		{name: "the host's kinds without a host", in: to(ref("apps/v1", "Deployment", "web")),
			err: &Unresolved{"NotFound", `apps/v1 Deployment "default/web" cannot be read: this server runs without a cluster, where only Services, Routes, Brokers and Channels of Knative can be referred to`}},
	}
	empty := service("empty", "")
	empty.Status.Address = &duckv1.Addressable{}
	objects[3] = empty
	w := controllertest.New(t, objects...)
	together, apart := begin(t, w, Options{AllowCrossNamespace: true}), begin(t, w, Options{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			refs := together
			if tt.apart {
				refs = apart
			}
			got, err := refs.Resolve(t.Context(), &tt.in)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("address (-want +got):\n%s", diff)
			}
			fault, _ := AsUnresolved(err)
			if diff := cmp.Diff(tt.err, fault); diff != "" {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestClusterDomain checks the suffix of the names of core Services (eventing Destination Resolution).
func TestClusterDomain(t *testing.T) {
	refs := begin(t, controllertest.New(t), Options{ClusterDomain: "example.org"})
	got, err := refs.Resolve(t.Context(), &duckv1.Destination{Ref: ref("v1", "Service", "web")})
	if want := "http://web.default.svc.example.org"; err != nil || got.URL != want {
		t.Errorf("got %q, %v, want %q", got.URL, err, want)
	}
}

// TestReady reads the Ready condition of an object's current generation.
func TestReady(t *testing.T) {
	current, old := service("current", ""), service("old", "")
	current.Status.ObservedGeneration = 1
	for _, s := range []*servingv1.Service{current, old} {
		s.Status.Conditions.Set(reconciler.True(duckv1.ConditionReady), metav1.NewTime(controllertest.Now))
	}
	refs := begin(t, controllertest.New(t, current, old), Options{})
	const serving = "serving.knative.dev/v1"
	if ready, err := refs.Ready(t.Context(), ref(serving, "Service", "current")); err != nil || ready == nil || ready.Status != "True" {
		t.Errorf("got %v, %v, want True", ready, err)
	}
	if ready, err := refs.Ready(t.Context(), ref(serving, "Service", "old")); err != nil || ready != nil {
		t.Errorf("of an older generation: got %v, %v, want none", ready, err)
	}
	_, err := refs.Ready(t.Context(), ref(serving, "Service", "none"))
	if fault, ok := AsUnresolved(err); !ok || fault.Reason != ReasonNotFound {
		t.Errorf("missing: got %v", err)
	}
}

// TestTrack checks that an object is reconciled whenever an object that it refers to changes, is deleted or
// recreated, and only then (eventing Destination Resolution).
func TestTrack(t *testing.T) {
	to := func(name string) *duckv1.Destination {
		return &duckv1.Destination{Ref: ref("serving.knative.dev/v1", "Service", name)}
	}
	objects := []runtime.Object{service("other", "http://other")}
	follow(t, Options{}, objects, to("hello"), func(w *controllertest.Fixture, f *follower, retry func()) {
		services := w.Client.ServingV1().Services("default")
		expect := func(what string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, f.results()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		const missing = `serving.knative.dev/v1 Service "default/hello" does not exist`
		expect("missing", missing)
		must(services.Create(t.Context(), service("hello", ""), metav1.CreateOptions{}))
		expect("created", `serving.knative.dev/v1 Service "default/hello" has no address in status.address.url yet`)
		must(services.UpdateStatus(t.Context(), service("hello", "http://a"), metav1.UpdateOptions{}))
		expect("addressable", "http://a")
		must(services.UpdateStatus(t.Context(), service("other", "http://moved"), metav1.UpdateOptions{}))
		expect("another object changed")
		must(nil, services.Delete(t.Context(), "hello", metav1.DeleteOptions{}))
		expect("deleted", missing)
		must(services.Create(t.Context(), service("hello", "http://b"), metav1.CreateOptions{}))
		expect("recreated", "http://b")

		f.refer(to("other"))
		retry()
		expect("refers to another one", "http://moved")
		must(services.UpdateStatus(t.Context(), service("hello", "http://c"), metav1.UpdateOptions{}))
		expect("the old one changed")
		must(services.UpdateStatus(t.Context(), service("other", "http://d"), metav1.UpdateOptions{}))
		expect("the new one changed", "http://d")

		f.tracker.Forget(referrer)
		must(services.UpdateStatus(t.Context(), service("other", "http://e"), metav1.UpdateOptions{}))
		expect("forgotten")
		if len(f.tracker.referrers)+len(f.tracker.objects) > 0 {
			t.Errorf("remaining references: %v, %v", f.tracker.referrers, f.tracker.objects)
		}
	})
}

// TestTrackWithoutEnd checks that a failed reconciliation keeps the previous references in addition to the current ones, so that no change is missed.
func TestTrackWithoutEnd(t *testing.T) {
	tracker := newTracker(&Resolver{}, nil)
	object := func(name string) object {
		return object{name: types.NamespacedName{Namespace: "default", Name: name}}
	}
	first := tracker.Begin(referrer)
	first.add(object("a"))
	first.End()
	tracker.Begin(referrer).add(object("b"))
	for _, name := range []string{"a", "b"} {
		if got := tracker.referring(object(name)); !cmp.Equal(got, []types.NamespacedName{referrer}) {
			t.Errorf("%s is referred to by %v", name, got)
		}
	}
	last := tracker.Begin(referrer)
	last.add(object("b"))
	last.End()
	if got := tracker.referring(object("a")); len(got) > 0 {
		t.Errorf("a is referred to by %v", got)
	}
	if got := tracker.referring(object("b")); len(got) != 1 {
		t.Errorf("b is referred to by %v", got)
	}
}

// TestDeadLetterSink covers the status and the condition of a dead letter sink (eventing Trigger Lifecycle).
func TestDeadLetterSink(t *testing.T) {
	refs := begin(t, controllertest.New(t, service("sink", "http://sink")), Options{})
	spec := func(name string) *duckv1.DeliverySpec {
		return &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{Ref: ref("serving.knative.dev/v1", "Service", name), CACerts: ptr.To("ours"), Audience: ptr.To("us")}}
	}
	configured := reconciler.True(ConditionDeadLetterSinkResolved)
	none := configured
	none.Reason, none.Message = "DeadLetterSinkNotConfigured", "No dead letter sink is configured."
	tests := []struct {
		name      string
		in        *duckv1.DeliverySpec
		status    duckv1.DeliveryStatus
		condition duckv1.Condition
	}{
		{"no options", nil, duckv1.DeliveryStatus{}, none},
		{"no sink", &duckv1.DeliverySpec{}, duckv1.DeliveryStatus{}, none},
		{"resolved", spec("sink"), duckv1.DeliveryStatus{DeadLetterSinkURI: "http://sink", DeadLetterSinkCACerts: ptr.To("ours"), DeadLetterSinkAudience: ptr.To("us")}, configured},
		{"missing", spec("none"), duckv1.DeliveryStatus{},
			reconciler.False(ConditionDeadLetterSinkResolved, "DeadLetterSinkNotFound", `serving.knative.dev/v1 Service "default/none" does not exist`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, condition, err := refs.DeadLetterSink(t.Context(), tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.status, status); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.condition, condition); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
		})
	}
}
