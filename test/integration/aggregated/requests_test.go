package aggregated

import (
	stdcontext "context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// rediscovery is the timeout for the host's garbage collector, quota and namespace controllers, which discover new API groups
// only every 30 s.
const rediscovery = 90 * time.Second

func context() stdcontext.Context { return stdcontext.Background() }

// within calls probe until it succeeds, and fails the test after a timeout.
func within(t testing.TB, timeout time.Duration, what string, probe func() error) {
	t.Helper()
	harness.EventuallyWithin(t, timeout, what, func(stdcontext.Context) error { return probe() })
}

// clientsOf returns clients with config.
func clientsOf(t testing.TB, config *rest.Config) *harness.Clients {
	t.Helper()
	clients, err := harness.NewClients(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// hostKubectl is the real kubectl for the host.
type hostKubectl struct{ *harness.Kubectl }

// kubectl returns the real kubectl, as the cluster's administrator.
func kubectl(t testing.TB, namespace string) hostKubectl {
	t.Helper()
	return hostKubectl{harness.NewKubectl(t, host.Kubeconfig, namespace)}
}

// Must is like harness.Kubectl.Must, but ignores the warning that the host did not check a template within a second.
func (k hostKubectl) Must(t testing.TB, input string, args ...string) string {
	t.Helper()
	result := k.Run(t, input, args...)
	var messages strings.Builder
	for line := range strings.Lines(result.Stderr) {
		if !strings.HasPrefix(line, "Warning: "+noResponse) {
			messages.WriteString(line)
		}
	}
	if result.Code != 0 || messages.Len() > 0 {
		t.Fatalf("kubectl %s: exit code %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// granted waits until the host allows a user a verb on kinds in a namespace. Roles and bindings take effect a moment after they are
// written, and the server caches a denial for some seconds.
func granted(t testing.TB, namespace, user, verb string, kinds ...harness.Kind) {
	t.Helper()
	for _, kind := range kinds {
		host.AwaitAccess(t, authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: kind.Group, Resource: kind.Resource,
		}})
	}
}

// do sends a request. It repeats the request while the aggregator does not forward it: if the server does not answer a check of the
// aggregator within 5 s, the aggregator answers 503 until the next check.
func do(t testing.TB, c *harness.Clients, request harness.Request) (response *harness.Response) {
	t.Helper()
	within(t, rediscovery, "the aggregator forwards the request", func() error {
		response = c.Do(t, request)
		if response.Code == http.StatusServiceUnavailable && strings.TrimSpace(string(response.Body)) == "service unavailable" {
			return errors.New("service unavailable")
		}
		return nil
	})
	return response
}

// kindOf returns the kind of an object.
func kindOf(obj *unstructured.Unstructured) harness.Kind { return harness.KindOf(obj.GetKind()) }

func get(t testing.TB, c *harness.Clients, obj *unstructured.Unstructured) *harness.Response {
	t.Helper()
	return do(t, c, harness.Request{Method: http.MethodGet, Path: pathOf(obj)})
}

// post creates an object; query is the query string, if any.
func post(t testing.TB, c *harness.Clients, obj *unstructured.Unstructured, query ...string) *harness.Response {
	t.Helper()
	path := kindOf(obj).Collection(obj.GetNamespace())
	return do(t, c, harness.Request{Method: http.MethodPost, Path: withQuery(path, query), Body: obj})
}

func put(t testing.TB, c *harness.Clients, obj *unstructured.Unstructured, query ...string) *harness.Response {
	t.Helper()
	return do(t, c, harness.Request{Method: http.MethodPut, Path: withQuery(pathOf(obj), query), Body: obj})
}

// apply sends an object as server-side apply.
func apply(t testing.TB, c *harness.Clients, obj *unstructured.Unstructured, query ...string) *harness.Response {
	t.Helper()
	query = append(query, "fieldManager=test")
	return do(t, c, harness.Request{
		Method: http.MethodPatch, Path: withQuery(pathOf(obj), query), Body: obj, ContentType: string(types.ApplyPatchType),
	})
}

func patch(t testing.TB, c *harness.Clients, path, body string) *harness.Response {
	t.Helper()
	return do(t, c, harness.Request{Method: http.MethodPatch, Path: path, Body: body, ContentType: string(types.MergePatchType)})
}

func remove(t testing.TB, c *harness.Clients, obj *unstructured.Unstructured, query ...string) *harness.Response {
	t.Helper()
	return do(t, c, harness.Request{Method: http.MethodDelete, Path: withQuery(pathOf(obj), query)})
}

func pathOf(obj *unstructured.Unstructured) string {
	return kindOf(obj).Path(obj.GetNamespace(), obj.GetName())
}

func withQuery(path string, query []string) string {
	if len(query) == 0 {
		return path
	}
	return path + "?" + strings.Join(query, "&")
}

// mustCreate creates an object as administrator, or as the controllers' user for Revisions.
func mustCreate(t testing.TB, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	c := host.Admin
	if obj.GetKind() == "Revision" {
		c = controllers(t)
	}
	return post(t, c, obj).Object(t)
}

// controllers returns clients of the user that --controllers-user names.
func controllers(t testing.TB) *harness.Clients {
	t.Helper()
	return host.Admin.As(t, controllersUser, "system:masters")
}

// wantStatus fails unless the response is an error with a code, a reason and a message.
func wantStatus(t testing.TB, response *harness.Response, code int, reason metav1.StatusReason, messages ...string) *metav1.Status {
	t.Helper()
	if response.Code != code {
		t.Fatalf("code %d, want %d: %.2000s", response.Code, code, response.Body)
	}
	status := response.Status(t)
	if status.Reason != reason {
		t.Errorf("reason %q, want %q", status.Reason, reason)
	}
	for _, message := range messages {
		if !strings.Contains(status.Message, message) {
			t.Errorf("message %q, want one with %q", status.Message, message)
		}
	}
	return status
}

// wantForbidden fails unless the response is 403.
func wantForbidden(t testing.TB, response *harness.Response, messages ...string) {
	t.Helper()
	wantStatus(t, response, http.StatusForbidden, metav1.StatusReasonForbidden, messages...)
}

// wantCode fails unless the response has a code.
func wantCode(t testing.TB, response *harness.Response, code int) {
	t.Helper()
	if response.Code != code {
		t.Fatalf("code %d, want %d: %.2000s", response.Code, code, response.Body)
	}
}

// wantCause fails unless one of the causes is for a field and has a message that contains want.
func wantCause(t testing.TB, status *metav1.Status, field, want string) {
	t.Helper()
	if status.Details == nil || !slices.ContainsFunc(status.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == field && strings.Contains(c.Message, want)
	}) {
		t.Errorf("details %+v, want a cause of %s with %q", status.Details, field, want)
	}
}

// setNested sets a field of an object and returns the object.
func setNested(t testing.TB, obj *unstructured.Unstructured, value any, fields ...string) *unstructured.Unstructured {
	t.Helper()
	if err := unstructured.SetNestedField(obj.Object, value, fields...); err != nil {
		t.Fatal(err)
	}
	return obj
}

// templates counts the templates that fresh created.
var templates atomic.Int64

// freshVariable is the environment variable whose value is the mark of fresh.
const freshVariable = "FRESH"

// fresh sets a template that the host has not validated yet: the server caches recently accepted ones, and ignores values of variables if nothing
// on the host reads them.
func fresh(obj *unstructured.Unstructured) *unstructured.Unstructured {
	mark := fmt.Sprint(templates.Add(1))
	container(obj)["env"] = []any{map[string]any{"name": freshVariable, "value": mark}, map[string]any{"name": freshVariable + mark}}
	return obj
}

// container returns the only container of a Service's or Configuration's template, to change in place.
func container(obj *unstructured.Unstructured) map[string]any {
	spec := obj.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	return spec["containers"].([]any)[0].(map[string]any)
}

// owned returns an object with an owner.
func ownedBy(obj *unstructured.Unstructured, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	obj.SetOwnerReferences(owners)
	return obj
}

// ownerReference refers to an owner that a foreground deletion keeps until its dependents are deleted.
func ownerReference(owner *unstructured.Unstructured) metav1.OwnerReference {
	reference := *metav1.NewControllerRef(owner, owner.GroupVersionKind())
	return reference
}
