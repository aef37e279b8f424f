package domainmapping

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/certmanager"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const host = "www.example.com"

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

func newMapping(change ...func(*servingv1beta1.DomainMapping)) *servingv1beta1.DomainMapping {
	m := &servingv1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: host, Generation: 1, CreationTimestamp: metav1.NewTime(controllertest.Now)},
		Spec:       servingv1beta1.DomainMappingSpec{Ref: duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Namespace: "shop", Name: "hello"}},
	}
	for _, c := range change {
		c(m)
	}
	return m
}

func to(apiVersion, kind, namespace, name string) func(*servingv1beta1.DomainMapping) {
	return func(m *servingv1beta1.DomainMapping) {
		m.Spec.Ref = duckv1.KReference{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}
	}
}

func newClaim(namespace string) *networkingv1alpha1.ClusterDomainClaim {
	return &networkingv1alpha1.ClusterDomainClaim{
		ObjectMeta: metav1.ObjectMeta{Name: host, UID: "claim"}, Spec: networkingv1alpha1.ClusterDomainClaimSpec{Namespace: namespace},
	}
}

func newService() *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello"}}
	s.Status.Address = &duckv1.Addressable{URL: "http://hello.shop.svc.cluster.local"}
	return s
}

func newRoute() *servingv1.Route {
	r := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello"}}
	r.Status.Address = &duckv1.Addressable{URL: "http://hello.shop.svc.cluster.local"}
	r.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: "hello-1"}}
	r.Status.Conditions = duckv1.Conditions{{Type: servingv1.RouteConditionIngressReady, Status: corev1.ConditionTrue}}
	return r
}

// fakeGateway records the routes of DomainMappings.
type fakeGateway struct {
	routes map[routing.Key]*routing.Route
	// behind is true while other replicas do not serve them.
	behind bool
	then   func()
}

func (g *fakeGateway) SetRoute(route *routing.Route) { g.routes[route.Key] = route }

func (g *fakeGateway) DeleteRoute(key routing.Key) { delete(g.routes, key) }

func (g *fakeGateway) ServedByAll(_ routing.Key, then func()) bool {
	g.then = then
	return !g.behind
}

type fakeQueue struct{ keys []types.NamespacedName }

func (q *fakeQueue) Enqueue(key types.NamespacedName) { q.keys = append(q.keys, key) }

type fixture struct {
	*controllertest.Fixture
	*Reconciler
	t        *testing.T
	gateway  *fakeGateway
	queue    *fakeQueue
	settings *settings.Settings
	// routes are the claims of Routes.
	routes []hostnames.Claim
	result reconciler.Result
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	current := settings.Default("example.com")
	f := &fixture{
		Fixture: controllertest.New(t, objects...), t: t, settings: &current, queue: &fakeQueue{},
		gateway: &fakeGateway{routes: map[routing.Key]*routing.Route{}},
	}
	f.Reconciler = &Reconciler{
		Client: f.Fixture.Client.ServingV1beta1(), ClaimsClient: f.Fixture.Client.NetworkingV1alpha1(), Gateway: f.gateway, Claims: &hostnames.Claims{},
		URLs:     URLs{ClusterDomain: "cluster.local", Of: func(scheme, name string) string { return scheme + "://" + name }},
		Recorder: f.Fixture.Recorder, Clock: f.Fixture.Clock, Settings: func() *settings.Settings { return f.settings },
	}
	if _, err := f.Reconciler.Controller(f.Factory); err != nil {
		t.Fatal(err)
	}
	f.Queue = f.queue
	f.Claims.Join(hostnames.Route, hostnames.Participant{
		List: func(*settings.Settings) ([]hostnames.Claim, error) { return f.routes, nil }, Enqueue: func(routing.Key) {},
	})
	f.Sync()
	return f
}

// autocreate lets the server create claims.
func (f *fixture) autocreate(enabled bool) {
	changed := *f.settings
	changed.Network.AutocreateClusterDomainClaims = enabled
	f.settings = &changed
}

// reconcile returns the DomainMapping after a reconciliation, or nil.
func (f *fixture) reconcile(writes bool) *servingv1beta1.DomainMapping {
	f.t.Helper()
	var err error
	if f.result, err = f.Reconcile(f.t.Context(), reconciler.NewRequest(named(host), writes)); err != nil {
		f.t.Fatal(err)
	}
	if actions := f.Fixture.Client.Actions(); !writes && len(actions) > 0 {
		f.t.Errorf("a replica that does not write: %v", actions)
	}
	f.Sync()
	m, ok, err := reconciler.Listed(f.Mappings.DomainMappings("shop"), host)
	if err != nil {
		f.t.Fatal(err)
	}
	if !ok {
		return nil
	}
	return m
}

// state summarizes the conditions of a DomainMapping.
func state(m *servingv1beta1.DomainMapping) map[string]string {
	all := map[string]string{}
	for _, c := range m.Status.Conditions {
		all[string(c.Type)] = strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message))
	}
	return all
}

