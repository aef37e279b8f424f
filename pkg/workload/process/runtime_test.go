//go:build linux

package process

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// TestContainer checks the arguments, working directory, environment and descriptors of a container's process (serving
// 10.4-1, 10.4-2, 10.4-3, 10.4-18).
func TestContainer(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "hidden")
	h := start(t, Options{})
	dir := t.TempDir()
	r := sample("contract", "serve", "GREETING=hello", "COMPOSED=$(GREETING) $(K_REVISION) $$(GREETING) $(MISSING)")
	c := &r.Spec.Containers[0]
	c.Args = []string{"-port=$(PORT)", "$(COMPOSED)", "$(MISSING)"}
	c.WorkingDir = dir
	c.Env = append(c.Env, corev1.EnvVar{Name: "SELF", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}})
	h.apply(r, 1)
	s := h.await(r, "a backend", ready(1))
	f := ask(t, s.Instances[0].Address)

	_, port, _ := strings.Cut(s.Instances[0].Address, ":")
	composed := "hello contract $(GREETING) $(MISSING)"
	if diff := cmp.Diff([]string{"-port=" + port, composed, "$(MISSING)"}, f.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	for _, want := range []string{
		"PORT=" + port, "K_SERVICE=svc", "K_CONFIGURATION=cfg", "K_REVISION=contract",
		"GREETING=hello", "COMPOSED=" + composed, "SELF=" + s.Instances[0].Name,
	} {
		if !slices.Contains(f.Env, want) {
			t.Errorf("the environment lacks %s", want)
		}
	}
	for _, variable := range f.Env {
		if strings.HasPrefix(variable, "SECRET_OF_THE_SERVER=") {
			t.Errorf("the environment has the server's %s", variable)
		}
	}
	if f.Dir != dir {
		t.Errorf("working directory %s, want %s", f.Dir, dir)
	}
	if !f.StdinEnded {
		t.Error("stdin can be read, want the end")
	}
	for _, file := range f.Files {
		if !strings.HasPrefix(file, "/proc/") && !strings.HasPrefix(file, "/sys/fs/cgroup") {
			t.Errorf("the process inherited the file %s", file)
		}
	}
}

// TestCrashAfterReady checks that a crashed backend is removed from the State at once and replaced.
func TestCrashAfterReady(t *testing.T) {
	h := start(t, Options{})
	r := sample("crash", "serve")
	h.apply(r, 1)
	first := h.await(r, "a backend", ready(1)).Instances[0]
	if response, err := http.Get("http://" + first.Address + "/exit"); err == nil {
		response.Body.Close()
		t.Fatal("the sample answers instead of exiting")
	}
	second := h.await(r, "its successor", func(s workload.State) bool { return s.Ready == 1 && s.Instances[0].Name != first.Name }).Instances[0]
	if second.Address == first.Address {
		t.Errorf("both backends are at %s", first.Address)
	}
	for _, s := range h.published(r) {
		if s.Failure != nil {
			t.Errorf("a first crash is published as the failure %v", s.Failure)
		}
		if len(s.Instances) > 1 {
			t.Errorf("a dead backend is published beside its successor: %v", s.Instances)
		}
	}
}

