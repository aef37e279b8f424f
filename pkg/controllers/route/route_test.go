package route

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const ingress, allAssigned = servingv1.RouteConditionIngressReady, servingv1.RouteConditionAllTrafficAssigned

// TestReconcile covers serving 9.3.3-1, 9.3.3-6 and 9.3.3-8: a Route that waits and then serves is written twice, and not after a restart,
// which passes the route to the gateway again. It covers serving 9.3.3-2.
func TestReconcile(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	f := newFixture(t, newRoute("hello", follow("hello", 100)), newConfiguration("hello", ""), newRevision("hello", 1))
	f.URLs.Port = 8080
	if writes, _ := f.reconcile("hello"); writes != 1 {
		t.Errorf("a Route that waits has %d writes, want 1", writes)
	}
	if got, want := f.condition("hello", duckv1.ConditionReady), `Unknown RevisionMissing Configuration "hello" is waiting for a Revision to become ready.`; got != want {
		t.Errorf("Ready is %q, want %q", got, want)
	}
	if got := f.condition("hello", ingress); got != "Unknown IngressNotConfigured Ingress has not yet been reconciled." {
		t.Errorf("IngressReady is %q", got)
	}
	if len(f.gateway.routes) > 0 || f.routing("hello-1") != "pending" {
		t.Errorf("gateway has %v and the Revision is %q, want nothing yet", f.gateway.routes, f.routing("hello-1"))
	}
	f.put(newConfiguration("hello", "hello-1", isReady))
	writes, events := f.reconcile("hello")
	if writes != 2 {
		t.Errorf("a Route that becomes ready has %d writes, want 1 and the one of the Revision's label", writes)
	}
	if want := []string{"Normal TrafficChanged Requests go to hello-1 (100%)", "Normal Ready Became ready"}; !slices.Equal(events, want) {
		t.Errorf("events are %q, want %q", events, want)
	}
	want := servingv1.RouteStatusFields{
		URL: "http://hello.default.example.com:8080", Address: &duckv1.Addressable{URL: "http://hello.default.svc.cluster.local:8080"},
		Traffic: []servingv1.TrafficTarget{{RevisionName: "hello-1", LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)}},
	}
	if diff := cmp.Diff(want, f.status("hello").RouteStatusFields); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	for condition, want := range map[duckv1.ConditionType]string{
		duckv1.ConditionReady: "True", allAssigned: "True", ingress: "True",
		servingv1.RouteConditionCertificateProvisioned: "True TLSNotEnabled external-domain-tls is not enabled",
	} {
		if got := f.condition("hello", condition); got != want {
			t.Errorf("%s is %q, want %q", condition, got, want)
		}
	}
	if f.routing("hello-1") != "active hello" {
		t.Errorf("the Revision is %q, want it active", f.routing("hello-1"))
	}
	f.restart()
	f.URLs.Port = 8080
	f.clock.SetTime(began.Add(time.Hour))
	if writes, events := f.reconcile("hello"); writes != 0 || len(events) > 0 {
		t.Errorf("after a restart there are %d writes and events %q, want none", writes, events)
	}
	for _, host := range []string{"hello.default.example.com", "hello.default.svc.cluster.local", "hello.default.svc", "hello.default"} {
		if got := f.gateway.shares(host); got != "hello-1:100" {
			t.Errorf("requests to %s go to %q, want hello-1:100", host, got)
		}
	}
	if f.reconcile("hello"); f.gateway.calls != 1 {
		t.Errorf("the gateway was called %d times, want once", f.gateway.calls)
	}
}