// stored returns the namespace of the claim, or "" if there is no claim.
func (f *fixture) stored() string {
	f.t.Helper()
	claim, err := f.ClaimsClient.ClusterDomainClaims().Get(f.t.Context(), host, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return claim.Spec.Namespace
}

const (
	notClaimed    = "False DomainAlreadyClaimed The domain name is already in use by another DomainMapping"
	notConfigured = "Unknown IngressNotConfigured Ingress has not yet been reconciled."
	noTLS         = "True TLSNotEnabled external-domain-tls is not enabled"
)

func failed(reason string) map[string]string {
	return map[string]string{
		"DomainClaimed": reason, "CertificateProvisioned": "Unknown", "ReferenceResolved": "Unknown", "IngressReady": notConfigured, "Ready": reason,
	}
}

func unresolved(message string) map[string]string {
	return map[string]string{
		"DomainClaimed": "True", "CertificateProvisioned": noTLS, "IngressReady": notConfigured,
		"ReferenceResolved": "False ResolveFailed " + message, "Ready": "False ResolveFailed " + message,
	}
}

// TestReady covers a DomainMapping with a valid claim and reference: its status, its finalizer, and the gateways of all replicas.
func TestReady(t *testing.T) {
	f := newFixture(t, newMapping(), newClaim("shop"), newService(), newRoute())
	m := f.reconcile(true)
	want := map[string]string{"DomainClaimed": "True", "CertificateProvisioned": noTLS, "ReferenceResolved": "True", "IngressReady": "True", "Ready": "True"}
	if diff := cmp.Diff(want, state(m)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if m.Status.URL != "http://"+host || m.Status.Address.URL != m.Status.URL || m.Status.ObservedGeneration != 1 {
		t.Errorf("status: %+v", m.Status)
	}
	if !slices.Contains(m.Finalizers, "domainmappings.serving.knative.dev") {
		t.Errorf("finalizers: %v", m.Finalizers)
	}
	alias := &routing.Alias{Route: named("hello"), Host: "hello.shop.svc.cluster.local"}
	if diff := cmp.Diff(&routing.Route{Key: named(host), Hosts: []routing.Host{{Name: host, Alias: alias}}}, f.gateway.routes[named(host)]); diff != "" {
		t.Errorf("route (-want +got):\n%s", diff)
	}
	f.reconcile(true)
	// A replica that does not write serves the same.
	other := newFixture(t, m, newClaim("shop"), newService(), newRoute())
	other.reconcile(false)
	if diff := cmp.Diff(f.gateway.routes, other.gateway.routes); diff != "" {
		t.Errorf("routes of another replica (-want +got):\n%s", diff)
	}
}

// TestFaults covers the conditions of DomainMappings that cannot be served. The gateway has none of them.
func TestFaults(t *testing.T) {
	waiting := newRoute()
	waiting.Status.Address = nil
	unaddressed := newService()
	unaddressed.Status.Address = nil
	for name, test := range map[string]struct {
		objects []runtime.Object
		want    map[string]string
	}{
		"no claim":                   {[]runtime.Object{newMapping()}, failed(notClaimed)},
		"claim of another namespace": {[]runtime.Object{newMapping(), newClaim("other")}, failed(notClaimed)},
		"no Service": {[]runtime.Object{newMapping(), newClaim("shop")},
			unresolved(`failed to get object shop/hello: service.serving.knative.dev "hello" not found`)},
		"Service without address": {[]runtime.Object{newMapping(), newClaim("shop"), unaddressed, newRoute()}, unresolved(`address not set for Service "hello"`)},
		"no Route": {[]runtime.Object{newMapping(to("serving.knative.dev/v1", "Route", "", "hello")), newClaim("shop")},
			unresolved(`failed to get object shop/hello: route.serving.knative.dev "hello" not found`)},
		"Route without address": {[]runtime.Object{newMapping(to("serving.knative.dev/v1", "Route", "", "hello")), newClaim("shop"), waiting},
			unresolved(`address not set for Route "hello"`)},
		"another namespace": {[]runtime.Object{newMapping(to("serving.knative.dev/v1", "Service", "other", "hello")), newClaim("shop"), newService(), newRoute()},
			unresolved(`resolved URI "http://hello.other.svc.cluster.local" must be in same namespace as DomainMapping`)},
		"core Service without a Route": {[]runtime.Object{newMapping(to("v1", "Service", "", "hello")), newClaim("shop"), newService(), newRoute()},
			unresolved(`core Service "hello" does not belong to a Route: the gateway reaches only Services and Routes of Knative`)},
		"Broker": {[]runtime.Object{newMapping(to("eventing.knative.dev/v1", "Broker", "", "hello")), newClaim("shop")},
			unresolved(`Broker "hello" of eventing.knative.dev/v1 cannot be mapped: must be a Service or Route of serving.knative.dev, or the core Service of a Route`)},
		"invalid apiVersion": {[]runtime.Object{newMapping(to("a/b/c", "Service", "", "hello")), newClaim("shop"), newService(), newRoute()},
			unresolved(`Service "hello" of a/b/c cannot be mapped: must be a Service or Route of serving.knative.dev, or the core Service of a Route`)},
		"invalid name": {[]runtime.Object{newMapping(to("serving.knative.dev/v1", "Service", "", "No_name")), newClaim("shop")},
			unresolved(`failed to get object shop/No_name: service.serving.knative.dev "No_name" not found`)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.objects...)
			m := f.reconcile(true)
			if diff := cmp.Diff(test.want, state(m)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if m.Status.URL != "http://"+host || m.Status.Address.URL != m.Status.URL {
				t.Errorf("URL %q, address %+v", m.Status.URL, m.Status.Address)
			}
			if len(f.gateway.routes) > 0 {
				t.Errorf("the gateway has %v", f.gateway.routes)
			}
		})
	}
}

// newApplication returns a Service with its Route.
func newApplication(name string) (*servingv1.Service, *servingv1.Route) {
	service, route := newService(), newRoute()
	service.Name, route.Name = name, name
	return service, route
}

// withPath adds a path to a DomainMapping.
func withPath(prefix, apiVersion, kind, name string) func(*servingv1beta1.DomainMapping) {
	return func(m *servingv1beta1.DomainMapping) {
		ref := duckv1.KReference{APIVersion: apiVersion, Kind: kind, Name: name}
		m.Spec.Paths = append(m.Spec.Paths, servingv1beta1.DomainMappingPath{Prefix: prefix, Ref: ref})
	}
}

// TestPaths covers the applications of paths: each serves its path although others are missing, the condition names those, and the
// DomainMapping follows changes of all of them.
func TestPaths(t *testing.T) {
	api, apiRoute := newApplication("api")
	waiting, waitingRoute := newApplication("waiting")
	waitingRoute.Status.Traffic = nil
	mapping := newMapping(withPath("/api", "serving.knative.dev/v1", "Service", "api"), withPath("/api/v1", "serving.knative.dev/v1", "Route", "later"))
	f := newFixture(t, mapping, newClaim("shop"), newService(), newRoute(), api, apiRoute, waiting, waitingRoute)
	alias := func(name string) *routing.Alias {
		return &routing.Alias{Route: named(name), Host: name + ".shop.svc.cluster.local"}
	}
	expect := func(what string, alias *routing.Alias, paths []routing.Path, want map[string]string) {
		t.Helper()
		m := f.reconcile(true)
		for name, condition := range want {
			if got := state(m)[name]; got != condition {
				t.Errorf("%s: %s is %q, want %q", what, name, got, condition)
			}
		}
		route := &routing.Route{Key: named(host), Hosts: []routing.Host{{Name: host, Alias: alias, Paths: paths}}}
		if diff := cmp.Diff(route, f.gateway.routes[named(host)]); diff != "" {
			t.Errorf("%s: route (-want +got):\n%s", what, diff)
		}
	}
	update := func(change func(*servingv1beta1.DomainMapping)) {
		t.Helper()
		m, err := f.Reconciler.Client.DomainMappings("shop").Get(t.Context(), host, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(m)
		if _, err := f.Reconciler.Client.DomainMappings("shop").Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Sync()
	}

	const missingPath = `False ResolveFailed path "/api/v1": failed to get object shop/later: route.serving.knative.dev "later" not found`
	expect("a path without application", alias("hello"), []routing.Path{{Prefix: "/api", Alias: alias("api")}, {Prefix: "/api/v1"}},
		map[string]string{"ReferenceResolved": missingPath, "IngressReady": "True", "Ready": missingPath})

	_, later := newApplication("later")
	if _, err := f.Fixture.Client.ServingV1().Routes("shop").Create(t.Context(), later, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Sync()
	expect("all resolved", alias("hello"), []routing.Path{{Prefix: "/api", Alias: alias("api")}, {Prefix: "/api/v1", Alias: alias("later")}},
		map[string]string{"ReferenceResolved": "True", "IngressReady": "True", "Ready": "True"})

	update(func(m *servingv1beta1.DomainMapping) {
		m.Spec.Ref.Name, m.Spec.Paths[1].Ref = "gone", duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "api"}
	})
	const missing = `False ResolveFailed failed to get object shop/gone: service.serving.knative.dev "gone" not found; ` +
		`path "/api/v1": core Service "api" does not belong to a Route: the gateway reaches only Services and Routes of Knative`
	expect("only a path", nil, []routing.Path{{Prefix: "/api", Alias: alias("api")}, {Prefix: "/api/v1"}},
		map[string]string{"ReferenceResolved": missing, "IngressReady": "True", "Ready": missing})
	if f.result.RequeueAfter <= 0 {
		t.Error("the unknown core Service of a path is not looked up again")
	}

	update(func(m *servingv1beta1.DomainMapping) {
		m.Spec.Ref.Name, m.Spec.Paths = "hello", nil
		withPath("/wait", "serving.knative.dev/v1", "Service", "waiting")(m)
	})
	const spreading = "Unknown IngressNotConfigured Not all gateways serve the host name yet."
	expect("a path whose Route spreads", alias("hello"), []routing.Path{{Prefix: "/wait", Alias: alias("waiting")}},
		map[string]string{"ReferenceResolved": "True", "IngressReady": spreading, "Ready": spreading})

	update(func(m *servingv1beta1.DomainMapping) {
		m.Spec.Ref.Name, m.Spec.Paths = "gone", nil
		withPath("/x", "eventing.knative.dev/v1", "Broker", "default")(m)
	})
	if m := f.reconcile(true); state(m)["IngressReady"] != notConfigured || len(f.gateway.routes) > 0 {
		t.Errorf("nothing resolved: the gateway has %v, conditions %v", f.gateway.routes, state(m))
	}
}

// TestTargetIndex covers the objects whose changes affect a DomainMapping.
func TestTargetIndex(t *testing.T) {
	m := newMapping(withPath("/a", "serving.knative.dev/v1", "Service", "api"), withPath("/b", "serving.knative.dev/v1", "Route", "hello"),
		withPath("/c", "v1", "Service", "x"), withPath("/d", "v1", "Service", "y"))
	got, err := indexers()[byTarget](m)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"shop/", "shop/api", "shop/hello"}, got); diff != "" {
		t.Errorf("index (-want +got):\n%s", diff)
	}
}

