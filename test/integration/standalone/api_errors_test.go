package standalone

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// anonymous returns a client without a certificate.
func anonymous(t testing.TB) *harness.Clients {
	t.Helper()
	clients, err := harness.NewClients(rest.AnonymousClientConfig(admin.Config))
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// TestErrorCodes covers conventions HTTP Status Codes-3 to -7, conventions Response Status-1, -3 to -7 and -11.
func TestErrorCodes(t *testing.T) {
	unauthenticated, alice := anonymous(t), admin.As(t, "alice")
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		ns, path := obj.GetNamespace(), pathOf(obj)
		for _, tc := range []struct {
			name    string
			client  *harness.Clients
			request harness.Request
			code    int
			reason  metav1.StatusReason
		}{
			{"no body", admin, harness.Request{Method: "PUT", Path: path}, 400, metav1.StatusReasonBadRequest},
			{"bad limit", admin, harness.Request{Method: "GET", Path: k.Collection(ns) + "?limit=many"}, 400, metav1.StatusReasonBadRequest},
			{"bad continue token", admin, harness.Request{Method: "GET", Path: k.Collection(ns) + "?continue=bad"}, 400, metav1.StatusReasonBadRequest},
			{"bad resource version", admin, harness.Request{Method: "GET", Path: k.Collection(ns) + "?resourceVersion=new"}, 400, metav1.StatusReasonBadRequest},
			{"no certificate", unauthenticated, harness.Request{Method: "GET", Path: path}, 401, metav1.StatusReasonUnauthorized},
			{"no rights", alice, harness.Request{Method: "GET", Path: path}, 403, metav1.StatusReasonForbidden},
			{"no permission to delete", alice, harness.Request{Method: "DELETE", Path: path}, 403, metav1.StatusReasonForbidden},
			{"no permission to impersonate", alice.As(t, "alice"), harness.Request{Method: "GET", Path: k.Collection("")}, 403, metav1.StatusReasonForbidden},
			{"no such object", admin, harness.Request{Method: "GET", Path: k.Path(ns, "absent")}, 404, metav1.StatusReasonNotFound},
			{"no such object's status", admin, harness.Request{Method: "GET", Path: k.StatusPath(ns, "absent")}, 404, metav1.StatusReasonNotFound},
			{"no such object to patch", admin, harness.Request{Method: "PATCH", Path: k.Path(ns, "absent"), ContentType: mergePatch, Body: "{}"}, 404, metav1.StatusReasonNotFound},
			{"POST of an object", admin, harness.Request{Method: "POST", Path: path, Body: obj}, 405, metav1.StatusReasonMethodNotAllowed},
			{"PUT of a collection", admin, harness.Request{Method: "PUT", Path: k.Collection(ns), Body: obj}, 405, metav1.StatusReasonMethodNotAllowed},
			{"DELETE of a status", admin, harness.Request{Method: "DELETE", Path: path + "/status"}, 405, metav1.StatusReasonMethodNotAllowed},
			{"DELETE in all namespaces", admin, harness.Request{Method: "DELETE", Path: k.Collection("")}, 405, metav1.StatusReasonMethodNotAllowed},
			{"no such media type", admin, harness.Request{Method: "GET", Path: path, Accept: "text/csv"}, 406, metav1.StatusReasonNotAcceptable},
		} {
			t.Run(tc.name, func(t *testing.T) {
				status := wantStatus(t, tc.client.Do(t, tc.request), tc.code, tc.reason)
				if tc.code == http.StatusNotFound && (status.Details == nil || status.Details.Name != "absent" || status.Details.Group != k.Group || status.Details.Kind != k.Resource) {
					t.Errorf("details are %+v", status.Details)
				}
			})
		}
		wantSame(t, obj, reread(t, obj))
	})
}

// TestUnknownPaths checks that unknown paths are not found, for authorized users.
func TestUnknownPaths(t *testing.T) {
	for _, path := range []string{
		"/apis/serving.knative.dev/v2/services",
		"/apis/serving.knative.dev/v1/namespaces/default/unknown",
		"/apis/unknown.knative.dev/v1/services",
		"/apis/serving.knative.dev/v1/namespaces/default/services/a/scale",
		"/unknown",
	} {
		if response := admin.Do(t, harness.Request{Method: "GET", Path: path}); response.Code != http.StatusNotFound {
			t.Errorf("GET %s: code %d", path, response.Code)
		}
		response := anonymous(t).Do(t, harness.Request{Method: "GET", Path: path})
		wantStatus(t, response, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	}
}

// TestAResourceVersionThatIsTooOld checks that a version that the watch cache no longer has is answered 410: clients list again
// (P20).
// It covers conventions HTTP Status Codes-9.
func TestAResourceVersionThatIsTooOld(t *testing.T) {
	k := harness.KindOf("Revision")
	// The Revisions were created before the server started.
	response := admin.Do(t, harness.Request{Method: "GET", Path: k.Collection(controllersNamespace) + "?watch=true&resourceVersion=2&timeoutSeconds=20"})
	body := string(response.Body)
	if !strings.Contains(body, `"reason":"Expired"`) || !strings.Contains(body, `"code":410`) {
		t.Errorf("code %d, body %.500s; want 410 Expired", response.Code, body)
	}
}

// TestAResourceVersionThatIsTooLarge checks that a future version is answered with a request to retry.
// It covers conventions HTTP Status Codes-14.
func TestAResourceVersionThatIsTooLarge(t *testing.T) {
	k := harness.KindOf("Broker")
	response := admin.Do(t, harness.Request{Method: "GET", Path: k.Collection("default") + "?resourceVersion=999999999&resourceVersionMatch=NotOlderThan"})
	status := wantStatus(t, response, http.StatusGatewayTimeout, metav1.StatusReasonTimeout)
	if len(status.Details.Causes) != 1 || status.Details.Causes[0].Type != metav1.CauseTypeResourceVersionTooLarge {
		t.Errorf("causes are %+v", status.Details.Causes)
	}
}

// TestHealthChecks checks that every user may read the health checks, and nothing else.
func TestHealthChecks(t *testing.T) {
	unauthenticated := anonymous(t)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		// The check of etcd fails while the server stalls.
		harness.Eventually(t, path+" reports success", func() error {
			if response := unauthenticated.Do(t, harness.Request{Method: "GET", Path: path, Accept: "*/*"}); response.Code != http.StatusOK || string(response.Body) != "ok" {
				return fmt.Errorf("code %d: %s", response.Code, response.Body)
			}
			return nil
		})
	}
	for _, path := range []string{"/metrics", "/apis", "/openapi/v2", "/version", "/debug/pprof/"} {
		wantStatus(t, unauthenticated.Do(t, harness.Request{Method: "GET", Path: path}), http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	}
}

// TestAForeignCertificate checks that a certificate of another authority does not authenticate.
func TestAForeignCertificate(t *testing.T) {
	other := harness.RunAPI(t, t.TempDir())
	foreign, err := harness.ClientsOf(other.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(foreign.Config)
	config.Host, config.CAData = admin.Config.Host, admin.Config.CAData
	clients, err := harness.NewClients(config)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, clients.Do(t, harness.Request{Method: "GET", Path: "/apis"}), http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
	// Nor do the headers of a front proxy (P11).
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin.Config.Host+"/apis", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Remote-User", "admin")
	request.Header.Set("X-Remote-Group", "system:masters")
	request.Header.Set("Authorization", "Bearer forged")
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the server's identity is not part of this test
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("code %d, want 401", response.StatusCode)
	}
}
