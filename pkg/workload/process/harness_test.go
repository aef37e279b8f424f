//go:build linux

package process

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// testTimeout bounds the time to wait for something that should happen at once. Samples that the tests do not kill run for longer.
const testTimeout = 30 * time.Second

// sample returns a Revision whose only container is this test binary in one of its modes.
func sample(name, mode string, env ...string) *servingv1.Revision {
	c := corev1.Container{Name: "user-container", Command: []string{"/proc/self/exe"}}
	if exe, err := os.Executable(); err == nil {
		c.Command = []string{exe}
	}
	c.Env = []corev1.EnvVar{{Name: sampleVariable, Value: mode}}
	for _, variable := range env {
		name, value, _ := strings.Cut(variable, "=")
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
	return &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-of-" + name),
			Labels: map[string]string{servingv1.ServiceLabelKey: "svc", servingv1.ConfigurationLabelKey: "cfg"},
		},
		Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{c}}, TimeoutSeconds: ptr.To[int64](30)},
	}
}

func keyOf(r *servingv1.Revision) types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
}

// harness is a Runtime with its subscriber.
type harness struct {
	*Runtime
	t     *testing.T
	clock *clocktesting.FakeClock

	mu      sync.Mutex
	states  map[types.NamespacedName][]workload.State
	changed chan struct{}
}

// start runs a Runtime until the test ends, and then checks that no process remains.
func start(t *testing.T, o Options) *harness {
	t.Helper()
	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	if o.Objects == nil {
		o.Objects = &fakeObjects{}
	}
	o.Logger = klog.NewKlogr().V(5)
	// By default, no backend has requests to drain.
	if o.DrainTimeout == 0 {
		o.DrainTimeout = time.Millisecond
	}
	if o.GracePeriod == 0 {
		o.GracePeriod = 500 * time.Millisecond
	}
	h := &harness{t: t, states: map[types.NamespacedName][]workload.State{}, changed: make(chan struct{}, 1)}
	h.clock, _ = o.Clock.(*clocktesting.FakeClock)
	var err error
	h.Runtime, err = New(o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	h.Subscribe(func(key types.NamespacedName, s workload.State) {
		h.mu.Lock()
		h.states[key] = append(h.states[key], s)
		h.mu.Unlock()
		select {
		case h.changed <- struct{}{}:
		default:
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		h.Run(ctx)
		close(done)
	}()
	stop := func() {
		cancel()
		h.eventually("the runtime to end", func() bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		defer h.owner.killMarked(func(string) bool { return false })
		// SIGKILL takes effect with a delay.
		h.eventually("the end of all processes", func() bool { return len(marked(h.owner, func(string) bool { return true })) == 0 })
	}
	t.Cleanup(stop)
	return h
}

// revision returns the data of a Revision.
func (h *harness) revision(r *servingv1.Revision) *revision {
	h.t.Helper()
	found, ok := h.revisions.Lock(keyOf(r))
	if !ok {
		h.t.Fatalf("revision %s is unknown", r.Name)
	}
	found.Unlock()
	return found
}

// apply registers a Revision and scales it.
func (h *harness) apply(r *servingv1.Revision, replicas int32) {
	h.t.Helper()
	if err := h.Apply(h.t.Context(), r, true); err != nil {
		h.t.Fatalf("Apply: %v", err)
	}
	h.scale(r, replicas)
}

func (h *harness) scale(r *servingv1.Revision, replicas int32) {
	h.t.Helper()
	if err := h.Scale(h.t.Context(), keyOf(r), replicas); err != nil {
		h.t.Fatalf("Scale: %v", err)
	}
}

// published returns all states so far.
func (h *harness) published(r *servingv1.Revision) []workload.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]workload.State(nil), h.states[keyOf(r)]...)
}

// await waits until the latest published State satisfies ok, and returns it. A fake clock advances meanwhile.
func (h *harness) await(r *servingv1.Revision, what string, ok func(workload.State) bool) workload.State {
	h.t.Helper()
	var last workload.State
	h.eventually(what, func() bool {
		if all := h.published(r); len(all) > 0 {
			last = all[len(all)-1]
			return ok(last)
		}
		return false
	})
	return last
}

// eventually waits for a condition, checking it after each published State and every millisecond. A fake clock advances by
// a millisecond each time, so that tight probes continue.
func (h *harness) eventually(what string, ok func() bool) {
	h.t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, testTimeout, true, func(context.Context) (bool, error) {
		if h.clock != nil {
			h.clock.Step(time.Millisecond)
		}
		return ok(), nil
	})
	if err != nil {
		h.t.Fatalf("waiting for %s: %v", what, err)
	}
}

func ready(n int32) func(workload.State) bool {
	return func(s workload.State) bool { return s.Ready == n && len(s.Instances) == int(n) }
}

func failing(s workload.State) bool { return s.Failure != nil }

func gone(s workload.State) bool { return s.UID == "" }

// ask returns the facts that a sample reports.
func ask(t *testing.T, address string) facts {
	t.Helper()
	response, err := http.Get("http://" + address + "/")
	if err != nil {
		t.Fatalf("asking the sample: %v", err)
	}
	defer response.Body.Close()
	var f facts
	if err := json.NewDecoder(response.Body).Decode(&f); err != nil {
		t.Fatalf("asking the sample: %v", err)
	}
	return f
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	_, err := startTime(pid)
	return err == nil
}

// marked returns the processes marked with a matching backend.
func marked(o *owner, want func(backend string) bool) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	var buffer bytes.Buffer
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if backend, ok := o.backend(pid, &buffer); ok && want(backend) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func backendsOf(backends ...workload.Instance) []workload.Instance { return backends }

// killSample kills the process that serves an address.
func killSample(t *testing.T, address string) {
	t.Helper()
	if err := syscall.Kill(ask(t, address).Pid, syscall.SIGKILL); err != nil {
		t.Fatalf("killing the sample: %v", err)
	}
}
