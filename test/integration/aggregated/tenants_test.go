package aggregated

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// tenant is a user with the knative-developer Role of the specifications in one namespace.
type tenant struct {
	namespace string
	*harness.Clients
}

func newTenant(t *testing.T, name string) tenant {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	ns := host.Namespace(t, name, nil)
	kubectl(t, ns).Must(t, "", "apply", "-f", filepath.Join(root, "artifacts", "roles", "knative-developer.yaml"))
	host.Bind(t, ns, name, "Role", "knative-developer")
	granted(t, ns, name, "list", harness.Kinds()...)
	return tenant{ns, clientsOf(t, host.User(t, name))}
}

// developerVerbs are the verbs that the Role allows (serving "RBAC Profile", eventing "RBAC Profile").
func developerVerbs(kind string) []string {
	switch kind {
	case "Service":
		return []string{"get", "list", "create", "update", "delete"}
	case "Configuration", "Route", "Revision":
		return []string{"get", "list"}
	default:
		return []string{"get", "list", "create", "update", "patch", "delete"}
	}
}

// attempt is a request that requires one verb.
type attempt struct {
	verb    string
	request harness.Request
}

// attempts are one request per verb on an object, in an order in which all of them can succeed.
func attempts(object *unstructured.Unstructured) []attempt {
	kind, path := kindOf(object), pathOf(object)
	collection := kind.Collection(object.GetNamespace())
	const merge = "application/merge-patch+json"
	return []attempt{
		{"create", harness.Request{Method: http.MethodPost, Path: collection, Body: object}},
		{"get", harness.Request{Method: http.MethodGet, Path: path}},
		{"list", harness.Request{Method: http.MethodGet, Path: collection}},
		{"watch", harness.Request{Method: http.MethodGet, Path: collection + "?watch=true&timeoutSeconds=1"}},
		{"update", harness.Request{Method: http.MethodPut, Path: path, Body: object}},
		{"patch", harness.Request{Method: http.MethodPatch, Path: path, Body: `{"metadata":{"labels":{"a":"b"}}}`, ContentType: merge}},
		{"update status", harness.Request{Method: http.MethodPut, Path: path + "/status", Body: object}},
		{"patch status", harness.Request{Method: http.MethodPatch, Path: path + "/status", Body: `{"status":{}}`, ContentType: merge}},
		{"delete", harness.Request{Method: http.MethodDelete, Path: path}},
		{"deletecollection", harness.Request{Method: http.MethodDelete, Path: collection}},
	}
}

// tryAll sends one request per verb, and fails the test unless exactly the allowed ones succeed and all others are forbidden.
func tryAll(t *testing.T, c *harness.Clients, kind harness.Kind, namespace string, allowed []string) {
	t.Helper()
	object := kind.Object(namespace, "mine")
	if !slices.Contains(allowed, "create") {
		object = mustCreate(t, object)
		object.SetResourceVersion("")
	}
	for _, attempt := range attempts(object) {
		var response *harness.Response
		within(t, rediscovery, attempt.verb+" is answered", func() error {
			// A watch fails if it does not start within its time.
			if response = do(t, c, attempt.request); attempt.verb == "watch" && response.Code/100 == 5 {
				return fmt.Errorf("code %d: %.500s", response.Code, response.Body)
			}
			return nil
		})
		if slices.Contains(allowed, attempt.verb) {
			if response.Code/100 != 2 {
				t.Errorf("%s %s: code %d, must be allowed: %.500s", attempt.verb, kind.Resource, response.Code, response.Body)
			}
			continue
		}
		if response.Code != http.StatusForbidden || response.Status(t).Reason != "Forbidden" {
			t.Errorf("%s %s: code %d, must be forbidden: %.500s", attempt.verb, kind.Resource, response.Code, response.Body)
		}
	}
}

// TestTenants checks that each of two developers has the permissions of the Role in its own namespace and no others, and none
// in the other's namespace; neither may create a Revision or write a status. It covers serving 4-1 to 4-3, 5.2-1, 5.2-3 to
// 5.2-6, 5.3-1, 5.3-5, 5.3-6, 5.4-3, 5.4-4, 5.5-4, 5.5-5, eventing RBAC Profile-2.
func TestTenants(t *testing.T) {
	t.Parallel()
	alice, bob := newTenant(t, "alice"), newTenant(t, "bob")
	for _, test := range []struct {
		name string
		tenant
		other string
	}{{"alice", alice, bob.namespace}, {"bob", bob, alice.namespace}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range harness.Kinds() {
				t.Run(kind.Kind, func(t *testing.T) {
					t.Parallel()
					tryAll(t, test.Clients, kind, test.namespace, developerVerbs(kind.Kind))
					for _, attempt := range attempts(kind.Object(test.other, "theirs")) {
						wantForbidden(t, do(t, test.Clients, attempt.request), `User "`+test.name+`" cannot`)
					}
					wantForbidden(t, do(t, test.Clients, harness.Request{Method: http.MethodGet, Path: kind.Collection("")}), "at the cluster scope")
				})
			}
		})
	}
}

// TestAggregatedRoles checks that the host's roles view, edit and admin include the kinds of this server.
// It covers serving 5.2-2, 5.3-3, 5.3-4, 5.4-2 and 5.5-3.
func TestAggregatedRoles(t *testing.T) {
	t.Parallel()
	read := []string{"get", "list", "watch"}
	write := append([]string{"create", "update", "patch", "delete", "deletecollection"}, read...)
	for role, allowed := range map[string][]string{"view": read, "edit": write, "admin": write} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			ns := host.Namespace(t, role, nil)
			user := "role-" + role
			host.Bind(t, ns, user, "ClusterRole", role)
			granted(t, ns, user, "list", harness.Kinds()...)
			c := clientsOf(t, host.User(t, user))
			for _, kind := range harness.Kinds() {
				verbs := allowed
				if kind.Kind == "Revision" && role != "view" {
					verbs = append([]string{"update", "patch", "delete"}, read...)
				}
				tryAll(t, c, kind, ns, verbs)
			}
		})
	}
}
