package standalone

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// application are the files in the directory of an application.
var application = map[string]string{
	"00-namespace.yaml": "apiVersion: v1\nkind: Namespace\nmetadata: {name: NAMESPACE, labels: {team: a}}\n",
	"config.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: NAMESPACE}
data: {GREETING: hello, app.properties: "a=b\n"}
binaryData: {logo: AAEC}
---
apiVersion: v1
kind: Secret
metadata: {name: credentials, namespace: NAMESPACE}
stringData: {password: hunter2}
---
apiVersion: v1
kind: Secret
metadata: {name: registry, namespace: NAMESPACE}
type: kubernetes.io/dockerconfigjson
data: {.dockerconfigjson: e30=}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: runner, namespace: NAMESPACE}
`,
}

func writeFiles(t testing.TB, files map[string]string, namespace string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(content, "NAMESPACE", namespace)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestKubectlAppliesCoreKinds(t *testing.T) {
	ns := namespace(t)
	kubectl := harness.NewKubectl(t, server.Kubeconfig, ns)
	dir := writeFiles(t, application, ns)
	created := kubectl.Must(t, "", "apply", "-f", dir)
	for _, want := range []string{"namespace/" + ns, "configmap/settings", "secret/credentials", "secret/registry", "serviceaccount/runner"} {
		if !strings.Contains(created, want+" created\n") {
			t.Errorf("%s is not created:\n%s", want, created)
		}
	}
	for range 2 {
		kubectl.Must(t, "", "apply", "--server-side", "--force-conflicts", "-f", dir)
	}
	if got := kubectl.Must(t, "", "diff", "--server-side", "--force-conflicts", "-f", dir); got != "" {
		t.Errorf("diff of the stored objects: %s", got)
	}
	for args, want := range map[string]string{
		"get ns " + ns:           "NAME STATUS AGE",
		"get cm settings":        "NAME DATA AGE settings 3",
		"get secret credentials": "NAME TYPE DATA AGE credentials Opaque 1",
		"get sa runner":          "NAME AGE runner",
		"get secret --field-selector type=kubernetes.io/dockerconfigjson -o name":        "secret/registry",
		"get ns --field-selector status.phase=Terminating,metadata.name=" + ns:           "",
		"get ns -l team=a --field-selector status.phase=Active -o name":                  "namespace/" + ns,
		"get secret credentials -o jsonpath={.data.password}{.stringData}{.type}":        "aHVudGVyMg==Opaque",
		"get cm --field-selector metadata.name=settings -o jsonpath={..binaryData.logo}": "AAEC",
		"explain secret.stringData":                       "KIND: Secret VERSION: v1 FIELD: stringData",
		"api-resources --api-group= --no-headers -o name": "configmaps events namespaces secrets serviceaccounts",
		"create secret generic s --from-literal=a=b":      "secret/s created",
		"create configmap c --from-literal=a=b":           "configmap/c created",
		"create serviceaccount s":                         "serviceaccount/s created",
		"describe sa runner":                              "Name: runner",
		"describe ns " + ns:                               "Name: " + ns,
	} {
		result := kubectl.Run(t, "", strings.Fields(args)...)
		if got := strings.Join(strings.Fields(result.Stdout), " "); result.Code != 0 || !strings.HasPrefix(got, want) {
			t.Errorf("kubectl %s: code %d, %q, want %q\n%s", args, result.Code, got, want, result.Stderr)
		}
	}
	cluster := harness.NewKubectl(t, server.Kubeconfig, "")
	// Deleting the Namespace deletes the others.
	cluster.Must(t, "", "delete", "-f", dir, "--ignore-not-found")
	cluster.MustFail(t, "not found", "", "get", "ns", ns)
	if got := kubectl.Run(t, "", "get", "cm,secret,sa,ev"); got.Stdout != "" {
		t.Errorf("the deleted Namespace still has %s", got.Stdout)
	}
}

// TestCoreKindsRejectBadInput covers conventions Namespaces-1.
func TestCoreKindsRejectBadInput(t *testing.T) {
	kubectl := harness.NewKubectl(t, server.Kubeconfig, namespace(t))
	for name, test := range map[string]struct{ input, want string }{
		"a path as key":      {`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"../a":"x"}}`, "data[../a]"},
		"a key in both":      {`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"a":"x"},"binaryData":{"a":"AA=="}}`, "data[a]"},
		"too much":           {`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"a":"` + strings.Repeat("x", 1<<20+1) + `"}}`, "data: Too long"},
		"no base64":          {`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"data":{"a":"hunter2!"}}`, "illegal base64"},
		"tls without keys":   {`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"type":"kubernetes.io/tls"}`, "data[tls.crt]: Required"},
		"an unknown field":   {`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"a"},"dta":{}}`, `unknown field "dta"`},
		"a Namespace's name": {`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"a.b"}}`, "metadata.name"},
	} {
		t.Run(name, func(t *testing.T) { kubectl.MustFail(t, test.want, test.input, "create", "-f", "-") })
	}
}

// TestTypedClients checks typed clients, which send and request protobuf.
func TestTypedClients(t *testing.T) {
	client, err := kubernetes.NewForConfig(admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	ns := namespace(t)
	made, err := client.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, StringData: map[string]string{"a": "b"},
	}, metav1.CreateOptions{})
	if err != nil || string(made.Data["a"]) != "b" || made.StringData != nil {
		t.Fatalf("created %v, %v", made, err)
	}
	list, err := client.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || string(list.Items[0].Data["a"]) != "b" {
		t.Errorf("list is %v, %v", list, err)
	}
}

// TestNamespacesAreCreatedWithTheirObjects checks that storing an object creates its Namespace, and rejecting it does not.
func TestNamespacesAreCreatedWithTheirObjects(t *testing.T) {
	ns := namespace(t)
	kubectl := harness.NewKubectl(t, server.Kubeconfig, ns)
	file := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`
	kubectl.Must(t, file, "apply", "--dry-run=server", "-f", "-")
	kubectl.MustFail(t, "metadata.name", `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"A"}}`, "create", "-f", "-")
	kubectl.MustFail(t, "not found", "", "get", "ns", ns)
	kubectl.Must(t, file, "apply", "--server-side", "-f", "-")
	kubectl.Must(t, "", "get", "ns", ns)
	harness.Eventually(t, "the Namespace has its ServiceAccount", func() error {
		if result := kubectl.Run(t, "", "get", "sa", "default"); result.Code != 0 {
			return errors.New(result.Stderr)
		}
		return nil
	})
}

