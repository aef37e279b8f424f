//go:build linux

package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// TestRefused checks that a permanent fault is in the State when Apply returns, names the field at fault, and prevents
// starts.
func TestRefused(t *testing.T) {
	h := start(t, Options{})
	change := func(do func(r *servingv1.Revision, c *corev1.Container)) *servingv1.Revision {
		r := sample("refused", "serve")
		do(r, &r.Spec.Containers[0])
		return r
	}
	configMap := func(optional bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "k", Optional: &optional}}
	}
	for name, test := range map[string]struct {
		revision  *servingv1.Revision
		reason    string
		resources bool
		message   string
	}{
		"no command": {
			revision: change(func(_ *servingv1.Revision, c *corev1.Container) { c.Command = nil }),
			reason:   "ContainerMissing", message: "set spec.template.spec.containers[0].command",
		},
		"no command of a sidecar": {
			revision: change(func(r *servingv1.Revision, c *corev1.Container) {
				c.Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
				r.Spec.Containers = append(r.Spec.Containers, corev1.Container{Name: "side"})
			}),
			reason: "ContainerMissing", message: "set spec.template.spec.containers[1].command",
		},
		"no command of an init container": {
			revision: change(func(r *servingv1.Revision, _ *corev1.Container) {
				r.Spec.InitContainers = []corev1.Container{{Name: "init"}}
			}),
			reason: "ContainerMissing", message: "set spec.template.spec.initContainers[0].command",
		},
		"volume": {
			revision: change(func(r *servingv1.Revision, _ *corev1.Container) {
				r.Spec.Volumes = []corev1.Volume{{Name: "cache"}}
			}),
			reason: "CreateContainerConfigError", resources: true, message: `cannot mount the volume "cache": use configMap, secret, projected or emptyDir in spec.template.spec.volumes[0]`,
		},
		"token of a ServiceAccount": {
			revision: change(func(r *servingv1.Revision, _ *corev1.Container) {
				r.Spec.Volumes = []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
				}}}}
			}),
			reason: "CreateContainerConfigError", resources: true, message: "remove spec.template.spec.volumes[0].projected.sources[0].serviceAccountToken",
		},
		"variables that grow without limit": {
			revision: change(func(_ *servingv1.Revision, c *corev1.Container) {
				c.Env = append(c.Env, corev1.EnvVar{Name: "V0", Value: "0123456789"})
				for i := range 40 {
					c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i+1), Value: strings.Repeat(fmt.Sprintf("$(V%d)", i), 10)})
				}
			}),
			reason: "CreateContainerConfigError", resources: true, message: "the environment is larger than 4 MiB",
		},
		"optional variable": {
			revision: change(func(_ *servingv1.Revision, c *corev1.Container) {
				c.Env = append(c.Env, corev1.EnvVar{Name: "V", ValueFrom: configMap(true)})
				c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{Optional: ptr.To(true)}}}
			}),
		},
		"unknown field": {
			revision: change(func(_ *servingv1.Revision, c *corev1.Container) {
				c.Env = append(c.Env, corev1.EnvVar{Name: "V", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.phase"}}})
			}),
			reason: "CreateContainerConfigError", resources: true, message: `field "status.phase" of spec.template.spec.containers[0].env[1].valueFrom.fieldRef`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.revision.Name = strings.ReplaceAll(name, " ", "-")
			if err := h.Apply(t.Context(), test.revision, true); err != nil {
				t.Fatalf("Apply: %v", err)
			}
			s, _ := h.State(keyOf(test.revision))
			if test.reason == "" {
				if s.Failure != nil {
					t.Errorf("failure %v, want none", s.Failure)
				}
				return
			}
			if s.Failure == nil || s.Failure.Reason != test.reason || s.Failure.Resources != test.resources || !strings.Contains(s.Failure.Message, test.message) {
				t.Fatalf("failure %+v, want %s (resources %t) with %q", s.Failure, test.reason, test.resources, test.message)
			}
			h.scale(test.revision, 1)
			if s, _ := h.State(keyOf(test.revision)); s.Desired != 1 || s.Failure == nil {
				t.Errorf("state after Scale %+v, want 1 desired and the failure", s)
			}
			if n := len(h.revision(test.revision).backends); n != 0 {
				t.Errorf("%d backends, want none", n)
			}
		})
	}
}

