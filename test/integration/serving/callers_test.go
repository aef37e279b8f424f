package serving

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// callersOf sets the allowed callers of a Service.
func callersOf(value string) option {
	return func(s *servingv1.Service) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, servingv1.InvocationAnnotationKey, value)
	}
}

// TestCallers covers the callers that reach a restricted Service, on all paths, and checks that permissions and tokens can be revoked.
func TestCallers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tokens, config := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "config")
	write := func(lines ...string) {
		t.Helper()
		// Replaced at once, as by an editor.
		if err := os.WriteFile(tokens+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tokens+".new", tokens); err != nil {
			t.Fatal(err)
		}
	}
	const jane, mallory, admin = `token-of-jane,jane,1,"knative:invokers:team"`, `token-of-mallory,mallory,2,"knative:invokers:other"`, `token-of-admin,admin,3,system:masters`
	write(jane, mallory, admin)
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	s := start(t, filepath.Join(dir, "data"), "--token-auth-file", tokens, "--config-dir", config)
	const team = "team"
	restricted := s.newSiteIn(t, team, "restricted", instances("1"), callersOf("rbac"))
	open := s.newSiteIn(t, team, "open", instances("1"))

	send := func(client *http.Client, site *site, token string) (*answer, headersReport) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, site.url+"/headers", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Knative-Serving-User", "spoofed")
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		a := &answer{code: response.StatusCode, header: response.Header, body: string(body)}
		if a.code != http.StatusOK {
			return a, headersReport{}
		}
		return a, decoded[headersReport](t, a.body)
	}
	for protocol, client := range s.clients(t) {
		for _, test := range []struct {
			token string
			code  int
			user  string
		}{
			{"", http.StatusUnauthorized, ""},
			{"unknown", http.StatusUnauthorized, ""},
			{"token-of-mallory", http.StatusForbidden, ""},
			{"token-of-jane", http.StatusOK, "jane"},
			{"token-of-admin", http.StatusOK, "admin"},
		} {
			var a *answer
			var got headersReport
			harness.Eventually(t, "the review ends within its timeout", func() error {
				if a, got = send(client, restricted, test.token); a.code == http.StatusServiceUnavailable {
					return fmt.Errorf("got %d %s", a.code, a.body)
				}
				return nil
			})
			if a.code != test.code || strings.Join(got.Header["Knative-Serving-User"], "|") != test.user || got.Header.Get("Authorization") != "" {
				t.Errorf("%s, token %q: %d %s, user %q; want %d and user %q", protocol, test.token, a.code, a.body, got.Header["Knative-Serving-User"], test.code, test.user)
			}
			challenge := a.header.Get("WWW-Authenticate")
			if want := fmt.Sprintf("Bearer realm=%q", restricted.url); (a.code == http.StatusUnauthorized) != strings.HasPrefix(challenge, want) {
				t.Errorf("%s, token %q: challenge %q, want %q", protocol, test.token, challenge, want)
			}
		}
		if a, got := send(client, open, "token"); a.code != http.StatusOK || len(got.Header["Knative-Serving-User"]) > 0 || got.Header.Get("Authorization") != "Bearer token" {
			t.Errorf("%s, open: %d, user %q, authorization %q", protocol, a.code, got.Header["Knative-Serving-User"], got.Header.Get("Authorization"))
		}
	}

	// The permission is revoked, then the token. A decision is cached for ten seconds.
	until := func(what string, site *site, token string, code int) {
		t.Helper()
		harness.Eventually(t, what, func() error {
			if a, _ := send(s.http, site, token); a.code != code {
				return fmt.Errorf("got %d %s, want %d", a.code, a.body, code)
			}
			return nil
		})
	}
	write(`token-of-jane,jane,1`, mallory, admin)
	until("the permission is revoked", restricted, "token-of-jane", http.StatusForbidden)
	write(mallory, admin)
	until("the token is revoked", restricted, "token-of-jane", http.StatusUnauthorized)

	// Reviews fail while the file is malformed: the restricted Service is unavailable, the other one is not.
	write("malformed")
	until("reviews fail", restricted, "token-of-admin", http.StatusServiceUnavailable)
	if a, _ := send(s.http, open, "token"); a.code != http.StatusOK {
		t.Errorf("open Service while reviews fail: %d %s", a.code, a.body)
	}
	write(mallory, admin)
	until("reviews work again", restricted, "token-of-admin", http.StatusOK)

	// The annotation of the Namespace applies to Services without one, the ConfigMap to Namespaces without one.
	annotate := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, servingv1.InvocationAnnotationKey, value)
		if _, err := s.Dynamic.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Patch(t.Context(), team, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	annotate(`"rbac"`)
	until("the Namespace restricts", open, "", http.StatusUnauthorized)
	annotate("null")
	until("the Namespace does not restrict", open, "", http.StatusOK)
	const network = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-network\ndata:\n  invocation: rbac\n"
	if err := os.WriteFile(filepath.Join(config, "network.yaml"), []byte(network), 0o600); err != nil {
		t.Fatal(err)
	}
	until("the ConfigMap restricts", open, "", http.StatusUnauthorized)
	annotate(`"open"`)
	until("the Namespace opens", open, "", http.StatusOK)
	until("the Service restricts", restricted, "", http.StatusUnauthorized)

	if _, err := s.Knative.ServingV1().Services(team).Create(t.Context(), app(t, team, "misspelt", callersOf("RBAC")), metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), `metadata.annotations[serving.knative.dev/invocation]: Unsupported value: "RBAC": supported values: "open", "rbac"`) {
		t.Errorf("unknown value: %v", err)
	}
}

