package doors

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// gatewayAccount is the name of the ServiceAccount of gateways that run alone.
const gatewayAccount = "knative-gateway"

// reading are the verbs that read.
var reading = []string{"get", "list", "watch"}

// allowed are the verbs of the identity of the gateway, by resource and group: anywhere, and only in the system namespace.
var (
	allowed = map[string][]string{
		// Backends of Revisions, whether a Revision is at zero, and the callers that the Services of a Namespace allow.
		"pods": reading, "services": reading, "namespaces": reading, "deployments.apps": reading,
		"configurations.serving.knative.dev": reading, "revisions.serving.knative.dev": reading, "routes.serving.knative.dev": reading, "services.serving.knative.dev": reading,
		"domainmappings.serving.knative.dev": reading, "clusterdomainclaims.networking.internal.knative.dev": reading,
		// Reviews store nothing. They authenticate and authorize callers of Services and readers of its metrics.
		"tokenreviews.authentication.k8s.io": {"create"}, "subjectaccessreviews.authorization.k8s.io": {"create"},
		// Permissions of every user.
		"selfsubjectreviews.authentication.k8s.io": {"create"}, "selfsubjectaccessreviews.authorization.k8s.io": {"create"}, "selfsubjectrulesreviews.authorization.k8s.io": {"create"},
	}
	allowedInSystem = map[string][]string{"configmaps": reading, "leases.coordination.k8s.io": reading}
)

// question is a verb for a resource or subresource in a namespace, or of the cluster.
type question struct {
	group, version, resource, subresource string
	namespace, verb                       string
}

func (q question) String() string {
	return fmt.Sprintf("%s %s in %q", q.verb, q.name(), q.namespace)
}

func (q question) name() string {
	name := q.resource
	if q.subresource != "" {
		name += "/" + q.subresource
	}
	if q.group != "" {
		name += "." + q.group
	}
	return name
}

func (q question) allowed() bool {
	return slices.Contains(allowed[q.name()], q.verb) || q.namespace == harness.SystemNamespace && slices.Contains(allowedInSystem[q.name()], q.verb)
}

// request returns a request that needs the permission, and false if no request does.
func (q question) request() (harness.Request, bool) {
	path := "/apis/" + q.group + "/" + q.version
	if q.group == "" {
		path = "/api/" + q.version
	}
	if q.namespace != "" {
		path += "/namespaces/" + q.namespace
	}
	path += "/" + q.resource
	object := path + "/any"
	if q.subresource != "" {
		object += "/" + q.subresource
		path = object
	}
	switch q.verb {
	case "get":
		return harness.Request{Method: http.MethodGet, Path: object}, true
	case "list":
		return harness.Request{Method: http.MethodGet, Path: path}, q.subresource == ""
	case "watch":
		return harness.Request{Method: http.MethodGet, Path: path + "?watch=true&timeoutSeconds=1"}, q.subresource == ""
	case "create":
		return harness.Request{Method: http.MethodPost, Path: path, Body: "{}"}, true
	case "update":
		return harness.Request{Method: http.MethodPut, Path: object, Body: "{}"}, true
	case "patch":
		return harness.Request{Method: http.MethodPatch, Path: object, Body: "{}", ContentType: "application/merge-patch+json"}, true
	case "delete":
		return harness.Request{Method: http.MethodDelete, Path: object}, true
	case "deletecollection":
		return harness.Request{Method: http.MethodDelete, Path: path}, q.subresource == ""
	default:
		return harness.Request{}, false
	}
}

// questions returns all verbs for all resources that the host serves, this server's included, in the namespaces.
func questions(t *testing.T, namespaces ...string) []question {
	t.Helper()
	var lists []*metav1.APIResourceList
	eventually(t, "all groups are served", func(context.Context) (err error) {
		_, lists, err = node.Host.Discovery().ServerGroupsAndResources()
		return err
	})
	var all []question
	seen := map[string]bool{}
	for _, list := range lists {
		group, version, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group, version = "", list.GroupVersion
		}
		for _, r := range list.APIResources {
			// Permissions do not depend on the version.
			if seen[group+"/"+r.Name] {
				continue
			}
			seen[group+"/"+r.Name] = true
			resource, subresource, _ := strings.Cut(r.Name, "/")
			in := []string{""}
			if r.Namespaced {
				in = namespaces
			}
			for _, namespace := range in {
				for _, verb := range []string{
					"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
					"impersonate", "bind", "escalate", "approve", "sign", "attest", "use",
				} {
					all = append(all, question{group, version, resource, subresource, namespace, verb})
				}
			}
		}
	}
	for _, want := range []string{"/secrets", "/pods/exec", "/serviceaccounts/token", "apps/deployments", "serving.knative.dev/revisions", "eventing.knative.dev/brokers"} {
		if !seen[want] {
			t.Errorf("discovery does not name %s", want)
		}
	}
	return all
}

// sendAvailable sends a request until the API is available: the host reports a group as unavailable that does not answer it for a moment.
func sendAvailable(ctx context.Context, c *harness.Clients, request harness.Request) (response *harness.Response, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = harness.Poll(ctx, func() error {
		if response, err = c.Send(ctx, request); err != nil {
			return err
		}
		if code := response.Code; code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests {
			return fmt.Errorf("%s %s: code %d: %.200s", request.Method, request.Path, code, response.Body)
		}
		return nil
	})
	return response, err
}

// TestGatewayRights asks the host for each permission of the gateway's ServiceAccount, and tries with its token each other request, at the host and
// at this server. Only the lists above are permitted: taking over the process that faces the Internet gains nothing else.
func TestGatewayRights(t *testing.T) {
	t.Parallel()
	token, err := node.AsCluster().Token(t.Context(), harness.SystemNamespace, gatewayAccount)
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := harness.NewClients(harness.WithToken(node.Admin.Config, token))
	if err != nil {
		t.Fatal(err)
	}
	user := "system:serviceaccount:" + harness.SystemNamespace + ":" + gatewayAccount
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + harness.SystemNamespace, "system:authenticated"}
	all := questions(t, "default", "kube-system", harness.SystemNamespace)
	asking, ctx := errgroup.WithContext(t.Context())
	asking.SetLimit(8)
	for _, q := range all {
		asking.Go(func() error {
			review := &authorizationv1.SubjectAccessReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
				Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: groups, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: q.namespace, Verb: q.verb, Group: q.group, Version: q.version, Resource: q.resource, Subresource: q.subresource,
				}},
			}
			response, err := node.Admin.Send(ctx, harness.Request{Method: http.MethodPost, Path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", Body: review})
			if err != nil {
				return err
			}
			may := strings.Contains(string(response.Body), `"allowed":true`)
			if response.Code != http.StatusCreated {
				return fmt.Errorf("%v: code %d: %s", q, response.Code, response.Body)
			}
			if may != q.allowed() {
				t.Errorf("%v is permitted: %t, want %t", q, may, q.allowed())
			}
			request, ok := q.request()
			if !ok || q.allowed() && q.verb != "list" {
				return nil
			}
			if response, err = sendAvailable(ctx, gateway, request); err != nil {
				return err
			}
			if want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[q.allowed()]; response.Code != want {
				t.Errorf("%v: %s %s answers %d, want %d: %.200s", q, request.Method, request.Path, response.Code, want, response.Body)
			}
			return nil
		})
	}
	if err := asking.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d permissions of the gateway checked", len(all))
}