// TestReconcileKeepsLastGood checks that the latest valid assignment is kept while the spec cannot be satisfied, also after a restart.
func TestReconcileKeepsLastGood(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	f := newFixture(t, newRoute("hello", pin("hello-1", 60), pin("hello-2", 40)), newRevision("hello", 1, isReady), newRevision("hello", 2, isReady))
	f.reconcile("hello")
	route, _ := f.Reconciler.Routes.Routes("default").Get("hello")
	route = route.DeepCopy()
	route.Generation, route.Spec.Traffic = 2, []servingv1.TrafficTarget{pin("hello-3", 100)}
	f.put(route)
	f.reconcile("hello")
	f.restart()
	if writes, _ := f.reconcile("hello"); writes != 0 {
		t.Errorf("after a restart there are %d writes, want 0", writes)
	}
	if got := f.gateway.shares("hello.default.example.com"); got != "hello-1:60 hello-2:40" {
		t.Errorf("requests go to %q, want the latest assignment", got)
	}
	if got, want := f.condition("hello", duckv1.ConditionReady), `False RevisionMissing Revision "hello-3" referenced in traffic not found.`; got != want {
		t.Errorf("Ready is %q, want %q", got, want)
	}
	if got := f.routing("hello-1"); got != "active hello" {
		t.Errorf("a Revision that serves is %q, want active", got)
	}
	f.remove("revisions", "hello-1")
	f.reconcile("hello")
	if got := f.gateway.shares("hello.default.example.com"); got != "hello-2:100" || f.traffic("hello") != "hello-2:100" {
		t.Errorf("requests go to %q, status has %q; want the remaining Revision", got, f.traffic("hello"))
	}
	f.put(newRevision("hello", 3, isReady))
	f.reconcile("hello")
	if got := f.gateway.shares("hello.default.example.com"); got != "hello-3:100" {
		t.Errorf("requests go to %q, want the traffic of the spec", got)
	}
	if got := f.routing("hello-2"); got != "reserve" {
		t.Errorf("a Revision that no longer serves is %q, want reserve", got)
	}
}

// TestReconcileRollout checks that requests move step by step, and that the rollout continues after a restart.
func TestReconcileRollout(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	route := newRoute("hello", follow("hello", 100))
	route.Annotations = map[string]string{servingv1.RolloutDurationAnnotationKey: "10s"}
	f := newFixture(t, route, newConfiguration("hello", "hello-1", isReady), newRevision("hello", 1, isReady), newRevision("hello", 2, isReady))
	f.reconcile("hello")
	f.put(newConfiguration("hello", "hello-2", isReady))
	f.reconcile("hello")
	if got := f.traffic("hello"); got != "hello-1:99+ hello-2:1+" {
		t.Errorf("traffic is %q, want 1%% at the new Revision", got)
	}
	if got, want := f.condition("hello", duckv1.ConditionReady), "Unknown RolloutInProgress A gradual rollout of the latest revision(s) is in progress."; got != want {
		t.Errorf("Ready is %q, want %q", got, want)
	}
	if f.result.RequeueAfter != time.Second {
		t.Errorf("requeues after %v, want 1s", f.result.RequeueAfter)
	}
	f.restart()
	if writes, _ := f.reconcile("hello"); writes != 0 || f.gateway.shares("hello.default") != "hello-1:99 hello-2:1" {
		t.Errorf("after a restart there are %d writes and requests go to %q", writes, f.gateway.shares("hello.default"))
	}
	f.clock.SetTime(began.Add(5 * time.Second))
	if _, events := f.reconcile("hello"); len(events) > 0 || f.gateway.shares("hello.default") != "hello-1:50 hello-2:50" {
		t.Errorf("half way requests go to %q, with events %q", f.gateway.shares("hello.default"), events)
	}
	f.clock.SetTime(began.Add(10 * time.Second))
	f.reconcile("hello")
	if f.traffic("hello") != "hello-2:100+" || f.condition("hello", duckv1.ConditionReady) != "True" || len(f.status("hello").Annotations) > 0 {
		t.Errorf("in the end traffic is %q, Ready %q, annotations %v", f.traffic("hello"), f.condition("hello", duckv1.ConditionReady), f.status("hello").Annotations)
	}
	if f.routing("hello-1") != "reserve" || f.routing("hello-2") != "active hello" {
		t.Errorf("Revisions are %q and %q, want reserve and active", f.routing("hello-1"), f.routing("hello-2"))
	}
}

