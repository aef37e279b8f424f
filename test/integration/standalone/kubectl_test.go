package standalone

import (
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// manifest returns the file of an object.
func manifest(t testing.TB, content object) string {
	t.Helper()
	file, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	return string(file)
}

// withoutNamespace is the minimal manifest of a kind in a file.
func withoutNamespace(k harness.Kind) object {
	obj := k.Object("", "a")
	return obj.Object
}

func TestKubectlApply(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		kubectl := harness.NewKubectl(t, server.Kubeconfig, namespace(t))
		name := strings.ToLower(k.Kind) + "." + k.Group + "/a"
		file := manifest(t, withoutNamespace(k))
		if got := kubectl.Must(t, file, "apply", "-f", "-"); got != name+" created\n" {
			t.Errorf("first: %q", got)
		}
		before := get(t, k, kubectl.Namespace, "a")
		second := kubectl.Must(t, file, "apply", "-f", "-")
		switch {
		case k.Kind == "Service" || k.Kind == "Configuration" || k.Kind == "Route":
			// kubectl compares unnamed containers, and traffic, as whole lists; the stored ones have defaults. So it sends the
			// list and reports a change; the server finds that nothing changed.
			if second != name+" configured\n" && second != name+" unchanged\n" {
				t.Errorf("second: %q", second)
			}
		case second != name+" unchanged\n":
			t.Errorf("second: %q", second)
		}
		wantSame(t, before, get(t, k, kubectl.Namespace, "a"))
		if got := kubectl.Must(t, file, "diff", "-f", "-"); got != "" {
			t.Errorf("diff of the stored object: %s", got)
		}
		changed := manifest(t, merged(withoutNamespace(k), object{"metadata": object{"labels": object{"a": "b"}}}))
		if result := kubectl.Run(t, changed, "diff", "-f", "-"); result.Code != 1 || !strings.Contains(result.Stdout, "+    a: b") || result.Stderr != "" {
			t.Errorf("diff of a change: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
		}
		if got := kubectl.Must(t, changed, "apply", "-f", "-"); got != name+" configured\n" {
			t.Errorf("a change: %q", got)
		}
		if got := kubectl.Must(t, file, "apply", "-f", "-"); got != name+" configured\n" || get(t, k, kubectl.Namespace, "a").GetLabels()["a"] != "" {
			t.Errorf("a reverted change: %q, labels %v", got, get(t, k, kubectl.Namespace, "a").GetLabels())
		}
		kubectl.Must(t, file, "replace", "-f", "-")
		kubectl.Must(t, file, "delete", "-f", "-", "--wait=true")
	})
}

func TestKubectlServerSideApply(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		kubectl := harness.NewKubectl(t, server.Kubeconfig, namespace(t))
		name := strings.ToLower(k.Kind) + "." + k.Group + "/a"
		file := manifest(t, withoutNamespace(k))
		for range 2 {
			if got := kubectl.Must(t, file, "apply", "--server-side", "-f", "-"); got != name+" serverside-applied\n" {
				t.Errorf("%q", got)
			}
		}
		if got := kubectl.Must(t, file, "diff", "--server-side", "-f", "-"); got != "" {
			t.Errorf("diff of the stored object: %s", got)
		}
		if got := get(t, k, kubectl.Namespace, "a").GetGeneration(); got != 1 {
			t.Errorf("generation is %d, want 1", got)
		}
		changed := manifest(t, merged(withoutNamespace(k), object{"metadata": object{"labels": object{"a": "b"}}}))
		kubectl.Must(t, changed, "apply", "--server-side", "-f", "-")
		kubectl.Must(t, file, "apply", "--server-side", "-f", "-")
		if labels := get(t, k, kubectl.Namespace, "a").GetLabels(); labels["a"] != "" {
			t.Errorf("labels are %v", labels)
		}
		other := manifest(t, merged(withoutNamespace(k), object{"spec": specChange(k), "metadata": object{"labels": object{"a": "b"}}}))
		kubectl.Must(t, other, "apply", "--server-side", "--field-manager", "other", "--force-conflicts", "-f", "-")
	})
}

