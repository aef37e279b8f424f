package aggregated

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// metricsReader returns the rules of the ClusterRole for Prometheus.
func metricsReader(t *testing.T) []rbacv1.PolicyRule {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(root, "artifacts", "monitoring", "rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decoder := utilyaml.NewYAMLToJSONDecoder(file)
	for {
		var role rbacv1.ClusterRole
		if err := decoder.Decode(&role); err != nil {
			t.Fatalf("find the ClusterRole: %v", err)
		}
		if role.Kind == "ClusterRole" {
			return role.Rules
		}
	}
}

// TestMetrics checks that users with the rights of the shipped ClusterRole can read the metrics, including the delegation latency (P12).
func TestMetrics(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "metrics", nil)
	config := direct(t)
	config.BearerToken = host.ServiceAccount(t, ns, "scraper").BearerToken
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + ns},
		Rules:      metricsReader(t),
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "scraper", Namespace: ns}},
	}
	if _, err := host.Host.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := host.Host.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Host.RbacV1().ClusterRoleBindings().Delete(context(), role.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := host.Host.RbacV1().ClusterRoles().Delete(context(), role.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	host.AwaitAccess(t, authorizationv1.SubjectAccessReviewSpec{
		User:                  fmt.Sprintf("system:serviceaccount:%s:scraper", ns),
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
	})
	response := clientsOf(t, config).Do(t, harness.Request{Method: http.MethodGet, Path: "/metrics", Accept: "text/plain"})
	wantCode(t, response, http.StatusOK)
	for _, name := range []string{
		"apiserver_delegated_authn_request_total", "apiserver_delegated_authn_request_duration_seconds_bucket",
		"apiserver_delegated_authz_request_total", "apiserver_delegated_authz_request_duration_seconds_bucket",
		"apiserver_request_total", "etcd_request_duration_seconds_bucket",
	} {
		if !strings.Contains(string(response.Body), "\n"+name+"{") {
			t.Errorf("the metric %s is missing", name)
		}
	}
}

// TestGoaway checks that a server asks clients to reconnect occasionally, so that they spread over replicas (P13).
func TestGoaway(t *testing.T) {
	t.Parallel()
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	number, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	flags := append(host.Flags(filepath.Join(host.Dir, "kubeconfig"), t.TempDir(), number), "--goaway-chance=0.02")
	server, err := harness.StartProcess(nil, binary, flags...)
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	client := clientsOf(t, directTo(t, number))
	request := harness.Request{Method: http.MethodGet, Path: "/livez"}
	harness.Eventually(t, "the second server is ready", func() error {
		response, err := client.Send(t.Context(), harness.Request{Method: http.MethodGet, Path: "/readyz"})
		if err == nil && response.Code != http.StatusOK {
			err = fmt.Errorf("it answers %d", response.Code)
		}
		return err
	})
	connections := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			connections++
		}
	}})
	// The probability that none of them is asked to reconnect is 10^-17.
	for range 2000 {
		if _, err := client.Send(ctx, request); err != nil {
			t.Fatal(err)
		}
		if connections > 0 {
			return
		}
	}
	t.Error("the server never asked to reconnect")
}