// TestReconcileHostConflict covers serving 8-3: the older one of two Routes that claim the same host name gets it; the other one gets it
// when it becomes free.
func TestReconcileHostConflict(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	older := newRoute("c", pin("hello-1", 100, "a-b"))
	younger := newRoute("b-c", pin("hello-2", 100, "a"))
	younger.CreationTimestamp = metav1.NewTime(began.Add(time.Second))
	f := newFixture(t, older, younger, newRevision("hello", 1, isReady), newRevision("hello", 2, isReady))
	const shared = "a-b-c.default.example.com"
	// The younger one is reconciled first, as may happen after a restart.
	f.reconcile("b-c")
	if got := f.gateway.shares(shared); got != "" {
		t.Errorf("requests to the shared host go to %q before the older Route was seen", got)
	}
	f.reconcile("c")
	if got := f.gateway.shares(shared); got != "hello-1:100" {
		t.Errorf("requests to the shared host go to %q, want the older Route's", got)
	}
	if got := f.gateway.shares("b-c.default.example.com"); got != "hello-2:100" {
		t.Errorf("requests to the younger Route's own host go to %q, want hello-2:100", got)
	}
	if got, want := f.condition("b-c", ingress), `False HostnameConflict Host name "a-b-c.default.svc.cluster.local" belongs to Route "default/c", which claimed it first.`; got != want {
		t.Errorf("IngressReady is %q, want %q", got, want)
	}
	if got := f.condition("c", duckv1.ConditionReady); got != "True" {
		t.Errorf("the older Route's Ready is %q, want True", got)
	}
	f.restart()
	if writes, _ := f.reconcile("b-c"); writes != 0 {
		t.Errorf("after a restart there are %d writes, want 0", writes)
	}
	f.remove("routes", "c")
	f.reconcile("c")
	if !slices.Contains(f.queue.keys, named("b-c")) {
		t.Fatalf("enqueued are %v, want the younger Route", f.queue.keys)
	}
	f.reconcile("b-c")
	if got := f.gateway.shares(shared); got != "hello-2:100" || f.condition("b-c", duckv1.ConditionReady) != "True" {
		t.Errorf("requests to the shared host go to %q, Ready is %q; want the younger Route to have it", got, f.condition("b-c", duckv1.ConditionReady))
	}
}

// TestReconcileHostInUse covers serving 8-3: an older Route that starts to claim a host name does not get it while
// another one serves it, before and after a restart; and gets it when it is free.
func TestReconcileHostInUse(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	older := newRoute("c", pin("hello-1", 100))
	younger := newRoute("b-c", pin("hello-2", 100, "a"))
	younger.CreationTimestamp = metav1.NewTime(began.Add(time.Hour))
	f := newFixture(t, older, younger, newRevision("hello", 1, isReady), newRevision("hello", 2, isReady))
	f.reconcile("c")
	// The write of its status triggers another reconciliation.
	f.reconcile("b-c")
	f.reconcile("b-c")
	const shared = "a-b-c.default.example.com"
	if got := f.gateway.shares(shared); got != "hello-2:100" {
		t.Fatalf("requests to the host go to %q, want the younger Route's", got)
	}
	route, err := f.Routes.Routes("default").Get("c")
	if err != nil {
		t.Fatal(err)
	}
	changed := route.DeepCopy()
	changed.Spec.Traffic = []servingv1.TrafficTarget{pin("hello-1", 100, "a-b")}
	changed.Generation = 2
	f.put(changed)
	check := func(when string) {
		t.Helper()
		f.reconcile("c")
		f.reconcile("b-c")
		if got := f.gateway.shares(shared); got != "hello-2:100" {
			t.Errorf("%s requests to the host go to %q, want the Route that served it", when, got)
		}
		if got, want := f.condition("c", ingress), `False HostnameConflict Host name "a-b-c.default.svc.cluster.local" belongs to Route "default/b-c", which claimed it first.`; got != want {
			t.Errorf("%s IngressReady is %q, want %q", when, got, want)
		}
		if got := f.condition("b-c", duckv1.ConditionReady); got != "True" {
			t.Errorf("%s Ready of the Route that served the host is %q, want True", when, got)
		}
	}
	check("after the claim")
	f.restart()
	check("after a restart")
	f.remove("routes", "b-c")
	f.reconcile("b-c")
	f.reconcile("c")
	if got := f.gateway.shares(shared); got != "hello-1:100" || f.condition("c", duckv1.ConditionReady) != "True" {
		t.Errorf("requests to the free host go to %q, Ready is %q; want the waiting Route to have it", got, f.condition("c", duckv1.ConditionReady))
	}
	route, _ = f.Routes.Routes("default").Get("c")
	if got := route.Status.Annotations[conflictsAnnotationKey]; got != "" {
		t.Errorf("status still lists the conflicts %s", got)
	}
}