// TestStartFailures checks the failures of backends that exit, or cannot start, before they are ready.
func TestStartFailures(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(argv ...string) *servingv1.Revision {
		r := sample("failing", "serve")
		r.Spec.Containers[0].Command = argv
		return r
	}
	for name, test := range map[string]struct {
		revision *servingv1.Revision
		want     workload.Failure
	}{
		"exit code and last line of stderr": {
			revision: sample("exits", "exit", "CODE=7", "STDOUT=out", "STDERR=first\nlast\n\n"),
			want:     workload.Failure{Reason: "ExitCode7", Message: "Container failed with: last (exit code 7)"},
		},
		"stdout if stderr is empty": {
			revision: sample("exits", "exit", "CODE=1", "STDOUT=out"),
			want:     workload.Failure{Reason: "ExitCode1", Message: "Container failed with: out (exit code 1)"},
		},
		"success": {
			revision: sample("exits", "exit"),
			want:     workload.Failure{Reason: "ExitCode0", Message: "Container failed with: exit status 0"},
		},
		"signal": {
			revision: sample("exits", "signal"),
			want:     workload.Failure{Reason: "ExitCode137", Message: "Container failed with: signal: killed"},
		},
		"not found in PATH": {
			revision: command("no-such-program"),
			want: workload.Failure{Reason: "RunContainerError",
				Message: `Starting no-such-program failed: exec: "no-such-program": executable file not found in $PATH.`},
		},
		"no such file": {
			revision: command("/no/such/program"),
			want: workload.Failure{Reason: "RunContainerError",
				Message: "Starting /no/such/program failed: fork/exec /no/such/program: no such file or directory."},
		},
		"not executable": {
			revision: command(plain),
			want: workload.Failure{Reason: "RunContainerError",
				Message: "Starting " + plain + " failed: fork/exec " + plain + ": permission denied."},
		},
		"no such directory": {
			revision: func() *servingv1.Revision {
				r := command("true")
				r.Spec.Containers[0].WorkingDir = "/no/such/dir"
				return r
			}(),
			want: workload.Failure{Reason: "RunContainerError",
				Message: "Starting true failed: change working directory: stat /no/such/dir: no such file or directory."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t, Options{})
			h.apply(test.revision, 1)
			s := h.await(test.revision, "the failure", failing)
			if diff := cmp.Diff(&test.want, s.Failure); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInitContainers checks that init containers run to their end before the containers, and that the failure of one is the
// failure of the backend.
func TestInitContainers(t *testing.T) {
	h := start(t, Options{})
	file := filepath.Join(t.TempDir(), "made")
	r := sample("init", "serve")
	r.Spec.InitContainers = []corev1.Container{{Name: "touch", Command: []string{"touch", file}}}
	h.apply(r, 1)
	h.await(r, "a backend", ready(1))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the init container has not run: %v", err)
	}
	r = sample("init-fails", "serve")
	r.Spec.InitContainers = []corev1.Container{{Name: "fail", Command: []string{"sh", "-c", "echo no database >&2; exit 4"}}}
	h.apply(r, 1)
	s := h.await(r, "the failure", failing)
	want := &workload.Failure{Reason: "ExitCode4", Message: `Container "fail" failed with: no database (exit code 4)`}
	if diff := cmp.Diff(want, s.Failure); diff != "" {
		t.Errorf("failure (-want +got):\n%s", diff)
	}
}

// TestNativeSidecar checks that a native sidecar has started before the init containers after it, runs beside the
// containers, is terminated after them, and that its exit is a failure of the backend.
func TestNativeSidecar(t *testing.T) {
	h := start(t, Options{})
	dir := t.TempDir()
	shell := func(script string) []string { return []string{"sh", "-c", "cd " + dir + "; " + script} }
	onTerm := func(name string) string {
		return "trap 'echo " + name + " >> ended; exit 0' TERM; touch " + name + "; while [ ! -e stop ]; do sleep 0.01; done; echo enough >&2; exit 5"
	}
	r := sample("native-sidecar", "serve")
	r.Spec.InitContainers = []corev1.Container{
		{
			Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), Command: shell(onTerm("proxy")),
			StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", filepath.Join(dir, "proxy")}}}},
		},
		{Name: "check", Command: shell("test -e proxy")},
	}
	r.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
	r.Spec.Containers = append(r.Spec.Containers, corev1.Container{
		Name: "side", Command: shell(onTerm("side")),
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", filepath.Join(dir, "side")}}}},
	})
	h.apply(r, 1)
	i := h.await(r, "a backend", ready(1)).Instances[0]
	h.scale(r, 0)
	h.Drained(keyOf(r), i.Name)
	ended := filepath.Join(dir, "ended")
	h.eventually("the exit of both", func() bool {
		content, _ := os.ReadFile(ended)
		return strings.Count(string(content), "\n") == 2
	})
	if content, _ := os.ReadFile(ended); string(content) != "side\nproxy\n" {
		t.Errorf("ended in the order %q, want the native sidecar last", content)
	}
	r.UID, r.Spec.Containers = "again", r.Spec.Containers[:1]
	h.apply(r, 1)
	h.await(r, "another backend", ready(1))
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := &workload.Failure{Reason: "ExitCode5", Message: `Container "proxy" failed with: enough (exit code 5)`}
	if diff := cmp.Diff(want, h.await(r, "the failure", failing).Failure); diff != "" {
		t.Errorf("failure (-want +got):\n%s", diff)
	}
}

// TestSidecar checks that containers run beside the serving one, and that the exit of one is a failure of the backend.
func TestSidecar(t *testing.T) {
	h := start(t, Options{})
	file := filepath.Join(t.TempDir(), "stop")
	r := sample("sidecar", "serve")
	r.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
	r.Spec.Containers = append([]corev1.Container{{
		Name: "side", Command: []string{"sh", "-c", `while [ ! -e "$0" ]; do sleep 0.01; done; echo enough >&2; exit 5`, file},
	}}, r.Spec.Containers...)
	h.apply(r, 1)
	i := h.await(r, "a backend", ready(1)).Instances[0]
	ask(t, i.Address)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := h.await(r, "the failure", failing)
	want := &workload.Failure{Reason: "ExitCode5", Message: `Container "side" failed with: enough (exit code 5)`}
	if diff := cmp.Diff(want, s.Failure); diff != "" {
		t.Errorf("failure (-want +got):\n%s", diff)
	}
}

// TestBackoff checks the delays before a failing backend is replaced: at once, then after 1, 2 and 4 seconds. Its failure
// stays published meanwhile, and deleting the slot ends the replacement.
func TestBackoff(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	h := start(t, Options{Clock: clock})
	r := sample("loop", "exit", "CODE=1", "STDERR=broken")
	h.apply(r, 1)
	rev := h.revision(r)
	crashes := func(n int) {
		t.Helper()
		h.eventually("a crash", func() bool {
			rev.Lock()
			defer rev.Unlock()
			return len(rev.backends) == 0 && rev.slots[0].crashes == n
		})
	}
	crashes(2)
	for n, delay := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		clock.Step(delay / 2)
		crashes(n + 2)
		clock.Step(delay / 2)
		crashes(n + 3)
	}
	all := h.published(r)
	first := slices.IndexFunc(all, failing)
	if first < 0 || slices.ContainsFunc(all[first:], func(s workload.State) bool { return !failing(s) }) {
		t.Errorf("the failure changes: %+v", all)
	}
	h.scale(r, 0)
	clock.Step(time.Hour)
	rev.Lock()
	defer rev.Unlock()
	if len(rev.backends) != 0 || len(rev.slots) != 0 {
		t.Errorf("%d backends in %d slots after scaling to 0", len(rev.backends), len(rev.slots))
	}
}