// TestServiceProxy covers requests to a private Service by the API.
func TestServiceProxy(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "private", instances("1"), callersOf("rbac"), func(s *servingv1.Service) {
		s.Labels = map[string]string{servingv1.VisibilityLabelKey: servingv1.VisibilityClusterLocal}
	})
	path := func(name string) string {
		return "/apis/serving.knative.dev/v1/namespaces/" + s.namespace + "/services/" + name + "/proxy"
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		response := s.Do(t, harness.Request{Method: method, Path: path("private") + "/headers?a=b", Body: "text", ContentType: "text/plain"})
		if response.Code != http.StatusOK {
			t.Errorf("%s: %d %s", method, response.Code, response.Body)
			continue
		}
		got := decoded[headersReport](t, string(response.Body))
		if got.Method != method || got.URI != "/headers?a=b" || got.Header.Get("Knative-Serving-User") != "admin" || got.Header.Get("Authorization") != "" {
			t.Errorf("%s: the application got %+v", method, got)
		}
	}
	if response := s.Do(t, harness.Request{Method: http.MethodGet, Path: path("missing") + "/"}); response.Code != http.StatusNotFound {
		t.Errorf("missing Service: %d %s", response.Code, response.Body)
	}
	if a, err := s.get(t.Context(), s.url+"/"); err != nil || a.code != http.StatusUnauthorized {
		t.Errorf("by the gateway: %+v, %v", a, err)
	}
	tlsConfig, err := rest.TLSConfigFor(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig.NextProtos = []string{"http/1.1"}
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig}
	conn, response, err := dialer.DialContext(t.Context(), strings.Replace(s.Config.Host, "https://", "wss://", 1)+path("private")+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, message, err := conn.ReadMessage(); err != nil || string(message) != "hello" {
			t.Fatalf("a message was returned as %q, %v", message, err)
		}
	}
	other := s.As(t, "jane")
	if response := other.Do(t, harness.Request{Method: http.MethodGet, Path: path("private") + "/"}); response.Code != http.StatusForbidden {
		t.Errorf("user without permission: %d %s", response.Code, response.Body)
	}
}
