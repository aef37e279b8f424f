package manifests

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// system is the namespace of an installation.
const system = "knative-system"

// variants are the variants that hack/install.sh supports.
var variants = []string{"default", "combined", "single", "split"}

// each runs a test on the objects of each variant.
func each(t *testing.T, test func(t *testing.T, objects objects)) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, variant := range variants {
		t.Run(variant, func(t *testing.T) {
			test(t, build(t, filepath.Join(root, "artifacts", "install", variant)))
		})
	}
}

// variantOf returns the variant of a test that each runs.
func variantOf(t *testing.T) string {
	t.Helper()
	return t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]
}

// overlay returns the objects of a variant with a component. It creates the certificate that own-certificate requires.
func overlay(t *testing.T, variant, component string) objects {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	install := filepath.Join(t.TempDir(), "install")
	if err := os.CopyFS(install, os.DirFS(filepath.Join(root, "artifacts", "install"))); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"mine/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n" +
			"resources: [../" + variant + "]\ncomponents: [../components/" + component + "]\n",
		"components/own-certificate/certs/ca.crt":  "authority",
		"components/own-certificate/certs/tls.crt": "certificate",
		"components/own-certificate/certs/tls.key": "key",
	}
	for name, content := range files {
		path := filepath.Join(install, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return build(t, filepath.Join(install, "mine"))
}

type objects []*unstructured.Unstructured

// build builds a directory with the real kubectl.
func build(t *testing.T, dir string) objects {
	t.Helper()
	bin, err := harness.KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), "kustomize", dir)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// It warns about deprecated fields in kustomization.yaml.
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Fatalf("kubectl kustomize %s: %v\n%s", dir, err, stderr.String())
	}
	var found objects
	decoder := utilyaml.NewYAMLToJSONDecoder(strings.NewReader(stdout.String()))
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, object)
	}
}

// of returns the objects of a kind as their Go type, which must have all their fields.
func of[T any](t *testing.T, objects objects, kind string) []*T {
	t.Helper()
	var found []*T
	for _, object := range objects {
		if object.GetKind() != kind {
			continue
		}
		typed := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
			t.Fatalf("%s %s: %v", kind, object.GetName(), err)
		}
		found = append(found, typed)
	}
	return found
}

// workload contains the common fields of a StatefulSet and a Deployment.
type workload struct {
	name     string
	replicas int32
	selector map[string]string
	template corev1.PodTemplateSpec
}

func workloads(t *testing.T, objects objects) []workload {
	t.Helper()
	var found []workload
	for _, s := range of[appsv1.StatefulSet](t, objects, "StatefulSet") {
		found = append(found, workload{s.Name, *s.Spec.Replicas, s.Spec.Selector.MatchLabels, s.Spec.Template})
	}
	for _, d := range of[appsv1.Deployment](t, objects, "Deployment") {
		found = append(found, workload{d.Name, *d.Spec.Replicas, d.Spec.Selector.MatchLabels, d.Spec.Template})
	}
	if len(found) == 0 {
		t.Fatal("nothing runs")
	}
	return found
}

// container returns the only container of a workload.
func (w workload) container(t *testing.T) corev1.Container {
	t.Helper()
	if len(w.template.Spec.Containers) != 1 || len(w.template.Spec.InitContainers) != 0 {
		t.Fatalf("%s has other containers than the server's", w.name)
	}
	return w.template.Spec.Containers[0]
}

func (w workload) port(t *testing.T, name string) (int32, bool) {
	t.Helper()
	for _, port := range w.container(t).Ports {
		if port.Name == name {
			return port.ContainerPort, true
		}
	}
	return 0, false
}