// TestCoreService covers the core Service of a Route's tag, which is looked up until it exists.
func TestCoreService(t *testing.T) {
	f := newFixture(t, newMapping(to("v1", "Service", "", "next-hello")), newClaim("shop"), newRoute())
	f.reconcile(true)
	if f.result.RequeueAfter <= 0 {
		t.Error("an unknown core Service is not looked up again")
	}
	hello := hostnames.Owner{Kind: hostnames.Route, Key: named("hello")}
	if _, err := f.Claims.Set(hostnames.Claim{Owner: hello, Hosts: []string{"next-hello.shop.svc.cluster.local"}}, f.settings); err != nil {
		t.Fatal(err)
	}
	if got := state(f.reconcile(true))["Ready"]; got != "True" || f.result.RequeueAfter > 0 {
		t.Errorf("Ready is %q, requeued after %v", got, f.result.RequeueAfter)
	}
	if got := f.gateway.routes[named(host)].Hosts[0].Alias; *got != (routing.Alias{Route: named("hello"), Host: "next-hello.shop.svc.cluster.local"}) {
		t.Errorf("alias %+v", got)
	}
}

// TestTLS covers the scheme of a DomainMapping with a certificate.
func TestTLS(t *testing.T) {
	f := newFixture(t, newMapping(func(m *servingv1beta1.DomainMapping) {
		m.Spec.TLS = &servingv1beta1.SecretTLS{SecretName: "certificate"}
	}), newClaim("shop"), newService(), newRoute())
	if m := f.reconcile(true); m.Status.URL != "https://"+host || m.Status.Address.URL != m.Status.URL {
		t.Errorf("URL %q, address %+v", m.Status.URL, m.Status.Address)
	}
}

