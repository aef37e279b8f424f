package aggregated

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const hello = `apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: hello
  labels: {team: blue}
spec:
  template:
    spec:
      containers:
      - image: registry.example.com/hello
        env:
        - {name: TARGET, value: World}
`

// TestKubectlApply changes a Service by client-side and by server-side apply (P5).
func TestKubectlApply(t *testing.T) {
	t.Parallel()
	changed := strings.Replace(hello, "value: World", "value: Moon", 1)
	for name, flags := range map[string][]string{
		"client-side": nil,
		"server-side": {"--server-side"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kubectl(t, host.Namespace(t, "apply", nil))
			run := func(want, manifest string) {
				t.Helper()
				out := k.Must(t, manifest, append([]string{"apply", "-f", "-"}, flags...)...)
				if want := "service.serving.knative.dev/hello " + want + "\n"; out != want {
					t.Errorf("kubectl apply prints %q, want %q", out, want)
				}
			}
			created, configured := "created", "configured"
			if name == "server-side" {
				created, configured = "serverside-applied", "serverside-applied"
			}
			run(created, hello)
			generation := func() string {
				return k.Must(t, "", "get", "ksvc", "hello", "-o", "jsonpath={.metadata.generation} {.metadata.resourceVersion}")
			}
			before := generation()
			// The defaults of the container are a difference for kubectl, but not for the server.
			run(configured, hello)
			if after := generation(); after != before {
				t.Errorf("an apply without changes changed generation and resourceVersion from %s to %s", before, after)
			}
			run(configured, changed)
			if got := k.Must(t, "", "get", "ksvc", "hello", "-o", "jsonpath={.spec.template.spec.containers[0].env[0].value} {.metadata.generation}"); got != "Moon 2" {
				t.Errorf("the environment and the generation are %q, want Moon 2", got)
			}
			// Fields that the manifest no longer has are removed.
			run(configured, strings.Replace(hello, "\n        env:\n        - {name: TARGET, value: World}", "", 1))
			if got := k.Must(t, "", "get", "ksvc", "hello", "-o", "jsonpath={.spec.template.spec.containers[0].env}"); got != "" {
				t.Errorf("the environment is %q, want none", got)
			}
		})
	}
}

// TestKubectlApplyConflict applies a field that another manager owns (P5).
func TestKubectlApplyConflict(t *testing.T) {
	t.Parallel()
	k := kubectl(t, host.Namespace(t, "conflict", nil))
	k.Must(t, hello, "apply", "--server-side", "--field-manager=first", "-f", "-")
	moon := strings.Replace(hello, "value: World", "value: Moon", 1)
	k.MustFail(t, `conflict with "first"`, moon, "apply", "--server-side", "--field-manager=second", "-f", "-")
	k.Must(t, moon, "apply", "--server-side", "--field-manager=second", "--force-conflicts", "-f", "-")
}

// TestKubectlApplySamples applies the shipped sample of each kind that users create.
func TestKubectlApplySamples(t *testing.T) {
	t.Parallel()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	k := kubectl(t, host.Namespace(t, "samples", nil))
	samples := filepath.Join(root, "artifacts", "samples")
	versions := func() string {
		k.Must(t, "", "apply", "-f", samples)
		return k.Must(t, "", "get", "knative", "-o", `jsonpath={range .items[*]}{.kind} {.metadata.resourceVersion}{"\n"}{end}`)
	}
	if first, second := versions(), versions(); first != second {
		t.Errorf("applying the samples again moved resourceVersions from\n%s to\n%s", first, second)
	}
	out := k.Must(t, "", "get", "knative", "-o", "name")
	for _, kind := range harness.Kinds() {
		if kind.Kind == "Revision" {
			continue
		}
		if want := strings.ToLower(kind.Kind) + "." + kind.Group + "/"; !strings.Contains(out, want) {
			t.Errorf("kubectl get knative shows no %s:\n%s", want, out)
		}
	}
}

// TestKubectlDiff checks that diff shows the changes of an apply and changes nothing (P5).
func TestKubectlDiff(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"client-side": nil, "server-side": {"--server-side"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kubectl(t, host.Namespace(t, "diff", nil))
			k.Must(t, hello, append([]string{"apply", "-f", "-"}, flags...)...)
			diff := append([]string{"diff", "-f", "-"}, flags...)
			if out := k.Must(t, hello, diff...); out != "" {
				t.Errorf("kubectl diff of the stored object: %s", out)
			}
			result := k.Run(t, strings.Replace(hello, "value: World", "value: Moon", 1), diff...)
			if result.Code != 1 || !strings.Contains(result.Stdout, "+          value: Moon") || !strings.Contains(result.Stdout, "-          value: World") {
				t.Errorf("kubectl diff: %+v, want exit code 1 and the changed line", result)
			}
			if got := k.Must(t, "", "get", "ksvc", "hello", "-o", "jsonpath={.spec.template.spec.containers[0].env[0].value}"); got != "World" {
				t.Errorf("kubectl diff changed the object: %s", got)
			}
		})
	}
}

// TestKubectlPatch patches an object and its status by each type of patch.
func TestKubectlPatch(t *testing.T) {
	t.Parallel()
	k := kubectl(t, host.Namespace(t, "patch", nil))
	k.Must(t, hello, "apply", "-f", "-")
	for _, test := range []struct{ kind, spec, status string }{
		{"merge", `{"spec":{"template":{"spec":{"timeoutSeconds":11}}}}`, `{"status":{"url":"http://merge.example.com"}}`},
		{"strategic", `{"spec":{"template":{"spec":{"timeoutSeconds":12}}}}`, `{"status":{"url":"http://strategic.example.com"}}`},
		{"json", `[{"op":"replace","path":"/spec/template/spec/timeoutSeconds","value":13}]`, `[{"op":"replace","path":"/status/url","value":"http://json.example.com"}]`},
	} {
		k.Must(t, "", "patch", "ksvc", "hello", "--type", test.kind, "-p", test.spec)
		k.Must(t, "", "patch", "ksvc", "hello", "--type", test.kind, "--subresource=status", "--as="+controllersUser, "--as-group=system:masters", "-p", test.status)
		want := map[string]string{"merge": "11", "strategic": "12", "json": "13"}[test.kind] + " http://" + test.kind + ".example.com"
		if got := k.Must(t, "", "get", "ksvc", "hello", "-o", "jsonpath={.spec.template.spec.timeoutSeconds} {.status.url}"); got != want {
			t.Errorf("after a %s patch: %q, want %q", test.kind, got, want)
		}
	}
	k.MustFail(t, "spec.template.spec.timeoutSeconds", "", "patch", "ksvc", "hello", "--type=merge", "-p", `{"spec":{"template":{"spec":{"timeoutSeconds":-1}}}}`)
}
