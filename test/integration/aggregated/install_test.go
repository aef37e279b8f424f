package aggregated

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestInstall validates all objects of each variant on the host, including StatefulSets and Deployments, and with a certificate
// from the shipped script (P9). It is a dry run: the installation of the tests stays.
func TestInstall(t *testing.T) {
	t.Parallel()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	install := filepath.Join(t.TempDir(), "install")
	if err := os.CopyFS(install, os.DirFS(filepath.Join(root, "artifacts", "install"))); err != nil {
		t.Fatal(err)
	}
	certs := filepath.Join(install, "components", "own-certificate", "certs")
	if out, err := exec.Command(filepath.Join(root, "hack", "serving-cert.sh"), certs).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ca, err := os.ReadFile(filepath.Join(certs, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(install, "mine")
	if err := os.Mkdir(overlay, 0o700); err != nil {
		t.Fatal(err)
	}
	const kustomization = "resources: [../default]\ncomponents: [../components/own-certificate]\n"
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(kustomization), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, variant := range []struct {
		name    string
		ca      []byte
		creates []string
	}{
		{name: "combined", creates: []string{"statefulset.apps/knative-apiserver", "poddisruptionbudget.policy/knative-apiserver"}},
		{name: "single", creates: []string{"statefulset.apps/knative-apiserver"}},
		{name: "default", creates: []string{
			"statefulset.apps/knative-apiserver", "deployment.apps/knative-gateway", "poddisruptionbudget.policy/knative-gateway",
			"horizontalpodautoscaler.autoscaling/knative-gateway", "serviceaccount/knative-gateway",
		}},
		{name: "split", creates: []string{"deployment.apps/knative-apiserver", "deployment.apps/knative-gateway"}},
		{name: "mine", ca: ca, creates: []string{"statefulset.apps/knative-apiserver", "secret/knative-apiserver-serving-cert"}},
	} {
		t.Run(variant.name, func(t *testing.T) {
			t.Parallel()
			dryInstall(t, filepath.Join(install, variant.name), variant.ca, variant.creates)
		})
	}
}

// dryInstall sends the objects of a directory to the host as a dry run. The APIServices trust ca; nil leaves the CA bundle to
// the server.
func dryInstall(t *testing.T, dir string, ca []byte, creates []string) {
	t.Helper()
	kubectl := kubectl(t, "")
	var documents []string
	for _, document := range strings.Split(kubectl.Must(t, "", "kustomize", dir), "\n---\n") {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &obj.Object); err != nil {
			t.Fatal(err)
		}
		switch obj.GetKind() {
		case "APIService":
			// The base64 text may be wrapped.
			bundle, _, _ := unstructured.NestedString(obj.Object, "spec", "caBundle")
			if got := strings.Join(strings.Fields(bundle), ""); got != base64.StdEncoding.EncodeToString(ca) {
				t.Errorf("%s: spec.caBundle is not the authority of the certificate: %.40s", obj.GetName(), got)
			}
			if _, found, _ := unstructured.NestedBool(obj.Object, "spec", "insecureSkipTLSVerify"); found {
				t.Errorf("%s skips the verification of our certificate", obj.GetName())
			}
		case "Service":
			// The Service of the tests has the same name, and no selector.
			document = strings.Replace(document, "  name: knative-apiserver\n", "  name: knative-apiserver-dry-run\n", 1)
		}
		documents = append(documents, document)
	}
	applied := kubectl.Must(t, strings.Join(documents, "\n---\n"), "apply", "-f", "-", "--dry-run=server")
	wants := []string{
		"service/knative-apiserver-dry-run created", "service/gateway created",
		"apiservice.apiregistration.k8s.io/v1.serving.knative.dev", "clusterrole.rbac.authorization.k8s.io/knative-edit",
	}
	for _, created := range creates {
		wants = append(wants, created+" created")
	}
	for _, want := range wants {
		if !strings.Contains(applied, want) {
			t.Errorf("kubectl apply does not answer %q:\n%s", want, applied)
		}
	}
	kubectl.Must(t, "", "delete", "-k", dir, "--dry-run=server", "--ignore-not-found")
}

// TestDuckRoles checks that the ServiceAccount may read core Services, and may use the roles of other components for resolving
// references and maintaining channels (eventing RBAC Profile).
func TestDuckRoles(t *testing.T) {
	t.Parallel()
	may := func(verb, group, resource string) error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:knative-system:knative-apiserver",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: verb, Group: group, Resource: resource},
		}}
		answer, err := host.Host.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("may not %s %s.%s: %s", verb, resource, group, answer.Status.Reason)
		}
		return err
	}
	const group = "ducks.example.com"
	if may("watch", group, "sinks") == nil || may("patch", group, "logs") == nil {
		t.Error("the ServiceAccount has a permission that no role grants")
	}
	for _, role := range []struct{ duck, resource, verb string }{{"addressable", "sinks", "watch"}, {"channelable", "logs", "patch"}} {
		_, err := host.Host.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "ducks-" + role.duck, Labels: map[string]string{"duck.knative.dev/" + role.duck: "true"}},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{role.resource}, Verbs: []string{"get", role.verb}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := host.Host.RbacV1().ClusterRoles().Delete(context(), "ducks-"+role.duck, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	for _, want := range []struct{ verb, group, resource string }{{"watch", group, "sinks"}, {"patch", group, "logs"}, {"list", "", "services"}} {
		harness.Eventually(t, "roles are aggregated", func() error { return may(want.verb, want.group, want.resource) })
	}
	if may("patch", group, "sinks") == nil {
		t.Error("the ServiceAccount may write objects that it should only read")
	}
}