// TestScaleDown checks that the newest backends are stopped, after they were published as draining and have drained.
func TestScaleDown(t *testing.T) {
	h := start(t, Options{})
	r := sample("down", "serve")
	h.apply(r, 1)
	oldest := h.await(r, "a backend", ready(1)).Instances[0]
	h.scale(r, 3)
	all := h.await(r, "three backends", ready(3))
	pid := ask(t, all.Instances[2].Address).Pid

	h.scale(r, 1)
	draining := h.await(r, "draining", func(s workload.State) bool { return s.Ready == 1 })
	if len(draining.Instances) != 3 || draining.Instances[0] != oldest || !draining.Instances[1].Draining || !draining.Instances[2].Draining {
		t.Fatalf("backends %v, want %v and two that are draining", draining.Instances, oldest)
	}
	// Draining backends finish their requests.
	if got := ask(t, all.Instances[2].Address).Pid; got != pid {
		t.Errorf("process %d answers at the draining backend, want %d", got, pid)
	}
	h.Drained(keyOf(r), oldest.Name)
	h.Drained(keyOf(r), draining.Instances[2].Name)
	h.await(r, "one to end", func(s workload.State) bool { return len(s.Instances) == 2 })
	if alive(pid) {
		t.Errorf("process %d of a drained backend is alive", pid)
	}
	h.Drained(keyOf(r), draining.Instances[1].Name)
	if s := h.await(r, "the other to end", ready(1)); s.Instances[0] != oldest {
		t.Errorf("%v remains, want the oldest, %v", s.Instances[0], oldest)
	}
	h.scale(r, 0)
	h.Drained(keyOf(r), oldest.Name)
	h.await(r, "the last to end", func(s workload.State) bool { return len(s.Instances) == 0 && s.UID == r.UID })
}

// TestDrainTimeout checks that a draining backend is terminated after timeoutSeconds, and killed after the same time if it
// ignores SIGTERM (serving 9.4.2).
func TestDrainTimeout(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	h := start(t, Options{Clock: clock})
	r := sample("stubborn", "serve", "IGNORE_TERM=1")
	h.apply(r, 1)
	i := h.await(r, "a backend", ready(1)).Instances[0]
	pid := ask(t, i.Address).Pid
	h.scale(r, 0)
	// The harness advances the clock by far less than the remaining second.
	clock.Step(29 * time.Second)
	ask(t, i.Address)
	clock.Step(time.Second)
	backends := func() []*backend {
		rev := h.revision(r)
		rev.Lock()
		defer rev.Unlock()
		return slices.Clone(rev.backends)
	}
	<-backends()[0].stopping
	h.eventually("the wait for the process", func() bool { return clock.HasWaiters() })
	clock.Step(10 * time.Second)
	ask(t, i.Address)
	h.eventually("the kill", func() bool {
		clock.Step(time.Second)
		return !alive(pid)
	})
	h.await(r, "the end", func(s workload.State) bool { return len(s.Instances) == 0 })
}

// TestUnready checks that a backend that was never ready stops without being drained.
func TestUnready(t *testing.T) {
	h := start(t, Options{})
	r := sample("unready", "sleep")
	h.apply(r, 1)
	rev := h.revision(r)
	h.scale(r, 0)
	h.eventually("the end", func() bool {
		rev.Lock()
		defer rev.Unlock()
		return len(rev.backends) == 0
	})
}

// TestRemove checks that a removed Revision is drained, then published as removed, unknown and without logs, and that
// another UID does not remove it.
func TestRemove(t *testing.T) {
	h := start(t, Options{})
	r := sample("removed", "serve")
	h.apply(r, 1)
	i := h.await(r, "a backend", ready(1)).Instances[0]
	if err := h.Remove(t.Context(), keyOf(r), "another", true); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	if s, ok := h.State(keyOf(r)); !ok || s.Ready != 1 {
		t.Fatalf("removing another UID leaves %v, %v", s, ok)
	}
	if err := h.Remove(t.Context(), keyOf(r), r.UID, true); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	h.await(r, "draining", func(s workload.State) bool { return len(s.Instances) == 1 && s.Instances[0].Draining })
	h.Drained(keyOf(r), i.Name)
	h.await(r, "the zero state", gone)
	h.eventually("forgetting", func() bool {
		return len(h.revisions.All()) == 0
	})
	if s, ok := h.State(keyOf(r)); ok {
		t.Errorf("a removed revision has the state %v", s)
	}
	if _, err := os.Stat(h.logs.Dir(keyOf(r))); err == nil {
		t.Error("its logs still exist")
	}
	if err := h.Scale(t.Context(), keyOf(r), 3); err != nil {
		t.Errorf("scaling an unknown revision: %v", err)
	}
}

