package aggregated

import (
	"net/http"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const revisionsComeFrom = "Revisions come from Configurations and cannot be created directly"

// TestRevisionCreateForbidden tries every way to create a Revision, as every user that a request can claim through the
// aggregator (serving 5.3: developers MUST NOT be able to create Revisions).
func TestRevisionCreateForbidden(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "revision", nil)
	revision := harness.KindOf("Revision").Object(ns, "hello-00001")
	if err := grantRevisions(t, ns, "revision-creator"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*harness.Clients{
		"cluster-admin":                      host.Admin,
		"user with the right by RBAC":        clientsOf(t, host.User(t, "revision-creator")),
		"as system:masters":                  host.Admin.As(t, "alice", "system:masters"),
		"as the in-process controllers":      host.Admin.As(t, "system:knative:controllers", "system:masters", "system:authenticated"),
		"as the loopback client":             host.Admin.As(t, "system:apiserver", "system:masters"),
		"as the server's own ServiceAccount": host.Admin.As(t, "system:serviceaccount:knative-system:knative-apiserver", "system:masters"),
	} {
		t.Run(name, func(t *testing.T) {
			for how, response := range map[string]*harness.Response{
				"POST":               post(t, c, revision),
				"POST with dry run":  post(t, c, revision, "dryRun=All"),
				"PUT":                put(t, c, revision),
				"PUT with dry run":   put(t, c, revision, "dryRun=All"),
				"apply":              apply(t, c, revision),
				"apply with force":   apply(t, c, revision, "force=true"),
				"apply with dry run": apply(t, c, revision, "dryRun=All"),
				"POST with generateName": do(t, c, harness.Request{Method: http.MethodPost, Path: kindOf(revision).Collection(ns), Body: map[string]any{
					"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": map[string]any{"generateName": "hello-"}, "spec": revision.Object["spec"],
				}}),
			} {
				t.Run(how, func(t *testing.T) { wantForbidden(t, response, revisionsComeFrom) })
			}
		})
	}
	list, err := host.Admin.Knative.ServingV1().Revisions(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("Revisions exist: %v, %v", list, err)
	}
}

// TestRevisionCreateForbiddenKubectl does the same with kubectl, impersonating the controllers.
func TestRevisionCreateForbiddenKubectl(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "revision", nil)
	k := kubectl(t, ns)
	manifest, err := harness.KindOf("Revision").Object(ns, "hello-00001").MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"create"}, {"apply"}, {"apply", "--server-side"}, {"apply", "--server-side", "--dry-run=server"}, {"create", "--dry-run=server"},
		{"create", "--as=system:apiserver", "--as-group=system:masters"},
		{"create", "--as=system:knative:controllers", "--as-group=system:masters"},
	} {
		k.MustFail(t, revisionsComeFrom, string(manifest), append(args, "-f", "-")...)
	}
	// Without that group, the RBAC of the host rejects the request earlier.
	k.MustFail(t, `User "system:knative:controllers" cannot create resource "revisions"`, string(manifest),
		"create", "--as=system:knative:controllers", "-f", "-")
}

// TestControllersUser creates a Revision as the user of --controllers-user; no user may change its spec.
func TestControllersUser(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "controllers", nil)
	revision := post(t, controllers(t), harness.KindOf("Revision").Object(ns, "hello-00001")).Object(t)
	body := `{"spec":{"timeoutSeconds":5}}`
	for name, c := range map[string]*harness.Clients{"cluster-admin": host.Admin, "controllers": controllers(t)} {
		t.Run(name, func(t *testing.T) {
			wantStatus(t, patch(t, c, pathOf(revision), body), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "spec", "timeoutSeconds")
		})
	}
	wantCode(t, patch(t, host.Admin, pathOf(revision), `{"metadata":{"labels":{"a":"b"}}}`), http.StatusOK)
	wantCode(t, remove(t, host.Admin, revision), http.StatusOK)
}

// grantRevisions grants a user every right on Revisions.
func grantRevisions(t *testing.T, ns, user string) error {
	_, err := host.Host.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "revisions"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"revisions"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	host.Bind(t, ns, user, "Role", "revisions")
	granted(t, ns, user, "create", harness.KindOf("Revision"))
	return nil
}