// TestDeletingANamespace checks that deleting a Namespace deletes everything in it, and nothing else.
func TestDeletingANamespace(t *testing.T) {
	ns, other := namespace(t), namespace(t)
	kubectl := harness.NewKubectl(t, server.Kubeconfig, ns)
	for _, k := range harness.AllKinds() {
		if k.Kind == "Revision" {
			continue
		}
		for _, in := range []string{ns, other} {
			admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(in), Body: k.Object(in, "a")}).Object(t)
		}
	}
	blocked := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"blocked","finalizers":["example.com/mine"]}}`
	kubectl.Must(t, blocked, "create", "-f", "-")
	cluster := harness.NewKubectl(t, server.Kubeconfig, "")
	cluster.Must(t, "", "delete", "ns", ns, "--wait=false")

	path := "/api/v1/namespaces/" + ns
	harness.Eventually(t, "the Namespace reports the remaining objects", func() error {
		n := admin.Do(t, harness.Request{Method: "GET", Path: path}).Object(t)
		if message := fmt.Sprint(n.Object["status"]); field(n, "status", "phase") != "Terminating" || !strings.Contains(message, "configmaps has 1 resource instances") {
			return errors.New(message)
		}
		return nil
	})
	refused := admin.Do(t, harness.Request{Method: "POST", Path: path + "/configmaps", Body: object{"metadata": object{"name": "late"}}})
	status := refused.Status(t)
	if refused.Code != http.StatusForbidden || !apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: *status}, corev1.NamespaceTerminatingCause) {
		t.Errorf("an object in a Namespace that is being deleted: code %d, %s", refused.Code, refused.Body)
	}
	kubectl.Must(t, "", "patch", "cm", "blocked", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	cluster.Must(t, "", "wait", "--for=delete", "ns/"+ns, "--timeout=30s")
	for _, k := range harness.AllKinds() {
		for _, in := range []string{ns, other} {
			list := admin.Do(t, harness.Request{Method: "GET", Path: k.Collection(in)}).Body
			if has := strings.Contains(string(list), `"name":"`+k.Name("a")+`"`); has != (in == other && k.Kind != "Revision") {
				t.Errorf("%s in %s: %s", k.Kind, in, list)
			}
		}
	}
	for _, name := range []string{"default", "kube-system", "knative-system"} {
		cluster.MustFail(t, "this namespace may not be deleted", "", "delete", "ns", name)
	}
}

// TestTheServerServesNoOtherCoreKinds lists the kinds of Kubernetes that a standalone server has.
func TestTheServerServesNoOtherCoreKinds(t *testing.T) {
	var names []string
	for _, resource := range getJSON(t, "/api/v1", "application/json")["resources"].([]any) {
		names = append(names, resource.(object)["name"].(string))
	}
	slices.Sort(names)
	if want := []string{"configmaps", "events", "namespaces", "namespaces/finalize", "namespaces/status", "secrets", "serviceaccounts"}; !slices.Equal(names, want) {
		t.Errorf("the core group has %q, want %q", names, want)
	}
}