// TestReplace checks that another UID with the same name starts with a new state while the old backend is drained.
func TestReplace(t *testing.T) {
	h := start(t, Options{})
	r := sample("again", "serve", "VERSION=1")
	h.apply(r, 1)
	old := h.await(r, "a backend", ready(1)).Instances[0]
	r = sample("again", "serve", "VERSION=2")
	r.UID = "second"
	if err := h.Apply(t.Context(), r, true); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	s, _ := h.State(keyOf(r))
	old.Draining = true
	if diff := cmp.Diff(workload.State{UID: "second", Instances: backendsOf(old), LogURL: s.LogURL}, s); diff != "" {
		t.Errorf("state after the second UID (-want +got):\n%s", diff)
	}
	h.scale(r, 1)
	s = h.await(r, "a new backend", func(s workload.State) bool { return s.Ready == 1 })
	if !slices.Contains(ask(t, s.Instances[1].Address).Env, "VERSION=2") {
		t.Error("the new backend runs the old revision")
	}
	h.Drained(keyOf(r), old.Name)
	h.await(r, "the old one to end", ready(1))
}

// TestCallback checks that a subscriber may call the Runtime: the gateway reports an idle backend as drained at once.
func TestCallback(t *testing.T) {
	h := start(t, Options{})
	h.Subscribe(func(key types.NamespacedName, s workload.State) {
		for _, i := range s.Instances {
			if i.Draining {
				h.Drained(key, i.Name)
			}
		}
	})
	r := sample("callback", "serve")
	h.apply(r, 2)
	h.await(r, "two backends", ready(2))
	if err := h.Remove(t.Context(), keyOf(r), r.UID, true); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	h.await(r, "the end", gone)
}

// TestStrays checks that no process outlives its backend, whether or not it has left the process group.
func TestStrays(t *testing.T) {
	h := start(t, Options{})
	r := sample("parent", "serve", "CHILDREN=1")
	h.apply(r, 1)
	i := h.await(r, "a backend", ready(1)).Instances[0]
	var pids []int
	// The mark of a process appears a moment after its start.
	h.eventually("three processes", func() bool {
		pids = marked(h.owner, func(string) bool { return true })
		return len(pids) == 3
	})
	h.scale(r, 0)
	h.Drained(keyOf(r), i.Name)
	for _, pid := range pids {
		h.eventually("the end of a process", func() bool { return !alive(pid) })
	}
}

// TestShutdown checks that a stopping server kills processes that ignore SIGTERM, within its time limits.
func TestShutdown(t *testing.T) {
	h := start(t, Options{GracePeriod: 100 * time.Millisecond})
	r := sample("shutdown", "serve", "IGNORE_TERM=1")
	h.apply(r, 1)
	pid := ask(t, h.await(r, "a backend", ready(1)).Instances[0].Address).Pid
	h.shutdown()
	if alive(pid) {
		t.Errorf("process %d is alive", pid)
	}
	if err := h.Apply(t.Context(), sample("late", "serve"), true); err == nil {
		t.Error("a stopped server accepts a Revision")
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d is not reaped", pid)
	}
}

// TestStartOf checks that the steps of a process's start are known once it is ready, in order.
func TestStartOf(t *testing.T) {
	h := start(t, Options{})
	r := sample("started", "serve")
	began := time.Now()
	h.apply(r, 1)
	name := h.await(r, "a backend", ready(1)).Instances[0].Name
	s, ok := h.StartOf(keyOf(r), name)
	times := []time.Time{began, s.Scaled, s.Created, s.Started, s.Ready, time.Now()}
	if !ok || !slices.IsSortedFunc(times, time.Time.Compare) || !s.Scheduled.IsZero() {
		t.Errorf("%t, %+v", ok, s)
	}
	if _, ok := h.StartOf(keyOf(r), "another"); ok {
		t.Error("an unknown backend has a start")
	}
}
