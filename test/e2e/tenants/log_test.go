package tenants

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestLogRight checks that the log of a Revision requires its own right: it grants nothing else, all other rights in the
// namespace do not include it, and it has no effect in another namespace.
func TestLogRight(t *testing.T) {
	t.Parallel()
	s, other := node.NewSpace(t, "logs"), node.NewSpace(t, "other")
	s.Apply(t, service(t, "hello", ""))
	s.Ready(t, "service/hello")
	withRole := func(in *harness.Space, name, resource string) *rest.Config {
		roles := node.Host.RbacV1().Roles(in.Name)
		if _, err := roles.Create(t.Context(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"serving.knative.dev"}, Resources: []string{resource}, Verbs: []string{"get"}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		config := node.AsCluster().ServiceAccount(t, in.Name, name)
		node.AsCluster().Bind(t, in.Name, "system:serviceaccount:"+in.Name+":"+name, "Role", name)
		return config
	}
	reader := withRole(s, "reader", "revisions/log")
	viewer := withRole(s, "viewer", "revisions")
	stranger := withRole(other, "stranger", "revisions/log")

	// The application logs an event.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://hello."+s.Name+".example.com/", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "logged", "Ce-Source": "/e2e", "Ce-Type": "order"} {
		request.Header.Set(name, value)
	}
	if code, body, err := harness.Exchange(node.HTTPClient(patience), request); err != nil || code != http.StatusAccepted {
		t.Fatalf("code %d, %v: %s", code, err, body)
	}

	revision := harness.KindOf("Revision").Path(s.Name, "hello-00001")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := harness.WriteKubeconfig(kubeconfig, reader); err != nil {
		t.Fatal(err)
	}
	kubectl := harness.NewKubectl(t, kubeconfig, s.Name)
	harness.Eventually(t, "the log has the event", func() error {
		got := kubectl.Run(t, "", "get", "--raw", revision+"/log")
		if got.Code != 0 || !strings.Contains(got.Stdout, `"id":"logged"`) || !strings.HasPrefix(got.Stdout, "[hello-00001-deployment-") {
			return fmt.Errorf("got %+v", got)
		}
		return nil
	})
	get := func(config *rest.Config, path string) *harness.Response {
		return clientsOf(t, config).Do(t, harness.Request{Method: http.MethodGet, Path: path})
	}
	wantForbidden(t, "reading the Revision with the right to its log", get(reader, revision))
	wantForbidden(t, "reading a Pod's log with the right to the Revision's", get(reader, "/api/v1/namespaces/"+s.Name+"/pods"))
	harness.Eventually(t, "the Revision can be read", func() error {
		if response := get(viewer, revision); response.Code != http.StatusOK {
			return fmt.Errorf("code %d: %s", response.Code, response.Body)
		}
		return nil
	})
	wantForbidden(t, "reading the log with the right to Revisions", get(viewer, revision+"/log"))
	wantForbidden(t, "reading the log of another namespace", get(stranger, revision+"/log"))
	anonymous := rest.AnonymousClientConfig(reader)
	if response := get(anonymous, revision+"/log"); response.Code != http.StatusForbidden && response.Code != http.StatusUnauthorized {
		t.Errorf("reading the log without a user: code %d", response.Code)
	}
}
