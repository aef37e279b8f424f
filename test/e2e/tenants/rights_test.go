package tenants

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// attempt is a request that requires one verb.
type attempt struct {
	verb    string
	request harness.Request
}

// attempts are one request per verb on an object of a kind, in an order in which all of them can succeed.
func attempts(kind harness.Kind, object *unstructured.Unstructured) []attempt {
	collection, path := kind.Collection(object.GetNamespace()), kind.Path(object.GetNamespace(), object.GetName())
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

var (
	read  = []string{"get", "list", "watch"}
	write = slices.Concat([]string{"create", "update", "patch", "delete"}, read)
	all   = slices.Concat([]string{"deletecollection"}, write)
)

// verbs are the verbs that the roles of the installation allow, by ClusterRole and kind.
var verbs = map[string]map[string][]string{
	"knative-developer": {
		"Service": write, "Configuration": read, "Route": read, "Revision": read,
		"Broker": write, "Trigger": write, "Channel": write, "Subscription": write,
	},
	"knative-platform-admin": {
		"Service": all, "Configuration": all, "Route": all, "Revision": slices.Concat([]string{"update", "patch", "delete"}, read),
		"Broker": all, "Trigger": all, "Channel": all, "Subscription": all,
	},
}

// wantForbidden fails the test unless a request was forbidden.
func wantForbidden(t *testing.T, what string, response *harness.Response) {
	t.Helper()
	if response.Code != http.StatusForbidden || response.Status(t).Reason != "Forbidden" {
		t.Errorf("%s: code %d, must be forbidden: %.500s", what, response.Code, response.Body)
	}
}

// TestRoles checks that a role of the installation in one namespace grants its permissions there and no others, and discloses
// nothing about another namespace, not even the existence of objects (serving "RBAC Profile", eventing "RBAC Profile").
func TestRoles(t *testing.T) {
	t.Parallel()
	for role, allowed := range verbs {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			own, other := node.NewSpace(t, "own"), node.NewSpace(t, "other")
			user := clientsOf(t, account(t, own, "user", role))
			for _, s := range []*harness.Space{own, other} {
				s.Apply(t, service(t, "hello", ""))
				s.Ready(t, "service/hello")
			}
			harness.Eventually(t, "the role is in effect", func() error {
				if response := user.Do(t, harness.Request{Method: http.MethodGet, Path: harness.KindOf("Broker").Collection(own.Name)}); response.Code != http.StatusOK {
					return fmt.Errorf("code %d: %s", response.Code, response.Body)
				}
				return nil
			})
			// Services come last: deleting all of them deletes the Revision.
			kinds := harness.Kinds()
			slices.Reverse(kinds)
			for _, kind := range kinds {
				tryAll(t, user, kind, object(t, kind, own.Name, allowed[kind.Kind]), allowed[kind.Kind])
				for _, attempt := range attempts(kind, object(t, kind, other.Name, nil)) {
					wantForbidden(t, attempt.verb+" "+kind.Resource+" of another namespace", user.Do(t, attempt.request))
				}
				there := user.Do(t, harness.Request{Method: http.MethodGet, Path: kind.Path(other.Name, "hello")})
				absent := user.Do(t, harness.Request{Method: http.MethodGet, Path: kind.Path(other.Name, "absent")})
				if strings.ReplaceAll(string(there.Body), "hello", "absent") != string(absent.Body) {
					t.Errorf("existing and missing objects can be distinguished:\n%s\n%s", there.Body, absent.Body)
				}
				wantForbidden(t, "listing all "+kind.Resource, user.Do(t, harness.Request{Method: http.MethodGet, Path: kind.Collection("")}))
			}
			for _, path := range []string{
				"/api/v1/namespaces/" + own.Name + "/secrets",
				"/api/v1/namespaces/" + other.Name + "/events",
				"/api/v1/namespaces/" + other.Name + "/pods",
				"/apis/apps/v1/namespaces/" + other.Name + "/deployments",
				"/api/v1/namespaces/" + harness.SystemNamespace + "/configmaps/config-autoscaler",
				"/api/v1/namespaces/" + harness.SystemNamespace + "/secrets",
				harness.KindOf("Revision").Path(other.Name, "hello-00001") + "/log",
				harness.KindOf("Revision").Path(other.Name, "hello-00001") + "/explain",
				harness.KindOf("Revision").Path(other.Name, "hello-00001") + "/scale",
			} {
				wantForbidden(t, path, user.Do(t, harness.Request{Method: http.MethodGet, Path: path}))
			}
		})
	}
}

// object is the object of the attempts: one that can be created, or an existing one.
func object(t *testing.T, kind harness.Kind, namespace string, allowed []string) *unstructured.Unstructured {
	t.Helper()
	if slices.Contains(allowed, "create") {
		return kind.Object(namespace, "mine")
	}
	name := "hello"
	if kind.Kind == "Revision" {
		name = "hello-00001"
	}
	response := node.Admin.Do(t, harness.Request{Method: http.MethodGet, Path: kind.Path(namespace, name)})
	if response.Code == http.StatusNotFound {
		return kind.Object(namespace, name)
	}
	object := response.Object(t)
	object.SetResourceVersion("")
	return object
}

// tryAll sends one request per verb, and fails the test unless exactly the allowed ones succeed and all others are forbidden.
func tryAll(t *testing.T, c *harness.Clients, kind harness.Kind, object *unstructured.Unstructured, allowed []string) {
	t.Helper()
	for _, attempt := range attempts(kind, object) {
		response := c.Do(t, attempt.request)
		if !slices.Contains(allowed, attempt.verb) {
			wantForbidden(t, attempt.verb+" "+kind.Resource, response)
		} else if response.Code/100 != 2 {
			t.Errorf("%s %s: code %d, must be allowed: %.500s", attempt.verb, kind.Resource, response.Code, response.Body)
		}
	}
}