// TestReconcileMappedHost checks that a Route does not get a host name that a DomainMapping serves, even if the Route is older, and gets it
// when the DomainMapping is deleted.
func TestReconcileMappedHost(t *testing.T) {
	const host = "hello.default.example.com"
	f := newFixture(t, newRoute("hello", pin("hello-1", 100)), newRevision("hello", 1, ready(corev1.ConditionTrue, "")))
	mapping := hostnames.Owner{Kind: hostnames.DomainMapping, Key: routing.Key{Namespace: "other", Name: host}}
	if _, err := f.Claims.Set(hostnames.Claim{Owner: mapping, Created: began.Add(time.Hour), Hosts: []string{host}, Held: []string{host}}, f.settings); err != nil {
		t.Fatal(err)
	}
	f.reconcile("hello")
	want := `False HostnameConflict Host name "hello.default.example.com" belongs to DomainMapping "other/hello.default.example.com", which claimed it first.`
	if got := f.condition("hello", ingress); got != want || f.gateway.shares(host) != "" {
		t.Errorf("IngressReady is %q, want %q; requests go to %q", got, want, f.gateway.shares(host))
	}
	if got := f.gateway.shares("hello.default.svc.cluster.local"); got != "hello-1:100" {
		t.Errorf("requests to the other host go to %q", got)
	}
	f.Claims.Drop(mapping)
	if !slices.Contains(f.queue.keys, named("hello")) {
		t.Errorf("enqueued %v", f.queue.keys)
	}
	f.reconcile("hello")
	if got := f.condition("hello", ingress); got != "True" || f.gateway.shares(host) != "hello-1:100" {
		t.Errorf("IngressReady is %q, requests go to %q", got, f.gateway.shares(host))
	}
}

