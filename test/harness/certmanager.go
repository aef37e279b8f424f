package harness

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

const certManagerModule = "github.com/cert-manager/cert-manager"

// certManagerSource downloads cert-manager, and returns its directory.
var certManagerSource = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, "hack", "certmanager")
	if output, err := exec.Command("go", "-C", module, "mod", "download", certManagerModule).CombinedOutput(); err != nil {
		return "", fmt.Errorf("download cert-manager: %w\n%s", err, output)
	}
	dir, err := exec.Command("go", "-C", module, "list", "-m", "-f", "{{.Dir}}", certManagerModule).Output()
	if err != nil {
		return "", fmt.Errorf("find cert-manager: %w", err)
	}
	return strings.TrimSpace(string(dir)), nil
})

// certManagerBinary builds cert-manager's controllers once for all tests. From scratch that takes four and a half minutes of processor time, so the
// program is kept in the user's cache, by the contents of its module.
var certManagerBinary = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	module, digest := filepath.Join(root, "hack", "certmanager"), sha256.New()
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		digest.Write(content)
	}
	fmt.Fprint(digest, runtime.Version())
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(cache, "knative-apiserver", fmt.Sprintf("cert-manager-%x", digest.Sum(nil)[:8]))
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	// Build to a temporary file and rename it: another test binary may run, or build, the same program concurrently.
	fresh := fmt.Sprintf("%s.%d", binary, os.Getpid())
	defer os.Remove(fresh)
	if output, err := exec.Command("go", "-C", module, "build", "-o", fresh, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cert-manager: %w\n%s", err, output)
	}
	return binary, os.Rename(fresh, binary)
})

// BuildCertManager builds cert-manager's controllers, which takes minutes the first time.
func BuildCertManager(t testing.TB) {
	t.Helper()
	if _, err := certManagerBinary(); err != nil {
		t.Fatal(err)
	}
}

// RunCertManager runs cert-manager's controllers on the cluster until the test ends. Call BuildCertManager and DefineCertManager before.
func (c *Cluster) RunCertManager(t testing.TB) {
	t.Helper()
	binary, err := certManagerBinary()
	if err != nil {
		t.Fatal(err)
	}
	process, err := StartProcess(nil, binary, "-kubeconfig", c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
}

// DefineCertManager creates the CustomResourceDefinitions of cert-manager in the cluster, and waits until they are served.
func (c *Cluster) DefineCertManager(t testing.TB) {
	t.Helper()
	source, err := certManagerSource()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(source, "deploy", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("cert-manager has no CustomResourceDefinitions: %v", err)
	}
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &definition.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := c.Admin.Dynamic.Resource(definitions).Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		Eventually(t, definition.GetName()+" is served", func() error { return c.served(t.Context(), definition) })
	}
}

// served lists the objects of a CustomResourceDefinition.
func (c *Cluster) served(ctx context.Context, definition *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	resource, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	_, err := c.Admin.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}
