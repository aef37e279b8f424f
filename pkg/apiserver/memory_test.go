package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// TestMemoryLimiter covers the memory that a request holds while it is served, and its rejection.
func TestMemoryLimiter(t *testing.T) {
	const maxBody, limit = 1 << 20, 64 << 20
	for name, tt := range map[string]struct {
		info request.RequestInfo
		body string
		// chunked is true if the length of the body is unknown.
		chunked, controller bool
		account             string
		held                int64
	}{
		"a write":                    {info: request.RequestInfo{Verb: "create", Namespace: "ns"}, body: "1234", account: "ns", held: 4 * objectWeight},
		"a body of unknown length":   {info: request.RequestInfo{Verb: "patch", Namespace: "ns"}, body: "1234", chunked: true, account: "ns", held: maxBody * objectWeight},
		"a body that is too large":   {info: request.RequestInfo{Verb: "update", Namespace: "ns"}, body: strings.Repeat("x", maxBody+1), account: "ns", held: maxBody * objectWeight},
		"a read":                     {info: request.RequestInfo{Verb: "get", Namespace: "ns"}, account: "ns"},
		"a list":                     {info: request.RequestInfo{Verb: "list", Namespace: "ns"}, account: "ns", held: listBytes},
		"a list of all namespaces":   {info: request.RequestInfo{Verb: "list"}, account: allNamespaces, held: listBytes},
		"a list by the controllers":  {info: request.RequestInfo{Verb: "list", Namespace: "ns"}, controller: true, account: "ns"},
		"a watch":                    {info: request.RequestInfo{Verb: "watch", Namespace: "ns"}, account: "ns", held: streamBytes},
		"a log":                      {info: request.RequestInfo{Verb: "get", Namespace: "ns", Resource: "revisions", Subresource: "log"}, account: "ns", held: streamBytes},
		"a watch of all namespaces":  {info: request.RequestInfo{Verb: "watch"}, account: allNamespaces, held: streamBytes},
		"a watch by the controllers": {info: request.RequestInfo{Verb: "watch", Namespace: "ns"}, controller: true, account: "ns"},
		"a write by the controllers": {info: request.RequestInfo{Verb: "create", Namespace: "ns"}, body: "1234", controller: true, account: "ns"},
	} {
		t.Run(name, func(t *testing.T) {
			budget := flow.NewBudget(limit, 0)
			served := 0
			handler := (&memoryLimiter{memory: budget, codecs: serializer.NewCodecFactory(runtime.NewScheme()), maxBody: maxBody}).limit(
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					served++
					if held := budget.Held(tt.account); held != tt.held && served == 1 {
						t.Errorf("the request holds %d bytes, want %d", held, tt.held)
					}
				}))
			serve := func() *httptest.ResponseRecorder {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(tt.body))
				if tt.chunked {
					r.ContentLength = -1
				}
				info := tt.info
				info.IsResourceRequest = true
				ctx := request.WithRequestInfo(r.Context(), &info)
				if tt.controller {
					ctx = request.WithUser(ctx, identity.NewControllers())
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r.WithContext(ctx))
				return w
			}
			serve()
			if held := budget.Used(); held != 0 || served != 1 {
				t.Errorf("%d bytes are held after %d requests were served", held, served)
			}
			for budget.Reserve(tt.account, 1<<20) {
			}
			for budget.Reserve(tt.account, 1) {
			}
			w := serve()
			if tt.held == 0 {
				if w.Code != http.StatusOK || served != 2 {
					t.Errorf("code %d for a request that holds nothing", w.Code)
				}
				return
			}
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || served != 1 {
				t.Errorf("code %d, Retry-After %q, served %d times, want 429 after the share is used", w.Code, w.Header().Get("Retry-After"), served)
			}
			if !budget.Reserve("other", streamBytes) {
				t.Error("another namespace has no memory")
			}
		})
	}
}