// fakeCertificates has all requested certificates.
type fakeCertificates struct {
	requests map[hostcerts.Owner][]hostcerts.Request
}

func (f *fakeCertificates) Set(_ context.Context, owner hostcerts.Owner, requests []hostcerts.Request) {
	f.requests[owner] = requests
}

func (*fakeCertificates) State(string) hostcerts.State { return hostcerts.State{Ready: true} }

func (*fakeCertificates) Subscribe(func(hostcerts.Owner)) {}

// TestCertificates covers the certificates of DomainMappings: of their Secret, or of the authority; none for a host name of another namespace.
func TestCertificates(t *testing.T) {
	owner := hostcerts.Owner{Kind: "DomainMapping", Key: named(host)}
	for name, test := range map[string]struct {
		// secret is spec.tls.secretName, "-" the empty one.
		secret, namespace string
		enabled           bool
		requests          []hostcerts.Request
		condition, scheme string
	}{
		"none":      {namespace: "shop", condition: noTLS, scheme: "http"},
		"authority": {namespace: "shop", enabled: true, requests: []hostcerts.Request{{Host: host}}, condition: "True", scheme: "https"},
		"Secret":    {namespace: "shop", secret: "own", requests: []hostcerts.Request{{Host: host, Secret: "own"}}, condition: "True CertificateExternallyProvided TLS certificate was provided externally", scheme: "https"},
		"empty Secret": {namespace: "shop", secret: "-", enabled: true, scheme: "https",
			condition: `False CertificateProvisionFailed Certificate www.example.com fails to be provisioned: no Secret can have the name "".`},
		"name of another":  {namespace: "other", enabled: true, condition: "Unknown", scheme: "http"},
		"Secret, no claim": {namespace: "other", secret: "own", condition: "Unknown", scheme: "https"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, newMapping(func(m *servingv1beta1.DomainMapping) {
				if test.secret != "" {
					m.Spec.TLS = &servingv1beta1.SecretTLS{SecretName: strings.TrimPrefix(test.secret, "-")}
				}
			}), newClaim(test.namespace), newService(), newRoute())
			certificates := &fakeCertificates{requests: map[hostcerts.Owner][]hostcerts.Request{}}
			f.Certificates, f.settings.Network.ExternalDomainTLS, f.settings.Network.Redirect = certificates, test.enabled, true
			m := f.reconcile(true)
			if got := state(m)["CertificateProvisioned"]; got != test.condition || m.Status.URL != test.scheme+"://"+host {
				t.Errorf("CertificateProvisioned is %q, the URL %q; want %q and %s", got, m.Status.URL, test.condition, test.scheme)
			}
			if diff := cmp.Diff(test.requests, certificates.requests[owner]); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if route := f.gateway.routes[named(host)]; route != nil && (route.Hosts[0].Certificate != (len(test.requests) > 0) || route.Hosts[0].RedirectToHTTPS != route.Hosts[0].Certificate) {
				t.Errorf("the gateway has %+v", route.Hosts[0])
			}
		})
	}
}