func TestKubectlPatch(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		kubectl := harness.NewKubectl(t, server.Kubeconfig, obj.GetNamespace())
		name := k.Resource + "." + k.Group
		for patchType, patch := range map[string]string{
			"merge":     `{"metadata":{"labels":{"merge":"yes"}}}`,
			"strategic": `{"metadata":{"labels":{"strategic":"yes"}}}`,
			"json":      `[{"op":"add","path":"/metadata/annotations/json","value":"yes"}]`,
		} {
			if got := kubectl.Must(t, "", "patch", name, obj.GetName(), "--type", patchType, "-p", patch); !strings.HasSuffix(got, " patched\n") {
				t.Errorf("--type %s: %q", patchType, got)
			}
		}
		live := reread(t, obj)
		if live.GetLabels()["merge"] != "yes" || live.GetLabels()["strategic"] != "yes" || live.GetAnnotations()["json"] != "yes" {
			t.Errorf("metadata is %v", live.Object["metadata"])
		}
		kubectl.Must(t, "", "patch", name, obj.GetName(), "--subresource=status", "--type=merge", "--as="+controllersUser, "--as-group=system:masters", "-p", `{"status":{"observedGeneration":1}}`)
		kubectl.Must(t, "", "label", name, obj.GetName(), "more=yes")
		kubectl.Must(t, "", "annotate", name, obj.GetName(), "more=yes")
		kubectl.MustFail(t, "is invalid: metadata.labels", "", "patch", name, obj.GetName(), "--type", "merge", "-p", `{"metadata":{"labels":{"a b":"c"}}}`)
	})
}

func TestKubectlWaitAndDelete(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		name := k.Resource + "." + k.Group
		for _, cascade := range []string{"background", "foreground", "orphan"} {
			obj := stored(t, k)
			kubectl := harness.NewKubectl(t, server.Kubeconfig, obj.GetNamespace())
			kubectl.Must(t, "", "patch", name, obj.GetName(), "--subresource=status", "--type=merge", "--as="+controllersUser, "--as-group=system:masters", "-p",
				`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
			if got := kubectl.Must(t, "", "wait", name+"/"+obj.GetName(), "--for=condition=Ready", "--timeout=20s"); !strings.HasSuffix(got, " condition met\n") {
				t.Errorf("wait: %q", got)
			}
			kubectl.Must(t, "", "delete", name, obj.GetName(), "--cascade="+cascade, "--wait=false")
			if cascade != "background" {
				// The garbage collector of a cluster finishes with this request.
				kubectl.Must(t, "", "patch", name, obj.GetName(), "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
			}
			kubectl.Must(t, "", "wait", name+"/"+obj.GetName(), "--for=delete", "--timeout=20s")
		}
	})
}

// TestKubectlAppliesTheSamples applies the samples of the README.
func TestKubectlAppliesTheSamples(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	samples := filepath.Join(root, "artifacts", "samples")
	own := harness.RunAPI(t, t.TempDir())
	kubectl := harness.NewKubectl(t, own.Kubeconfig, "")
	created := kubectl.Must(t, "", "apply", "-f", samples)
	kubectl.Must(t, "", "apply", "-f", samples)
	listed := kubectl.Must(t, "", "get", "knative", "-A")
	for _, k := range harness.AllKinds() {
		name := strings.ToLower(k.Kind) + "." + k.Group + "/"
		if k.Kind == "Revision" {
			continue
		}
		if !strings.Contains(created, name) || !strings.Contains(listed, name) {
			t.Errorf("there is no sample of %s:\n%s\n%s", k.Kind, created, listed)
		}
	}
	kubectl.Must(t, "", "apply", "--server-side", "--force-conflicts", "-f", samples)
	kubectl.Must(t, "", "delete", "-f", samples)
}
