package service

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// stored has the Service hello.
type stored struct{}

func (stored) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name != "hello" {
		return nil, apierrors.NewNotFound(servingv1.Resource("services"), name)
	}
	return &servingv1.Service{}, nil
}

// recorded records the last request.
type recorded struct {
	request *http.Request
	service types.NamespacedName
	user    string
}

func (g *recorded) ServeService(_ http.ResponseWriter, r *http.Request, service types.NamespacedName, user string) {
	g.request, g.service, g.user = r, service, user
}

// A request reaches the gateway with its path, query and body, and without the credentials of the API.
func TestProxy(t *testing.T) {
	const base = "/apis/serving.knative.dev/v1/namespaces/default/services/hello/proxy"
	ctx := request.WithRequestInfo(request.WithUser(t.Context(), &user.DefaultInfo{Name: "jane"}), &request.RequestInfo{Namespace: "default"})
	late, gateway := &LateGateway{}, &recorded{}
	p := &proxyREST{services: stored{}, gateway: late}
	if _, err := p.Connect(ctx, "hello", nil, nil); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without gateway: %v", err)
	}
	late.Set(gateway)
	if _, err := p.Connect(ctx, "other", nil, nil); !apierrors.IsNotFound(err) {
		t.Errorf("missing Service: %v", err)
	}
	for path, want := range map[string]string{
		"": "/", "/": "/", "/a/b?c=d&watch=true": "/a/b?c=d&watch=true", "/a%2Fb/..": "/a%2Fb/..", "//other.example.com/x": "//other.example.com/x",
		"/http://other.example.com/": "/http://other.example.com/",
	} {
		handler, err := p.Connect(ctx, "hello", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		in := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "https://api"+base+path, strings.NewReader("body"))
		for _, field := range []string{"Authorization", "Cookie", "X-Remote-User", "X-Remote-Extra-Scopes", "Impersonate-User", "Audit-Id", "Host"} {
			in.Header.Set(field, "secret")
		}
		in.Header.Set("X-Custom", "kept")
		handler.ServeHTTP(httptest.NewRecorder(), in)
		out := gateway.request
		if out.RequestURI != want || out.Host != "hello.default.svc" || out.URL.Host != "" {
			t.Errorf("%q becomes %q of host %q, %q", path, out.RequestURI, out.Host, out.URL.Host)
		}
		if len(out.Header) != 1 || out.Header.Get("X-Custom") != "kept" || out.Body != in.Body {
			t.Errorf("%q: header %v", path, out.Header)
		}
		if gateway.user != "jane" || gateway.service != (types.NamespacedName{Namespace: "default", Name: "hello"}) {
			t.Errorf("%q is for %v on behalf of %q", path, gateway.service, gateway.user)
		}
		if in.Header.Get("Authorization") != "secret" {
			t.Error("the request of the client was changed")
		}
	}
}
