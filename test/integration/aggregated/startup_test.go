package aggregated

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// refuses starts a second server as the user of config, with its own data: it must exit with an error that has all of want.
func refuses(t *testing.T, config *rest.Config, want ...string) {
	t.Helper()
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	number, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := harness.WriteKubeconfig(kubeconfig, config); err != nil {
		t.Fatal(err)
	}
	process, err := harness.StartProcess(nil, binary, host.Flags(kubeconfig, t.TempDir(), number)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	code, err := process.ExitCode()
	if err != nil {
		t.Fatalf("%v\n%s", err, process.Log())
	}
	if code == 0 {
		t.Errorf("exit code 0")
	}
	lines := strings.Split(strings.TrimSpace(process.Log()), "\n")
	last := lines[len(lines)-1]
	for _, w := range want {
		if !strings.Contains(last, w) {
			t.Errorf("the last line must have %q:\n%s", w, process.Log())
		}
	}
}

// serverConfig is the server's client configuration for the host.
func serverConfig(t *testing.T) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(host.Dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// TestStartupBesideCRD checks that the server does not start if a CustomResourceDefinition has its group and version (P4).
func TestStartupBesideCRD(t *testing.T) {
	definitions := host.Admin.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	_, err := definitions.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "parallels.eventing.knative.dev"},
		"spec": map[string]any{
			"group": "eventing.knative.dev", "scope": "Namespaced",
			"names": map[string]any{"kind": "Parallel", "plural": "parallels"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := definitions.Delete(context(), "parallels.eventing.knative.dev", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the definition is deleted", func() error {
			_, err := definitions.Get(t.Context(), "parallels.eventing.knative.dev", metav1.GetOptions{})
			return wantNotFound(err)
		})
	}()
	refuses(t, serverConfig(t), "parallels.eventing.knative.dev", "delete these definitions", "docs/operations.md")
}

// TestStartupWithoutRequestHeaderCA checks that the server does not start if the host does not publish the CA of its front
// proxy (P11).
func TestStartupWithoutRequestHeaderCA(t *testing.T) {
	t.Parallel()
	config := serverConfig(t)
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	// The same host, except for the published front proxy.
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("Accept", "application/json")
			r.Out.Header.Del("Accept-Encoding")
		},
		Transport:      transport,
		ModifyResponse: withoutRequestHeaderCA,
	}
	server := httptest.NewTLSServer(proxy)
	t.Cleanup(server.Close)
	config.Host = server.URL
	config.CAFile, config.CAData = "", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	refuses(t, config, "kube-system/extension-apiserver-authentication", "--requestheader-client-ca-file")
}

// withoutRequestHeaderCA removes the CA of the front proxy from the ConfigMap that publishes it.
func withoutRequestHeaderCA(response *http.Response) error {
	if !strings.HasSuffix(response.Request.URL.Path, "/configmaps/extension-apiserver-authentication") {
		return nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var configMap corev1.ConfigMap
	if err := json.Unmarshal(body, &configMap); err != nil {
		return err
	}
	delete(configMap.Data, "requestheader-client-ca-file")
	if body, err = json.Marshal(configMap); err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	response.ContentLength = int64(len(body))
	response.Header.Set("Content-Length", fmt.Sprint(len(body)))
	return nil
}

// TestStartupWithoutRights checks that the server does not start without the shipped RBAC, and names the missing permissions (P7).
func TestStartupWithoutRights(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "rights", nil)
	settings := role{harness.SystemNamespace, "knative-apiserver"}
	frontProxy := role{metav1.NamespaceSystem, "extension-apiserver-authentication-reader"}
	for account, tt := range map[string]struct {
		has  []role
		says []string
	}{
		"none":               {says: []string{"read settings", "configmaps is forbidden"}},
		"not-on-front-proxy": {[]role{settings}, []string{"extension-apiserver-authentication", "forbidden"}},
		"not-on-definitions": {[]role{settings, frontProxy}, []string{"list CustomResourceDefinitions of the host cluster", "forbidden"}},
	} {
		t.Run(account, func(t *testing.T) {
			t.Parallel()
			config := host.ServiceAccount(t, ns, account)
			for _, r := range tt.has {
				r.give(t, ns, account)
			}
			refuses(t, config, tt.says...)
		})
	}
}

// role is a Role of a namespace.
type role struct{ namespace, name string }

// give binds a Role to a ServiceAccount until the test ends, and waits until it is effective.
func (r role) give(t *testing.T, namespace, account string) {
	t.Helper()
	bindings := host.Host.RbacV1().RoleBindings(r.namespace)
	binding, err := bindings.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: namespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bindings.Delete(context(), binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	host.AwaitAccess(t, authorizationv1.SubjectAccessReviewSpec{
		User: fmt.Sprintf("system:serviceaccount:%s:%s", namespace, account),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.namespace, Verb: "get", Resource: "configmaps", Name: "extension-apiserver-authentication",
		},
	})
}