func TestRestartDelay(t *testing.T) {
	for crashes, want := range map[int]time.Duration{
		1: 0, 2: time.Second, 3: 2 * time.Second, 4: 4 * time.Second, 10: 256 * time.Second,
		11: 5 * time.Minute, 1000000: 5 * time.Minute,
	} {
		if got := restartDelay(crashes); got != want {
			t.Errorf("restartDelay(%d) = %v, want %v", crashes, got, want)
		}
	}
}

// TestHealthyAfter checks that crashes are counted in a row only if the backend was not ready for long.
func TestHealthyAfter(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	h := start(t, Options{Clock: clock})
	r := sample("sometimes", "serve")
	h.apply(r, 1)
	rev := h.revision(r)
	for n, test := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Minute, 2}, {10 * time.Minute, 1}} {
		i := h.await(r, "a backend", ready(1)).Instances[0]
		clock.Step(test.after)
		rev.Lock()
		s := rev.slots[0]
		rev.Unlock()
		killSample(t, i.Address)
		h.eventually("the crash", func() bool {
			rev.Lock()
			defer rev.Unlock()
			return s.backend == nil || s.backend.name != i.Name
		})
		rev.Lock()
		if s.crashes != test.want {
			t.Errorf("crash %d after %v counts as %d, want %d", n, test.after, s.crashes, test.want)
		}
		rev.Unlock()
	}
}

// TestUser checks that runAsUser is honoured, and that the container's value precedes the Revision's (serving 10.4-12).
func TestUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may start processes as another user")
	}
	h := start(t, Options{})
	r := sample("user", "serve")
	r.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](1234)}
	c := &r.Spec.Containers[0]
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](65534)}
	c.Command = []string{"sh", "-c", "echo $(id -u) $(id -g) $(id -G) >&2; exit 1"}
	h.apply(r, 1)
	want := "Container failed with: 65534 65534 65534 (exit code 1)"
	if s := h.await(r, "the failure", failing); s.Failure.Message != want {
		t.Errorf("message %q, want %q", s.Failure.Message, want)
	}
}
