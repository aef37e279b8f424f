package service

import (
	"context"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Gateway serves requests to Services.
type Gateway interface {
	// ServeService serves a request to a Service by its internal host name, on behalf of an authorized user.
	ServeService(w http.ResponseWriter, r *http.Request, service types.NamespacedName, user string)
}

// LateGateway is a Gateway that is set after the API is served, or never. The zero value has none.
type LateGateway = registry.Late[Gateway]

// proxyREST is the subresource proxy: requests to a Service by clients of the API.
type proxyREST struct {
	services rest.Getter
	gateway  *LateGateway
}

var _ rest.Connecter = &proxyREST{}

// NewStorage returns the storage of Services with their subresources. proxy serves the requests of the subresource proxy.
func NewStorage(r *registry.Resource[*servingv1.Service, servingv1.ServiceSpec, servingv1.ServiceStatus], proxy *LateGateway, typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	paths, err := registry.NewStorage(r, typer, getter)
	if err != nil {
		return nil, err
	}
	paths["services/proxy"] = &proxyREST{services: paths["services"].(rest.Getter), gateway: proxy}
	return paths, nil
}

// New returns an empty object of the parent resource's kind.
func (*proxyREST) New() runtime.Object { return &servingv1.Service{} }

// Destroy does nothing: the resource Services owns the store.
func (*proxyREST) Destroy() {}

// ConnectMethods returns the methods of requests to Services.
func (*proxyREST) ConnectMethods() []string {
	return []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}
}

// NewConnectOptions returns no options: the path below the subresource and the query belong to the Service.
func (*proxyREST) NewConnectOptions() (runtime.Object, bool, string) { return nil, true, "" }

// Connect returns the handler of a request to a Service.
func (p *proxyREST) Connect(ctx context.Context, name string, _ runtime.Object, _ rest.Responder) (http.Handler, error) {
	if _, err := p.services.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	gateway := p.gateway.Load()
	if gateway == nil {
		return nil, apierrors.NewServiceUnavailable("services/proxy needs a gateway")
	}
	user, ok := request.UserFrom(ctx)
	info, known := request.RequestInfoFrom(ctx)
	if !ok || !known {
		return nil, apierrors.NewUnauthorized("services/proxy needs an authenticated user")
	}
	service := types.NamespacedName{Namespace: info.Namespace, Name: name}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*gateway).ServeService(w, toService(r, service), service, user.GetName())
	}), nil
}

// toService converts a request for the Service: with the path below the subresource, and without the credentials of the API.
func toService(r *http.Request, service types.NamespacedName) *http.Request {
	prefix := "/apis/" + servingv1.SchemeGroupVersion.String() + "/namespaces/" + service.Namespace + "/services/" + service.Name + "/proxy"
	out := r.Clone(r.Context())
	below := func(path string) string { return "/" + strings.TrimPrefix(strings.TrimPrefix(path, prefix), "/") }
	out.URL.Path = below(r.URL.Path)
	if r.URL.RawPath != "" {
		out.URL.RawPath = below(r.URL.RawPath)
	}
	out.URL.Scheme, out.URL.Host, out.URL.User = "", "", nil
	out.RequestURI = out.URL.RequestURI()
	out.Host = service.Name + "." + service.Namespace + ".svc"
	for field := range out.Header {
		if credential(field) {
			delete(out.Header, field)
		}
	}
	return out
}

// credential reports whether a header field, in canonical form, concerns the API: the credentials of its client, the user whom a proxy
// has authenticated or the client impersonates, and the cookies of its origin.
func credential(field string) bool {
	switch field {
	case "Authorization", "Cookie", "Audit-Id", "Host":
		return true
	}
	return strings.HasPrefix(field, "X-Remote-") || strings.HasPrefix(field, "Impersonate-")
}
