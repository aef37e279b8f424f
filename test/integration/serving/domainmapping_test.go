package serving

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// mapHost creates a DomainMapping of a Service.
func (s *server) mapHost(t testing.TB, namespace, host, service string) {
	t.Helper()
	mapping := &servingv1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: host},
		Spec:       servingv1beta1.DomainMappingSpec{Ref: duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: service}},
	}
	if _, err := s.Knative.ServingV1beta1().DomainMappings(namespace).Create(t.Context(), mapping, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// claimHost creates a ClusterDomainClaim.
func (s *server) claimHost(t testing.TB, namespace, host string) {
	t.Helper()
	claim := &networkingv1alpha1.ClusterDomainClaim{
		ObjectMeta: metav1.ObjectMeta{Name: host}, Spec: networkingv1alpha1.ClusterDomainClaimSpec{Namespace: namespace},
	}
	if _, err := s.Knative.NetworkingV1alpha1().ClusterDomainClaims().Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// mapped waits until a condition of a DomainMapping has a status and a reason.
func (s *server) mapped(t testing.TB, namespace, host string, of duckv1.ConditionType, status corev1.ConditionStatus, reason string) *servingv1beta1.DomainMapping {
	t.Helper()
	what := fmt.Sprintf("has %s %s %s", of, status, reason)
	return eventually(t, s.Knative.ServingV1beta1().DomainMappings(namespace), host, what, func(m *servingv1beta1.DomainMapping) error {
		return condition(m, &m.Status.Status, of, status, reason)
	})
}

// unmap deletes a DomainMapping, and waits until it no longer exists.
func (s *server) unmap(t testing.TB, namespace, host string) {
	t.Helper()
	mappings := s.Knative.ServingV1beta1().DomainMappings(namespace)
	if err := mappings.Delete(t.Context(), host, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, host+" is gone", func() error {
		if _, err := mappings.Get(t.Context(), host, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.New("it still exists")
		}
		return nil
	})
}

// code returns the status code of a response to a request for a host name.
func (s *server) code(t testing.TB, host string) int {
	t.Helper()
	a, err := s.get(t.Context(), "http://"+host+"/")
	if err != nil {
		t.Fatal(err)
	}
	return a.code
}

// TestDomainMapping covers a host name from its claim to its release: requests reach the Service with its internal name as Host, both
// follow the same traffic, a second namespace does not get the name, and neither does a Route whose name it becomes.
func TestDomainMapping(t *testing.T) {
	t.Parallel()
	config := writeSettings(t, nil)
	s := start(t, t.TempDir(), "--config-dir", config.dir)
	const ns, other, host = "shop", "other", "hello.other.example.com"
	s.deploy(t, app(t, ns, "hello", env("VERSION", "1"), revisionName("one")))
	s.mapHost(t, ns, host, "hello")
	s.mapped(t, ns, host, servingv1beta1.DomainMappingConditionDomainClaimed, corev1.ConditionFalse, "DomainAlreadyClaimed")
	if code := s.code(t, host); code != http.StatusNotFound {
		t.Errorf("without a claim: %d", code)
	}

	s.claimHost(t, ns, host)
	mapping := s.mapped(t, ns, host, duckv1.ConditionReady, corev1.ConditionTrue, "")
	if u, err := url.Parse(mapping.Status.URL); err != nil || u.Scheme != "http" || u.Hostname() != host || mapping.Status.Address.GetURL() != mapping.Status.URL {
		t.Errorf("status: %+v", mapping.Status)
	}
	got := decoded[headersReport](t, s.mustGet(t, "http://"+host+"/headers"))
	if got.Host != "hello.shop.svc.cluster.local" || got.Header.Get("K-Original-Host") != host || got.Header.Get("X-Forwarded-Host") != host {
		t.Errorf("the application got %+v", got)
	}

	// Another namespace cannot get the name.
	s.deploy(t, app(t, other, "theirs"))
	s.mapHost(t, other, host, "theirs")
	s.mapped(t, other, host, servingv1beta1.DomainMappingConditionDomainClaimed, corev1.ConditionFalse, "DomainAlreadyClaimed")
	config.write(t, "config-domain", map[string]string{"example.com": ""})
	s.apply(t, app(t, other, "hello"))
	eventually(t, s.Knative.ServingV1().Routes(other), "hello", "does not get the name", func(route *servingv1.Route) error {
		return condition(route, &route.Status.Status, servingv1.RouteConditionIngressReady, corev1.ConditionFalse, "HostnameConflict")
	})
	s.mapped(t, ns, host, duckv1.ConditionReady, corev1.ConditionTrue, "")
	if got := decoded[headersReport](t, s.mustGet(t, "http://"+host+"/headers")); got.Host != "hello.shop.svc.cluster.local" {
		t.Errorf("the name belongs to %s", got.Host)
	}

	// A mapping to a missing Service, and a host of a Route.
	s.claimHost(t, ns, "theirs.other.example.com")
	s.mapHost(t, ns, "theirs.other.example.com", "hello")
	s.mapped(t, ns, "theirs.other.example.com", servingv1beta1.DomainMappingConditionDomainClaimed, corev1.ConditionFalse, "DomainAlreadyClaimed")
	s.claimHost(t, ns, "www.example.org")
	s.mapHost(t, ns, "www.example.org", "missing")
	s.mapped(t, ns, "www.example.org", servingv1beta1.DomainMappingConditionReferenceResolved, corev1.ConditionFalse, "ResolveFailed")
	harness.Edit(t, s.Knative.ServingV1beta1().DomainMappings(ns), "www.example.org", func(m *servingv1beta1.DomainMapping) { m.Spec.Ref.Name = "hello" })
	s.mapped(t, ns, "www.example.org", duckv1.ConditionReady, corev1.ConditionTrue, "")
	s.mustGet(t, "http://www.example.org/")

	// The host follows the traffic of the Service.
	s.deploy(t, app(t, ns, "hello", env("VERSION", "2"), revisionName("two"), traffic(servingv1.TrafficTarget{LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)})))
	list, err := s.revisions(t.Context(), ns)
	if err != nil || !slices.Contains(list, "hello-two") {
		t.Fatalf("Revisions %v, %v", list, err)
	}
	if a, b := s.mustGet(t, "http://"+host+"/"), s.mustGet(t, mustURL(t, s, ns, "hello")); a != b {
		t.Errorf("the mapped host answers %q, the Service %q", a, b)
	}

	// The name is free after the deletion, and its claim stays.
	s.unmap(t, ns, host)
	eventually(t, s.Knative.ServingV1().Routes(other), "hello", "gets the name", func(route *servingv1.Route) error {
		return condition(route, &route.Status.Status, servingv1.RouteConditionIngressReady, corev1.ConditionTrue, "")
	})
	if claim, err := s.Knative.NetworkingV1alpha1().ClusterDomainClaims().Get(t.Context(), host, metav1.GetOptions{}); err != nil || claim.Spec.Namespace != ns {
		t.Errorf("the claim: %+v, %v", claim, err)
	}
}

// TestWildcardHost covers names below a DomainMapping's: they reach its Service once the administrator allows that, another namespace gets
// none of them although claims are created automatically, and a host with its own DomainMapping has precedence.
func TestWildcardHost(t *testing.T) {
	t.Parallel()
	config := writeSettings(t, map[string]map[string]string{"config-network": {"autocreate-cluster-domain-claims": "true"}})
	s := start(t, t.TempDir(), "--config-dir", config.dir)
	const ns, other, host = "shop", "other", "example.org"
	s.deploy(t, app(t, ns, "hello"))
	s.deploy(t, app(t, other, "theirs"))
	s.mapHost(t, other, "early.example.org", "theirs")
	s.mapped(t, other, "early.example.org", duckv1.ConditionReady, corev1.ConditionTrue, "")
	s.mapHost(t, ns, host, "hello")
	s.mapped(t, ns, host, duckv1.ConditionReady, corev1.ConditionTrue, "")
	wildcard := func(meta *metav1.ObjectMeta) {
		meta.Annotations = map[string]string{networkingv1alpha1.WildcardAnnotationKey: "true"}
	}
	harness.Edit(t, s.Knative.ServingV1beta1().DomainMappings(ns), host, func(m *servingv1beta1.DomainMapping) { wildcard(&m.ObjectMeta) })
	s.mapped(t, ns, host, servingv1beta1.DomainMappingConditionDomainClaimed, corev1.ConditionFalse, "WildcardNotAllowed")
	harness.Edit(t, s.Knative.NetworkingV1alpha1().ClusterDomainClaims(), host, func(c *networkingv1alpha1.ClusterDomainClaim) { wildcard(&c.ObjectMeta) })
	s.mapped(t, ns, host, duckv1.ConditionReady, corev1.ConditionTrue, "")
	for name, want := range map[string]string{host: "hello.shop", "www.example.org": "hello.shop", "a.www.example.org": "", "early.example.org": "theirs.other"} {
		if want == "" {
			if code := s.code(t, name); code != http.StatusNotFound {
				t.Errorf("%s: %d", name, code)
			}
			continue
		}
		got := decoded[headersReport](t, s.mustGet(t, "http://"+name+"/headers"))
		if got.Host != want+".svc.cluster.local" || got.Header.Get("K-Original-Host") != name {
			t.Errorf("%s: the application got %+v", name, got)
		}
	}
	s.mapHost(t, other, "late.example.org", "theirs")
	s.mapped(t, other, "late.example.org", servingv1beta1.DomainMappingConditionDomainClaimed, corev1.ConditionFalse, "DomainAlreadyClaimed")

	// The names are free again without the wildcard.
	if err := s.Knative.NetworkingV1alpha1().ClusterDomainClaims().Delete(t.Context(), host, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.mapped(t, other, "late.example.org", duckv1.ConditionReady, corev1.ConditionTrue, "")
}

// TestPathsOfHost covers paths of a DomainMapping from apply to their removal: requests reach the Service of the path with HTTP/1.1, HTTP/2
// and WebSocket, a Service keeps its own callers, other notations of a path are rejected, and a missing Service affects only its path.
func TestPathsOfHost(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	const ns, host = "shop", "www.example.org"
	for name, options := range map[string][]option{"front": nil, "api": nil, "admin": {callersOf("rbac")}} {
		s.deploy(t, app(t, ns, name, append(options, env("TARGET", name))...))
	}
	s.claimHost(t, ns, host)
	kubectl := harness.NewKubectl(t, s.Kubeconfig, ns)
	// manifest returns the DomainMapping of front with paths, each a prefix and a Service.
	manifest := func(paths ...[2]string) string {
		const ref = "{apiVersion: serving.knative.dev/v1, kind: Service, name: %s}"
		m := fmt.Sprintf("apiVersion: serving.knative.dev/v1beta1\nkind: DomainMapping\nmetadata: {name: %s}\nspec:\n  ref: "+ref+"\n  paths:\n", host, "front")
		for _, path := range paths {
			m += fmt.Sprintf("  - {prefix: %s, ref: "+ref+"}\n", path[0], path[1])
		}
		return m
	}
	kubectl.Must(t, manifest([2]string{"/headers", "api"}, [2]string{"/ws", "api"}, [2]string{"/echo", "admin"}, [2]string{"/info", "later"}), "apply", "-f", "-")
	missing := s.mapped(t, ns, host, servingv1beta1.DomainMappingConditionReferenceResolved, corev1.ConditionFalse, "ResolveFailed")
	if c := missing.Status.Conditions.Get(duckv1.ConditionReady); !strings.HasPrefix(c.Message, `path "/info": `) {
		t.Errorf("Ready is %+v", c)
	}
	s.mapped(t, ns, host, servingv1beta1.DomainMappingConditionIngressReady, corev1.ConditionTrue, "")

	for name, client := range s.clients(t) {
		a, err := ask(t.Context(), client, http.MethodGet, "http://"+host+"/headers?a=b", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := decoded[headersReport](t, a.body); got.Host != "api.shop.svc.cluster.local" || got.URI != "/headers?a=b" || got.Header.Get("K-Original-Host") != host {
			t.Errorf("%s: the application got %+v", name, got)
		}
		if a, err = ask(t.Context(), client, http.MethodGet, "http://"+host+"/concurrency", nil); err != nil {
			t.Fatal(err)
		}
		if got := decoded[struct{ Target string }](t, a.body); got.Target != "front" {
			t.Errorf("%s: another path reached %q", name, got.Target)
		}
	}
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.gateway)
	}}
	conn, response, err := dialer.DialContext(t.Context(), "ws://"+host+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	defer conn.Close()
	if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, message, err := conn.ReadMessage(); err != nil || string(message) != "hello" {
		t.Errorf("message %q, %v", message, err)
	}
	connection := s.mustDial(t)
	for path, want := range map[string]int{
		"/": 200, "/echo": 401, "/echo/x": 401, "/info": 404, "/%65cho": 400, "//echo": 400, "/headers/../echo": 400, "/headers/..%2fecho": 400, "/x;/echo": 400,
	} {
		a, err := connection.exchange(http.MethodGet, get(host, path))
		if err != nil {
			t.Fatal(err)
		}
		if a.code != want {
			t.Errorf("%s: %d %s, want %d", path, a.code, a.body, want)
		}
	}

	s.deploy(t, app(t, ns, "later"))
	s.mapped(t, ns, host, duckv1.ConditionReady, corev1.ConditionTrue, "")
	s.mustGet(t, "http://"+host+"/info")
	kubectl.MustFail(t, `spec.paths[0].prefix: Invalid value: "/api/"`, manifest([2]string{"/api/", "api"}), "apply", "-f", "-")
	kubectl.Must(t, manifest(), "apply", "-f", "-")
	harness.Eventually(t, "the host has no paths", func() error {
		if a, err := s.get(t.Context(), "http://"+host+"/headers"); err != nil || !strings.Contains(a.body, "front.shop.svc") {
			return fmt.Errorf("%+v, %w", a, err)
		}
		return nil
	})
}

// mustURL returns the URL of a Service.
func mustURL(t testing.TB, s *server, namespace, name string) string {
	t.Helper()
	return s.ready(t, namespace, name).Status.URL
}

// TestAutocreatedClaims covers claims that the server creates with DomainMappings and deletes with them, also when the namespace is
// deleted, and DomainMappings after a restart.
func TestAutocreatedClaims(t *testing.T) {
	t.Parallel()
	config := writeSettings(t, map[string]map[string]string{"config-network": {"autocreate-cluster-domain-claims": "true"}})
	dir := t.TempDir()
	s := start(t, dir, "--config-dir", config.dir)
	const ns, host = "shop", "www.example.com"
	s.deploy(t, app(t, ns, "hello"))
	s.mapHost(t, ns, host, "hello")
	s.mapped(t, ns, host, duckv1.ConditionReady, corev1.ConditionTrue, "")
	s.mustGet(t, "http://"+host+"/")
	s.mapHost(t, "other", host, "hello")
	s.mapped(t, "other", host, servingv1beta1.DomainMappingConditionDomainClaimed, corev1.ConditionFalse, "DomainAlreadyClaimed")

	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, dir, "--config-dir", config.dir)
	s.mustGet(t, "http://"+host+"/")

	claims := s.Knative.NetworkingV1alpha1().ClusterDomainClaims()
	s.unmap(t, "other", host)
	if claim, err := claims.Get(t.Context(), host, metav1.GetOptions{}); err != nil || claim.Spec.Namespace != ns {
		t.Errorf("the claim after another's deletion: %+v, %v", claim, err)
	}
	kubectl := harness.NewKubectl(t, s.Kubeconfig, ns)
	if out := kubectl.Must(t, "", "get", "cdc"); !strings.HasPrefix(out, "NAME") || !strings.Contains(out, host) {
		t.Errorf("kubectl get cdc:\n%s", out)
	}
	if out := kubectl.Must(t, "", "explain", "clusterdomainclaims.spec.namespace"); !strings.Contains(out, "FIELD: namespace <string>") {
		t.Errorf("kubectl explain:\n%s", out)
	}
	if out := kubectl.Must(t, "", "get", "dm", host, "--no-headers"); !strings.Contains(out, "http://"+host) || !strings.Contains(out, "True") {
		t.Errorf("kubectl get dm:\n%s", out)
	}
	harness.NewKubectl(t, s.Kubeconfig, "").Must(t, "", "delete", "namespace", ns)
	if _, err := claims.Get(t.Context(), host, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the claim after the deletion of its namespace: %v", err)
	}
	if code := s.code(t, host); code != http.StatusNotFound {
		t.Errorf("after the deletion of the namespace: %d", code)
	}
}