// TestHeld covers the host names of a Route according to incomplete, older and damaged statuses.
func TestHeld(t *testing.T) {
	hosts := []host{{name: "a.x.svc", local: true, internal: true}, {name: "a.example.com"}, {name: "t-a.x.svc", tag: "t", local: true, internal: true}, {name: "t-a.example.com", tag: "t"}}
	status := func(change func(*servingv1.RouteStatus)) *servingv1.RouteStatus {
		s := &servingv1.RouteStatus{}
		s.Address = &duckv1.Addressable{URL: "http://a.x.svc"}
		s.URL = "http://a.example.com:8080"
		s.Traffic = []servingv1.TrafficTarget{{Tag: "t", URL: "http://t-a.example.com"}}
		change(s)
		return s
	}
	for name, test := range map[string]struct {
		status *servingv1.RouteStatus
		want   []string
	}{
		"all":           {status(func(*servingv1.RouteStatus) {}), []string{"a.example.com", "a.x.svc", "t-a.example.com", "t-a.x.svc"}},
		"never written": {&servingv1.RouteStatus{}, nil},
		"another URL":   {status(func(s *servingv1.RouteStatus) { s.URL = "http://b.example.com" }), []string{"a.x.svc", "t-a.example.com", "t-a.x.svc"}},
		"a new tag":     {status(func(s *servingv1.RouteStatus) { s.Traffic = nil }), []string{"a.example.com", "a.x.svc"}},
		"lost": {status(func(s *servingv1.RouteStatus) {
			s.Annotations = map[string]string{conflictsAnnotationKey: `["t-a.x.svc"]`}
		}), []string{"a.example.com", "a.x.svc", "t-a.example.com"}},
		"damaged": {status(func(s *servingv1.RouteStatus) { s.Annotations = map[string]string{conflictsAnnotationKey: `[`} }), nil},
		"earlier release": {status(func(s *servingv1.RouteStatus) {
			s.Conditions = duckv1.Conditions{{Type: servingv1.RouteConditionIngressReady, Status: "False", Reason: ReasonHostnameConflict}}
		}), nil},
	} {
		if diff := cmp.Diff(test.want, held(test.status, hosts)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestReconcileReferences covers serving 7.4-2: Revisions list the Routes that refer to them, of any name.
// It covers serving 7.4-1.
func TestReconcileReferences(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	f := newFixture(t, newRoute("a", pin("hello-2", 100)), newRoute("b", follow("hello", 100)), newConfiguration("hello", "hello-2", isReady),
		newRevision("hello", 1), newRevision("hello", 2, isReady), newRevision("hello", 3))
	f.reconcile("b")
	f.reconcile("a")
	for name, want := range map[string]string{"hello-1": "reserve", "hello-2": "active a,b", "hello-3": "pending"} {
		if got := f.routing(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	// The deletions of the Routes were not observed.
	f.remove("routes", "a")
	f.remove("routes", "b")
	f.restart()
	f.clock.SetTime(began.Add(time.Hour))
	f.reconcile("a")
	if got := f.routing("hello-2"); got != "active b" {
		t.Errorf("hello-2 is %q, want active for the other Route", got)
	}
	f.reconcile("b")
	revision, _ := f.Revisions.Revisions("default").Get("hello-2")
	if got := revision.Annotations[servingv1.RoutingStateModifiedAnnotationKey]; f.routing("hello-2") != "reserve" || got != "2024-05-01T13:00:00Z" {
		t.Errorf("hello-2 is %q since %q, want reserve since now", f.routing("hello-2"), got)
	}
}

// TestAddresses covers serving 9.3.3-6 and 10.2-6: host names and URLs of a Route and its tags.
func TestAddresses(t *testing.T) {
	current := settings.Default("example.com")
	tests := []struct {
		name   string
		change func(route *servingv1.Route)
		urls   URLs
		want   addresses
	}{
		{"public", func(*servingv1.Route) {}, URLs{ClusterDomain: "cluster.local"}, addresses{
			hosts: []host{{"hello.default.svc.cluster.local", "", true, true}, {"hello.default.svc", "", true, true}, {"hello.default", "", true, true}, {"hello.default.example.com", "", false, false}},
			url:   "http://hello.default.example.com", internal: "http://hello.default.svc.cluster.local",
			services: []service{{"hello", "hello.default"}},
		}},
		{"tag, on a machine without a cluster", func(route *servingv1.Route) { route.Spec.Traffic[0].Tag = "v1" }, URLs{ClusterDomain: "cluster.local", Port: 8080, PublicAddress: true}, addresses{
			hosts: []host{{"hello.default.svc.cluster.local", "", true, true}, {"hello.default.svc", "", true, true}, {"hello.default", "", true, true}, {"hello.default.example.com", "", false, false},
				{"v1-hello.default.svc.cluster.local", "v1", true, true}, {"v1-hello.default.svc", "v1", true, true}, {"v1-hello.default", "v1", true, true}, {"v1-hello.default.example.com", "v1", false, false}},
			url: "http://hello.default.example.com:8080", internal: "http://hello.default.example.com:8080",
			tags:     map[string]string{"v1": "http://v1-hello.default.example.com:8080"},
			services: []service{{"hello", "hello.default"}, {"v1-hello", "v1-hello.default"}},
		}},
		{"within the cluster only", func(route *servingv1.Route) {
			route.Labels = map[string]string{servingv1.VisibilityLabelKey: servingv1.VisibilityClusterLocal}
			route.Spec.Traffic[0].Tag = "v1"
		}, URLs{ClusterDomain: "cluster.local", Port: 80}, addresses{
			hosts: []host{{"hello.default.svc.cluster.local", "", true, true}, {"hello.default.svc", "", true, true}, {"hello.default", "", true, true},
				{"v1-hello.default.svc.cluster.local", "v1", true, true}, {"v1-hello.default.svc", "v1", true, true}, {"v1-hello.default", "v1", true, true}},
			url: "http://hello.default.svc.cluster.local", internal: "http://hello.default.svc.cluster.local",
			tags:     map[string]string{"v1": "http://v1-hello.default.svc.cluster.local"},
			services: []service{{"hello", "hello.default"}, {"v1-hello", "v1-hello.default"}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			route := newRoute("hello", follow("hello", 100))
			tt.change(route)
			if tt.want.tags == nil {
				tt.want.tags = map[string]string{}
			}
			if diff := cmp.Diff(tt.want, addressesOf(route, &current, tt.urls, nil), cmp.AllowUnexported(addresses{}, host{}, service{})); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}

// TestClusterDomain covers serving 10.2-6 in a cluster whose domain is not cluster.local: names under its domain are local,
// names under cluster.local are public like any other.
func TestClusterDomain(t *testing.T) {
	urls := URLs{ClusterDomain: "corp.example"}
	for domain, local := range map[string]bool{"svc.corp.example": true, "svc.cluster.local": false} {
		current := settings.Default(domain)
		got := addressesOf(newRoute("hello", follow("hello", 100)), &current, urls, nil)
		if want := "http://hello.default.svc.corp.example"; got.internal != want {
			t.Errorf("with the default domain %s: internal URL %q, want %q", domain, got.internal, want)
		}
		public := "hello.default." + domain
		for _, h := range got.hosts {
			if h.name == public && h.local != local {
				t.Errorf("%s: local %t, want %t", public, h.local, local)
			}
		}
		if !slices.Contains(got.names(), public) {
			t.Errorf("host names %v, want %s among them", got.names(), public)
		}
	}
}

// TestReconcileInvalidHost covers serving 8-4: a host name that could not resolve is reported, the others serve.
func TestReconcileInvalidHost(t *testing.T) {
	const tag = "a-tag-that-is-much-too-long-to-stand-before-the-name-of-a-route"
	f := newFixture(t, newRoute("hello", pin("hello-1", 100, tag)), newRevision("hello", 1, ready(corev1.ConditionTrue, "")))
	f.reconcile("hello")
	if c := f.status("hello").Conditions.Get(ingress); c.Status != corev1.ConditionFalse || c.Reason != ReasonHostnameInvalid {
		t.Errorf("IngressReady is %+v, want False HostnameInvalid", c)
	}
	if got := f.gateway.shares("hello.default.example.com"); got != "hello-1:100" {
		t.Errorf("requests to the Route's own host go to %q, want hello-1:100", got)
	}
}

// TestTable covers serving 8-6 and 10.2-6: shares of the hosts of a Route and of its tags.
func TestTable(t *testing.T) {
	hosts := []host{{name: "hello"}, {name: "v1-hello", tag: "v1"}, {name: "next-hello", tag: "next", local: true}, {name: "gone-hello", tag: "gone"}, {name: "lost-hello"}}
	targets := []target{{revision: "r1", tag: "v1", percent: 30}, {revision: "r2", percent: 20}, {revision: "r2", percent: 40},
		{revision: "r3", tag: "next", percent: 1}, {revision: "r4", tag: "next", percent: 9}, {revision: "r5", tag: "idle"}}
	revision := named
	tags := map[string]routing.Key{"v1": revision("r1"), "next": revision("r4"), "idle": revision("r5")}
	want := &routing.Route{Key: named("hello"), Hosts: []routing.Host{
		{Name: "hello", Tags: tags, Targets: []routing.Target{{Revision: revision("r1"), Percent: 30}, {Revision: revision("r2"), Percent: 60},
			{Revision: revision("r3"), Percent: 1}, {Revision: revision("r4"), Percent: 9}}},
		{Name: "v1-hello", Targets: []routing.Target{{Revision: revision("r1"), Percent: 100}}},
		{Name: "next-hello", ClusterLocal: true, Targets: []routing.Target{{Revision: revision("r3"), Percent: 10}, {Revision: revision("r4"), Percent: 90}}},
	}}
	got := table(named("hello"), hosts, targets, map[string]hostnames.Owner{"lost-hello": ownerOf(named("other"))}, true, &hosttls.Findings{})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("route (-want +got):\n%s", diff)
	}
	if got := table(named("hello"), hosts, targets, nil, false, &hosttls.Findings{}); got.Hosts[0].Tags != nil {
		t.Errorf("tags are %v though the header is off, want none", got.Hosts[0].Tags)
	}
	if got := table(named("hello"), hosts, nil, nil, true, &hosttls.Findings{}); got != nil {
		t.Errorf("route is %+v though nothing is assigned, want none", got)
	}
}

// TestReconcileSettings checks that Routes get other names as soon as the settings change (serving 8-3: each of the new names has one owner too).
func TestReconcileSettings(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	f := newFixture(t, newRoute("a", pin("hello-1", 100)), newRoute("b", pin("hello-1", 100)), newRevision("hello", 1, isReady))
	f.reconcile("a")
	f.reconcile("b")
	changed := settings.Default("example.org")
	// One name for all Routes, which the server would reject, so that they compete for it.
	changed.Network = settings.Network{DomainTemplate: "all.{{.Domain}}", TagTemplate: "{{.Tag}}-{{.Name}}"}
	f.settings = &changed
	f.EnqueueAll()
	slices.SortFunc(f.queue.keys, func(a, b routing.Key) int { return strings.Compare(a.Name, b.Name) })
	if diff := cmp.Diff([]routing.Key{named("a"), named("b")}, f.queue.keys); diff != "" {
		t.Fatalf("enqueued (-want +got):\n%s", diff)
	}
	f.reconcile("b")
	f.reconcile("a")
	if got := f.gateway.shares("all.example.org"); got != "hello-1:100" || f.status("a").URL != "http://all.example.org" {
		t.Errorf("requests to the new host go to %q, the URL is %q; want one owner and http://all.example.org", got, f.status("a").URL)
	}
	if got := f.gateway.shares("a.default.example.com"); got != "" {
		t.Errorf("requests to the old host go to %q, want none", got)
	}
	if a, b := f.condition("a", duckv1.ConditionReady), f.status("b").Conditions.Get(ingress); a != "True" || b.Reason != ReasonHostnameConflict {
		t.Errorf("Ready of the first is %q, IngressReady of the other %+v; want True and HostnameConflict", a, b)
	}
}

// TestReconcileAllReplicas checks that a Route is not ready before the gateways of all replicas serve it (serving 7.4).
func TestReconcileAllReplicas(t *testing.T) {
	f := newFixture(t, newRoute("hello", follow("hello", 100)), newConfiguration("hello", "hello-1", ready(corev1.ConditionTrue, "")),
		newRevision("hello", 1, ready(corev1.ConditionTrue, "")))
	var others []func()
	f.gateway.behind = &others
	f.reconcile("hello")
	if got := f.condition("hello", servingv1.RouteConditionIngressReady); got != "Unknown IngressNotConfigured Not all gateways serve the latest assignment yet." {
		t.Errorf("before others serve it, IngressReady is %q", got)
	}
	if got := f.condition("hello", duckv1.ConditionReady); !strings.HasPrefix(got, "Unknown") {
		t.Errorf("before others serve it, Ready is %q", got)
	}
	f.gateway.behind = nil
	if len(others) != 1 {
		t.Fatalf("they were queried %d times", len(others))
	}
	others[0]()
	if want := []types.NamespacedName{named("hello")}; !slices.Equal(f.queue.keys, want) {
		t.Errorf("when they serve it, %v is reconciled, want %v", f.queue.keys, want)
	}
	f.reconcile("hello")
	if got := f.condition("hello", duckv1.ConditionReady); got != "True" {
		t.Errorf("when others serve it, Ready is %q", got)
	}
	// A Ready status is not checked again, for example by each new leader.
	f.gateway.behind = &others
	if writes, _ := f.reconcile("hello"); writes != 0 || len(others) != 1 {
		t.Errorf("a Route that is ready is written %d times, and queried %d times", writes, len(others))
	}
	// Neither is a Route queried that is not ready for another reason, nor does a replica query that writes nothing.
	f.put(newRoute("unassigned", follow("none", 100)))
	if writes, _ := f.reconcile("unassigned"); writes == 0 || len(others) != 1 {
		t.Errorf("a Route without Revisions is written %d times, and the others were queried %d times", writes, len(others))
	}
	f.put(newRoute("other", follow("hello", 100)))
	if _, err := f.Reconcile(t.Context(), reconciler.NewRequest(named("other"), false)); err != nil || len(others) != 1 {
		t.Errorf("a replica that does not write: %v, the others were queried %d times", err, len(others))
	}
}
