package aggregated

import (
	"path/filepath"
	"regexp"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const ready = `{"status":{"conditions":[{"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`

// start runs a kubectl command in the background until the test ends.
func start(t *testing.T, namespace string, args ...string) *harness.Process {
	t.Helper()
	bin, err := harness.KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--kubeconfig", host.Kubeconfig, "--namespace", namespace, "--cache-dir", t.TempDir()}, args...)
	process, err := harness.StartProcess(nil, filepath.Join(bin, "kubectl"), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	return process
}

func expect(t *testing.T, process *harness.Process, pattern string) {
	t.Helper()
	if _, err := process.WaitForOutput(regexp.MustCompile(pattern)); err != nil {
		t.Fatal(err)
	}
}

func expectSuccess(t *testing.T, process *harness.Process) {
	t.Helper()
	if code, err := process.ExitCode(); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, process.Log())
	}
}

// TestKubectlWatch watches an object as it is created, changed and deleted.
func TestKubectlWatch(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "watch", nil)
	k := kubectl(t, ns)
	watch := start(t, ns, "get", "ksvc", "--watch", "--output-watch-events", "--no-headers")
	// A watch that shows an earlier object is established.
	k.Must(t, hello, "apply", "-f", "-")
	expect(t, watch, `ADDED +hello`)
	k.Must(t, "", "patch", "ksvc", "hello", "--type=merge", "--subresource=status", "--as="+controllersUser, "--as-group=system:masters", "-p", ready)
	expect(t, watch, `MODIFIED +hello .*True`)
	k.Must(t, "", "delete", "ksvc", "hello")
	expect(t, watch, `DELETED +hello`)
}

// TestKubectlWait waits for a condition, and for the deletion of an object.
func TestKubectlWait(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "wait", nil)
	k := kubectl(t, ns)
	k.Must(t, hello, "apply", "-f", "-")
	k.MustFail(t, "timed out waiting for the condition on services/hello", "", "wait", "--for=condition=Ready", "ksvc/hello", "--timeout=100ms")

	waiting := start(t, ns, "wait", "--for=condition=Ready", "ksvc/hello", "--timeout=1m")
	k.Must(t, "", "patch", "ksvc", "hello", "--type=merge", "--subresource=status", "--as="+controllersUser, "--as-group=system:masters", "-p", ready)
	expect(t, waiting, "service.serving.knative.dev/hello condition met")
	expectSuccess(t, waiting)

	deletion := start(t, ns, "wait", "--for=delete", "ksvc/hello", "--timeout=1m")
	k.Must(t, "", "delete", "ksvc", "hello", "--wait=false")
	expectSuccess(t, deletion)
}