// TestSpreading checks that a DomainMapping is not ready before all gateways serve its host name and its Route.
func TestSpreading(t *testing.T) {
	const want = "Unknown IngressNotConfigured Not all gateways serve the host name yet."
	f := newFixture(t, newMapping(), newClaim("shop"), newService(), newRoute())
	f.gateway.behind = true
	if got := state(f.reconcile(true))["Ready"]; got != want {
		t.Errorf("Ready is %q", got)
	}
	f.gateway.behind = false
	f.gateway.then()
	if diff := cmp.Diff([]types.NamespacedName{named(host)}, f.queue.keys); diff != "" {
		t.Errorf("enqueued (-want +got):\n%s", diff)
	}
	if got := state(f.reconcile(true))["Ready"]; got != "True" {
		t.Errorf("Ready is %q", got)
	}

	spreading := newRoute()
	spreading.Status.Conditions = duckv1.Conditions{{Type: servingv1.RouteConditionIngressReady, Status: corev1.ConditionUnknown, Reason: "IngressNotConfigured"}}
	f = newFixture(t, newMapping(), newClaim("shop"), newService(), spreading)
	if got := state(f.reconcile(true))["Ready"]; got != want || f.gateway.routes[named(host)] == nil {
		t.Errorf("Ready is %q while the Route spreads", got)
	}
}

// TestHostOfRoute covers a host name that a Route serves: the DomainMapping does not get it, with or without a claim, and creates no claim;
// it gets the name when the Route is deleted, and keeps it when an older Route claims it.
func TestHostOfRoute(t *testing.T) {
	route := hostnames.Claim{
		Owner: hostnames.Owner{Kind: hostnames.Route, Key: routing.Key{Namespace: "other", Name: "www"}}, Created: controllertest.Now.Add(-time.Hour),
		Hosts: []string{host}, Held: []string{host},
	}
	refused := failed(`False DomainAlreadyClaimed Host name "www.example.com" belongs to Route "other/www", which claimed it first.`)
	f := newFixture(t, newMapping(), newService(), newRoute())
	f.routes = []hostnames.Claim{route}
	f.autocreate(true)
	if diff := cmp.Diff(refused, state(f.reconcile(true))); diff != "" || f.stored() != "" {
		t.Errorf("claim for %q, conditions without a claim (-want +got):\n%s", f.stored(), diff)
	}

	f = newFixture(t, newMapping(), newClaim("shop"), newService(), newRoute())
	f.routes = []hostnames.Claim{route}
	if diff := cmp.Diff(refused, state(f.reconcile(true))); diff != "" || len(f.gateway.routes) > 0 {
		t.Errorf("the gateway has %v, conditions with a claim (-want +got):\n%s", f.gateway.routes, diff)
	}
	f.Claims.Drop(route.Owner)
	if got := state(f.reconcile(true))["Ready"]; got != "True" {
		t.Errorf("Ready is %q when the Route is deleted", got)
	}
	// The status decides, also after a restart.
	f.routes = nil
	route.Held = nil
	f.autocreate(false)
	f.reconcile(true)
	if lost, err := f.Claims.Set(route, f.settings); err != nil || lost[host].Kind != hostnames.DomainMapping {
		t.Errorf("the Route lost %v, %v", lost, err)
	}
	if got := state(f.reconcile(true))["Ready"]; got != "True" || f.gateway.routes[named(host)] == nil {
		t.Errorf("Ready is %q when a Route claims the name", got)
	}
}

// TestSquatting checks that a DomainMapping without a claim does not keep a Route from a host name.
func TestSquatting(t *testing.T) {
	f := newFixture(t, newMapping())
	f.reconcile(true)
	route := hostnames.Claim{Owner: hostnames.Owner{Kind: hostnames.Route, Key: named("hello")}, Created: controllertest.Now.Add(time.Hour), Hosts: []string{host}}
	if lost, err := f.Claims.Set(route, f.settings); err != nil || len(lost) > 0 {
		t.Errorf("the Route lost %v, %v", lost, err)
	}
}

