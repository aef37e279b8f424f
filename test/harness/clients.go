package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// Clients are clients of one server for one user.
type Clients struct {
	Config  *rest.Config
	HTTP    *http.Client
	Dynamic dynamic.Interface
	Knative versioned.Interface
}

// NewClients returns clients with config, without its rate limit. They do not log warnings of the API, which would hide failures in the output of a
// load.
func NewClients(config *rest.Config) (*Clients, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	dynamicClient, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	knative, err := versioned.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	return &Clients{Config: config, HTTP: httpClient, Dynamic: dynamicClient, Knative: knative}, nil
}

// ClientsOf returns clients for the server and user of a kubeconfig file.
func ClientsOf(kubeconfig string) (*Clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return NewClients(config)
}

// As returns clients that impersonate a user.
func (c *Clients) As(t testing.TB, user string, groups ...string) *Clients {
	t.Helper()
	clients, err := c.Impersonating(user, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// Impersonating returns clients that impersonate a user.
func (c *Clients) Impersonating(user string, groups ...string) (*Clients, error) {
	config := rest.CopyConfig(c.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return NewClients(config)
}

// Request is a request as sent over the wire.
type Request struct {
	Method, Path string
	// Body is sent unchanged if it is a string or []byte, and otherwise as JSON.
	Body any
	// ContentType and Accept default to application/json; ContentType only if there is a body.
	ContentType, Accept string
	// Header has further fields.
	Header http.Header
}

// Response is the response to a Request.
type Response struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Do sends a request.
func (c *Clients) Do(t testing.TB, r Request) *Response {
	t.Helper()
	response, err := c.Send(t.Context(), r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.Path, err)
	}
	return response
}

// Send is like Do, but can be called outside the test's goroutine. It fails if the answer takes longer than a minute, the limit of kube-apiserver.
func (c *Clients) Send(ctx context.Context, r Request) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	var body []byte
	switch b := r.Body.(type) {
	case nil:
	case string:
		body = []byte(b)
	case []byte:
		body = b
	default:
		var err error
		if body, err = json.Marshal(b); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, c.Config.Host+r.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for key, value := range map[string]string{"Content-Type": r.ContentType, "Accept": r.Accept} {
		if value == "" {
			value = "application/json"
		}
		if key == "Accept" || r.Body != nil {
			request.Header.Set(key, value)
		}
	}
	maps.Copy(request.Header, r.Header)
	response, err := c.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	return &Response{Code: response.StatusCode, Header: response.Header, Body: answer}, nil
}

// Status returns the Status in the body.
func (r *Response) Status(t testing.TB) *metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(r.Body, &status); err != nil || status.Kind != "Status" || status.APIVersion != "v1" {
		t.Fatalf("the response (code %d) must be a Status, but is %.500q", r.Code, r.Body)
	}
	return &status
}

// Object returns the object in the body of a successful response.
func (r *Response) Object(t testing.TB) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if r.Code/100 != 2 {
		t.Fatalf("code %d: %.2000s", r.Code, r.Body)
	}
	if err := u.UnmarshalJSON(r.Body); err != nil {
		t.Fatalf("decoding %.500q: %v", r.Body, err)
	}
	return u
}

// Kind is one of the served kinds.
type Kind struct {
	schema.GroupVersionKind
	// Resource is the plural name.
	Resource string
	spec     map[string]any
}

// Kinds returns the eight kinds whose objects tests may name as they like, including Revision, which no user may create.
func Kinds() []Kind {
	kind := func(group, kind, resource string, spec map[string]any) Kind {
		gvk := schema.GroupVersionKind{Group: group + ".knative.dev", Version: "v1", Kind: kind}
		return Kind{GroupVersionKind: gvk, Resource: resource, spec: spec}
	}
	containers := map[string]any{"containers": []any{map[string]any{"image": "registry.example.com/hello"}}}
	template := map[string]any{"template": map[string]any{"spec": containers}}
	sink := map[string]any{"uri": "http://sink.example.com/"}
	channel := map[string]any{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "orders"}
	return []Kind{
		kind("serving", "Service", "services", template),
		kind("serving", "Configuration", "configurations", template),
		kind("serving", "Revision", "revisions", containers),
		kind("serving", "Route", "routes", map[string]any{"traffic": []any{map[string]any{"configurationName": "hello", "percent": int64(100)}}}),
		kind("eventing", "Broker", "brokers", map[string]any{}),
		kind("eventing", "Trigger", "triggers", map[string]any{"broker": "default", "subscriber": sink}),
		kind("messaging", "Channel", "channels", map[string]any{}),
		kind("messaging", "Subscription", "subscriptions", map[string]any{"channel": channel, "subscriber": sink}),
	}
}

// AllKinds returns all namespaced kinds that can be created with the default settings: the names of DomainMappings are host names.
func AllKinds() []Kind {
	return append(Kinds(), Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "serving.knative.dev", Version: "v1beta1", Kind: "DomainMapping"},
		Resource:         "domainmappings",
		spec:             map[string]any{"ref": map[string]any{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"}},
	})
}

// KindOf returns the kind with a name, such as Service.
func KindOf(name string) Kind {
	for _, k := range AllKinds() {
		if k.Kind == name {
			return k
		}
	}
	panic(fmt.Sprintf("unknown kind %s", name))
}

// GVR returns the GroupVersionResource.
func (k Kind) GVR() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Resource)
}

// Object returns the smallest valid object, as a user would write it.
func (k Kind) Object(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": k.spec}}
	u = u.DeepCopy()
	u.SetGroupVersionKind(k.GroupVersionKind)
	u.SetNamespace(namespace)
	u.SetName(k.Name(name))
	return u
}

// Name returns the name of the object that a test calls name. The name of a DomainMapping is a host name.
func (k Kind) Name(name string) string {
	if k.Kind == "DomainMapping" && !strings.Contains(name, ".") {
		return name + ".example.com"
	}
	return name
}

// Collection returns the path of all objects in a namespace, or in all namespaces if it is empty.
func (k Kind) Collection(namespace string) string {
	if namespace == "" {
		return fmt.Sprintf("/apis/%s/%s/%s", k.Group, k.Version, k.Resource)
	}
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/%s", k.Group, k.Version, namespace, k.Resource)
}

// Path returns the path of one object.
func (k Kind) Path(namespace, name string) string {
	return k.Collection(namespace) + "/" + k.Name(name)
}

// StatusPath returns the path of the status of one object.
func (k Kind) StatusPath(namespace, name string) string { return k.Path(namespace, name) + "/status" }
