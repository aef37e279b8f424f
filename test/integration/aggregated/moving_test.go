package aggregated

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestMoveSettings runs the commands of docs/operations.md that migrate the settings of Knative's releases. Both of its
// namespaces have a ConfigMap config-features, and the system namespace may have settings already.
func TestMoveSettings(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Moving from Knative's CRDs\n")
	var commands []string
	for _, block := range regexp.MustCompile("(?s) ```sh\n(.*?)```").FindAllStringSubmatch(section, -1) {
		commands = append(commands, block[1])
	}
	if len(commands) != 2 {
		t.Fatalf("section \"Moving\" has %d blocks of commands, want one that saves settings and one that applies them", len(commands))
	}

	features := map[string]map[string]string{
		"knative-serving": {"_example": "of Serving\n\t\"quoted\" \\ % text", "multi-container": "enabled", "kubernetes.podspec-tolerations": "allowed"},
		// Keys of Eventing have no effect here, and are kept.
		"knative-eventing": {"_example": "of Eventing", "new-trigger-filters": "enabled", "delivery-timeout": "disabled"},
	}
	want := map[string]string{}
	for _, namespace := range []string{"knative-serving", "knative-eventing"} {
		createConfigMap(t, namespace, "config-features", features[namespace])
		maps.Copy(want, features[namespace])
	}
	createConfigMap(t, "knative-serving", "config-gc", map[string]string{"min-non-active-revisions": "3"})
	channels := map[string]string{"default-ch-config": "clusterDefault:\n  apiVersion: messaging.knative.dev/v1\n  kind: InMemoryChannel\n"}
	createConfigMap(t, "knative-eventing", "default-ch-webhook", channels)
	createConfigMap(t, "knative-serving", "config-logging", map[string]string{"loglevel": "debug"})
	preserveConfigMaps(t, "config-features", "config-gc", "default-ch-webhook")

	bin, err := harness.KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, script := range commands {
		// A POSIX shell, because the shells of users differ.
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+host.Kubeconfig)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	for name, want := range map[string]map[string]string{
		"config-features": want, "config-gc": {"min-non-active-revisions": "3"}, "default-ch-webhook": channels,
	} {
		got, err := host.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(got.Data, func(key, _ string) bool { _, wanted := want[key]; return !wanted })
		if diff := cmp.Diff(want, got.Data); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestUnusedSettings sets a key without effect in a ConfigMap of the host cluster: an Event on the ConfigMap names it.
func TestUnusedSettings(t *testing.T) {
	preserveConfigMaps(t, "config-tracing")
	_, err := host.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Patch(t.Context(), "config-tracing", types.MergePatchType,
		[]byte(`{"data":{"backend":"zipkin"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "an Event names the key", func() error {
		events, err := host.Host.CoreV1().Events(harness.SystemNamespace).List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=ConfigMap,involvedObject.name=config-tracing,reason=UnusedSettings",
		})
		if err != nil {
			return err
		}
		const want = "Keys have no effect: 'backend' (use tracing-protocol of config-observability)"
		for _, event := range events.Items {
			if event.Message == want && event.Type == corev1.EventTypeWarning {
				return nil
			}
		}
		return fmt.Errorf("got %v, want %q", events.Items, want)
	})
}

// createConfigMap creates a ConfigMap and its namespace until the test ends.
func createConfigMap(t *testing.T, namespace, name string, data map[string]string) {
	t.Helper()
	_, err := host.Host.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
	if _, err := host.Host.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteConfigMap(t, namespace, name) })
}

// preserveConfigMaps restores settings of the installation at the end of the test.
func preserveConfigMaps(t *testing.T, names ...string) {
	t.Helper()
	configMaps := host.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	for _, name := range names {
		before, err := configMaps.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			t.Cleanup(func() { deleteConfigMap(t, harness.SystemNamespace, name) })
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			before.ResourceVersion = ""
			if _, err := configMaps.Update(context(), before, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func deleteConfigMap(t *testing.T, namespace, name string) {
	t.Helper()
	err := host.Host.CoreV1().ConfigMaps(namespace).Delete(context(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