// TestClaimLost covers a claim that moves to another namespace: its DomainMappings get the host name, others lose it at once.
func TestClaimLost(t *testing.T) {
	f := newFixture(t, newMapping(), newClaim("shop"), newService(), newRoute())
	f.reconcile(true)
	if _, err := f.ClaimsClient.ClusterDomainClaims().Update(t.Context(), newClaim("other"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Sync()
	if diff := cmp.Diff(failed(notClaimed), state(f.reconcile(true))); diff != "" || len(f.gateway.routes) > 0 {
		t.Errorf("the gateway has %v, conditions (-want +got):\n%s", f.gateway.routes, diff)
	}
}

// TestAutocreate covers claims that the server creates and deletes.
func TestAutocreate(t *testing.T) {
	f := newFixture(t, newMapping(), newService(), newRoute())
	f.autocreate(true)
	f.reconcile(false)
	f.reconcile(true)
	claim, err := f.DomainClaims.Get(host)
	if err != nil || claim.Spec.Namespace != "shop" || len(claim.OwnerReferences) > 0 || len(claim.Finalizers) > 0 {
		t.Errorf("the claim is %+v, %v", claim, err)
	}
	if event := <-f.Fixture.Recorder.Events; event != `Normal Created Created ClusterDomainClaim "www.example.com"` {
		t.Errorf("event %q", event)
	}
	m := f.reconcile(true)
	if got := state(m)["Ready"]; got != "True" {
		t.Errorf("Ready is %q", got)
	}
}

// wild sets the annotation for names below a name.
func wild(annotations *map[string]string, value string) {
	*annotations = map[string]string{networkingv1alpha1.WildcardAnnotationKey: value}
}

// TestWildcard checks that a DomainMapping gets the names below its own only by a claim that allows it, with their certificates, and that
// such a claim is not deleted with it.
func TestWildcard(t *testing.T) {
	const below = "*." + host
	const denied = `False WildcardNotAllowed A wildcard requires the annotation serving.knative.dev/wildcard: "true" on the ClusterDomainClaim of the name`
	for name, test := range map[string]struct {
		wanted, allowed string
		want            string
		hosts           []string
	}{
		"allowed":             {"true", "true", "True", []string{host, below}},
		"not allowed":         {"true", "", denied, nil},
		"explicitly not":      {"true", "false", denied, nil},
		"not wanted":          {"", "true", "True", []string{host}},
		"explicitly unwanted": {"false", "true", "True", []string{host}},
	} {
		t.Run(name, func(t *testing.T) {
			claim := newClaim("shop")
			wild(&claim.Annotations, test.allowed)
			f := newFixture(t, newMapping(func(m *servingv1beta1.DomainMapping) { wild(&m.Annotations, test.wanted) }), claim, newService(), newRoute())
			f.autocreate(true)
			certificates := &fakeCertificates{requests: map[hostcerts.Owner][]hostcerts.Request{}}
			f.Certificates, f.settings.Network.ExternalDomainTLS = certificates, true
			if got := state(f.reconcile(true))["DomainClaimed"]; got != test.want {
				t.Errorf("DomainClaimed is %q, want %q", got, test.want)
			}
			var served, secured []string
			if route := f.gateway.routes[named(host)]; route != nil {
				for _, h := range route.Hosts {
					if served = append(served, h.Name); !h.Certificate || h.Alias == nil {
						t.Errorf("the gateway has %+v", h)
					}
				}
			}
			for _, r := range certificates.requests[hostcerts.Owner{Kind: "DomainMapping", Key: named(host)}] {
				secured = append(secured, r.Host)
			}
			if !slices.Equal(served, test.hosts) || !slices.Equal(secured, test.hosts) {
				t.Errorf("the gateway has %v, with certificates %v; want %v", served, secured, test.hosts)
			}
		})
	}
	claim := newClaim("shop")
	wild(&claim.Annotations, "true")
	f := newFixture(t, newMapping(func(m *servingv1beta1.DomainMapping) {
		m.DeletionTimestamp = &metav1.Time{Time: controllertest.Now}
		m.Finalizers = []string{"example.com/other", servingv1beta1.DomainMappingFinalizer}
	}), claim)
	f.autocreate(true)
	f.reconcile(true)
	if f.stored() != "shop" {
		t.Error("the claim of the administrator is deleted")
	}
}

// TestReserved covers names below a wildcard: with automatic claims, other namespaces do not get them, unless they have a claim of a longer
// name.
func TestReserved(t *testing.T) {
	parent := func(name, namespace, wildcard string) *networkingv1alpha1.ClusterDomainClaim {
		claim := newClaim(namespace)
		claim.Name, claim.UID = name, types.UID(name)
		wild(&claim.Annotations, wildcard)
		return claim
	}
	for name, test := range map[string]struct {
		claims []runtime.Object
		want   string
	}{
		"of another namespace":                {[]runtime.Object{parent("example.com", "other", "true")}, notClaimed},
		"two labels above":                    {[]runtime.Object{parent("com", "other", "true")}, notClaimed},
		"of the own namespace":                {[]runtime.Object{parent("example.com", "shop", "true")}, "True"},
		"no wildcard":                         {[]runtime.Object{parent("example.com", "other", "false")}, "True"},
		"of another domain":                   {[]runtime.Object{parent("example.org", "other", "true"), parent("xample.com", "other", "true")}, "True"},
		"an own claim":                        {[]runtime.Object{parent("example.com", "other", "true"), newClaim("shop")}, "True"},
		"an own wildcard below another's":     {[]runtime.Object{parent("com", "other", "true"), parent("example.com", "shop", "true")}, "True"},
		"another's wildcard below an own":     {[]runtime.Object{parent("com", "shop", "true"), parent("example.com", "other", "true")}, notClaimed},
		"a claim that is longer, no wildcard": {[]runtime.Object{parent("com", "other", "true"), parent("example.com", "shop", "")}, notClaimed},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, append(test.claims, newMapping(), newService(), newRoute())...)
			f.autocreate(true)
			f.reconcile(true)
			if got := state(f.reconcile(true))["DomainClaimed"]; got != test.want {
				t.Errorf("DomainClaimed is %q, want %q", got, test.want)
			}
			if served := f.gateway.routes[named(host)] != nil; served != (test.want == "True") {
				t.Errorf("served: %v", served)
			}
		})
	}
}

