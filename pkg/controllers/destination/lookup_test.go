package destination

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// TestLookup finds a kind in the requested version, or in another one. It is not found only if the cluster does not serve it;
// other failures are errors.
func TestLookup(t *testing.T) {
	const (
		group   = `{"kind":"APIGroup","apiVersion":"v1","name":"example.com","versions":[{"groupVersion":"example.com/v2","version":"v2"},{"groupVersion":"example.com/v1","version":"v1"}]}`
		kinds   = `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"pipes/status","kind":"Pipe"},{"name":"pipes","kind":"Pipe"}]}`
		noKinds = `{"kind":"APIResourceList","apiVersion":"v1","resources":[]}`
		atGroup = "/apis/example.com"
		atV1    = "/apis/example.com/v1"
		atV2    = "/apis/example.com/v2"
	)
	tests := map[string]struct {
		// documents are by path; others are not found, and an empty one is unavailable.
		documents map[string]string
		// want is the version; empty for none.
		want        string
		unavailable bool
	}{
		"the version":             {documents: map[string]string{atGroup: group, atV1: kinds, atV2: kinds}, want: "v1"},
		"another version":         {documents: map[string]string{atGroup: group, atV1: noKinds, atV2: kinds}, want: "v2"},
		"one version":             {documents: map[string]string{atGroup: group, atV2: kinds}, want: "v2"},
		"no such kind":            {documents: map[string]string{atGroup: group, atV1: noKinds, atV2: noKinds}},
		"no such group":           {},
		"unavailable group":       {documents: map[string]string{atGroup: "", atV1: kinds}, unavailable: true},
		"unavailable version":     {documents: map[string]string{atGroup: group, atV1: "", atV2: kinds}, unavailable: true},
		"another one unavailable": {documents: map[string]string{atGroup: group, atV1: noKinds, atV2: ""}, unavailable: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				document, found := test.documents[r.URL.Path]
				w.Header().Set("Content-Type", "application/json")
				switch {
				case !found:
					http.NotFound(w, r)
				case document == "":
					w.WriteHeader(http.StatusServiceUnavailable)
				default:
					_, _ = io.WriteString(w, document)
				}
			}))
			defer server.Close()
			client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			h := &Host{Discovery: client.RESTClient()}
			resource, found, err := h.Lookup(t.Context(), schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Pipe"})
			if test.unavailable != apierrors.IsServiceUnavailable(err) || !test.unavailable && err != nil {
				t.Fatalf("error %v, want it unavailable: %t", err, test.unavailable)
			}
			if want := (schema.GroupVersionResource{Group: "example.com", Version: test.want, Resource: "pipes"}); found != (test.want != "") || found && resource != want {
				t.Errorf("found %t, %v, want version %q", found, resource, test.want)
			}
		})
	}
}