// TestClaimDeleted checks that a DomainMapping keeps its host name when its claim is deleted, if the server creates claims: an older one of
// another namespace, which waits for the name, does not get it in between, on no replica and not after a restart.
func TestClaimDeleted(t *testing.T) {
	waiting := newMapping(func(m *servingv1beta1.DomainMapping) {
		m.Namespace, m.Spec.Ref.Namespace = "other", "other"
		m.CreationTimestamp = metav1.NewTime(controllertest.Now.Add(-time.Hour))
	})
	f := newFixture(t, newMapping(), newClaim("shop"), newService(), newRoute(), waiting)
	f.reconcile(true)
	if err := f.ClaimsClient.ClusterDomainClaims().Delete(t.Context(), host, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.Sync()
	f.autocreate(true)
	wait := func() {
		t.Helper()
		if _, err := f.Reconcile(t.Context(), reconciler.NewRequest(keyOf(waiting), true)); err != nil {
			t.Fatal(err)
		}
		if got := f.stored(); got == "other" {
			t.Fatal("another namespace got the host name")
		}
		f.Sync()
	}
	wait()
	if got := state(f.reconcile(false))["Ready"]; got != "True" || f.gateway.routes[named(host)] == nil {
		t.Errorf("Ready is %q, the gateway has %v", got, f.gateway.routes)
	}
	wait()
	if got := state(f.reconcile(true))["Ready"]; got != "True" || f.stored() != "shop" {
		t.Errorf("Ready is %q, the claim is for %q", got, f.stored())
	}
}

// TestNameOfCoreService checks that the server creates no claim of a name by which a core Service is called, which may not exist yet.
func TestNameOfCoreService(t *testing.T) {
	const name = "hello.other.svc"
	mapping := newMapping(func(m *servingv1beta1.DomainMapping) { m.Name = name })
	f := newFixture(t, mapping, newService(), newRoute())
	f.autocreate(true)
	if _, err := f.Reconcile(t.Context(), reconciler.NewRequest(named(name), true)); err != nil {
		t.Fatal(err)
	}
	f.Sync()
	claims, err := f.DomainClaims.List(labels.Everything())
	if err != nil {
		t.Fatal(err)
	}
	m, err := f.Mappings.DomainMappings("shop").Get(name)
	if err != nil {
		t.Fatal(err)
	}
	if c := m.Status.Conditions.Get(servingv1beta1.DomainMappingConditionDomainClaimed); len(claims) > 0 || c == nil || c.Reason != ReasonDomainAlreadyClaimed {
		t.Errorf("claims %v, DomainClaimed %+v", claims, c)
	}
}

// TestDeletionBeforeClaim covers the deletion of a DomainMapping whose claim the informer has not received yet: the claim is deleted too.
func TestDeletionBeforeClaim(t *testing.T) {
	f := newFixture(t, newMapping(func(m *servingv1beta1.DomainMapping) {
		m.DeletionTimestamp = &metav1.Time{Time: controllertest.Now}
		m.Finalizers = []string{"example.com/other", servingv1beta1.DomainMappingFinalizer}
	}))
	f.autocreate(true)
	if _, err := f.ClaimsClient.ClusterDomainClaims().Create(t.Context(), newClaim("shop"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	f.reconcile(true)
	if got := f.stored(); got != "" {
		t.Errorf("the claim for %q remains", got)
	}
}

// TestDeletion covers the claims that are deleted with a DomainMapping, and checks that its finalizer is removed last.
func TestDeletion(t *testing.T) {
	for name, test := range map[string]struct {
		autocreate bool
		namespace  string
		want       string
	}{
		"created by the server":         {true, "shop", ""},
		"of administrators":             {false, "shop", "shop"},
		"of another namespace":          {true, "other", "other"},
		"without one":                   {true, "", ""},
		"without one, created manually": {false, "", ""},
		"of another, created manually":  {false, "other", "other"},
	} {
		t.Run(name, func(t *testing.T) {
			deleted := newMapping(func(m *servingv1beta1.DomainMapping) {
				m.DeletionTimestamp = &metav1.Time{Time: controllertest.Now}
				m.Finalizers = []string{"example.com/other", servingv1beta1.DomainMappingFinalizer}
			})
			objects := []runtime.Object{deleted, newService(), newRoute()}
			if test.namespace != "" {
				objects = append(objects, newClaim(test.namespace))
			}
			f := newFixture(t, objects...)
			f.autocreate(test.autocreate)
			f.publish(named(host), &routing.Route{Key: named(host)})
			m := f.reconcile(true)
			if got := f.stored(); got != test.want {
				t.Errorf("the claim is for %q, want %q", got, test.want)
			}
			if diff := cmp.Diff([]string{"example.com/other"}, m.Finalizers); diff != "" {
				t.Errorf("finalizers (-want +got):\n%s", diff)
			}
			if len(f.gateway.routes) > 0 {
				t.Errorf("the gateway has %v", f.gateway.routes)
			}
			f.reconcile(true)
		})
	}
}

// TestIndexes covers the DomainMappings that a change affects.
func TestIndexes(t *testing.T) {
	core := newMapping(to("v1", "Service", "", "any"))
	core.Name = "core.example.com"
	f := newFixture(t, newMapping(), core)
	index := f.Factory.Serving().V1beta1().DomainMappings().Informer().GetIndexer()
	for _, test := range []struct {
		name, value string
		want        []types.NamespacedName
	}{
		{byHost, host, []types.NamespacedName{named(host)}},
		{byHost, "hello", nil},
		{byParent, "example.com", []types.NamespacedName{named("core.example.com"), named(host)}},
		{byParent, "com", []types.NamespacedName{named("core.example.com"), named(host)}},
		{byParent, host, nil},
		{byTarget, "shop/hello", []types.NamespacedName{named(host)}},
		{byTarget, "other/hello", nil},
		{byTarget, "shop/", []types.NamespacedName{named("core.example.com")}},
	} {
		got := found(index, test.name, test.value)
		slices.SortFunc(got, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
		if !slices.Equal(got, test.want) {
			t.Errorf("%s %s: %v, want %v", test.name, test.value, got, test.want)
		}
	}
	f.EnqueueAll()
	if len(f.queue.keys) != 2 {
		t.Errorf("enqueued %v", f.queue.keys)
	}
}

// fakeManager records the wanted Certificates of cert-manager of the last call of Apply.
type fakeManager struct {
	certmanager.Standalone
	applied []certmanager.Certificate
}

func (f *fakeManager) Apply(_ context.Context, _ *certmanager.Object, _ settings.Issuer, wanted []certmanager.Certificate) (map[string]certmanager.State, error) {
	f.applied = wanted
	return nil, nil
}

// TestCertManager covers the Certificates of cert-manager for a DomainMapping, which end with the claim of its host name.
func TestCertManager(t *testing.T) {
	for namespace, want := range map[string][]certmanager.Certificate{"shop": {{Name: host, Host: host}}, "other": nil} {
		f := newFixture(t, newMapping(), newClaim(namespace), newService(), newRoute())
		manager := &fakeManager{applied: []certmanager.Certificate{{Name: "before"}}}
		f.Certificates, f.CertManager = &fakeCertificates{requests: map[hostcerts.Owner][]hostcerts.Request{}}, manager
		f.settings.Network.ExternalDomainTLS, f.settings.Network.CertificateClass = true, settings.CertManagerClass
		f.reconcile(true)
		if diff := cmp.Diff(want, manager.applied); diff != "" {
			t.Errorf("claimed by %s (-want +got):\n%s", namespace, diff)
		}
	}
}

// TestCertificateName covers the names of Certificates of cert-manager.
func TestCertificateName(t *testing.T) {
	long := strings.Repeat("a", 60) + ".example.com"
	for name, test := range map[string]struct{ name, host, want string }{
		"the name":           {name: host, host: host, want: host},
		"the names below it": {name: host, host: "*." + host, want: "wildcard-1-2"},
		// echo -n <the name> | sha256sum
		"a long name": {name: long, host: long, want: long[:31] + "43c9a14c2b264b704416b07ddee9c87b"},
	} {
		mapping := &servingv1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Name: test.name, UID: "1-2"}}
		if got := certificateName(mapping, test.host); got != test.want || len(got) > 63 {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}
