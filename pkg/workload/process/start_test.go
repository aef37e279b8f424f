//go:build linux

package process

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// TestColdStart checks that backends started one after the other become ready, and logs the durations of a start's phases.
func TestColdStart(t *testing.T) {
	h := start(t, Options{})
	var mu sync.Mutex
	var at time.Time
	h.Subscribe(func(_ types.NamespacedName, s workload.State) {
		mu.Lock()
		defer mu.Unlock()
		if s.Ready == 1 && at.IsZero() {
			at = time.Now()
		}
	})
	var total, before, after, alone []time.Duration
	for n := range 15 {
		r := sample(fmt.Sprintf("cold-%d", n), "serve")
		if err := h.Apply(t.Context(), r, true); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		at = time.Time{}
		mu.Unlock()
		scaled := time.Now()
		h.scale(r, 1)
		i := h.await(r, "a backend", ready(1)).Instances[0]
		f := ask(t, i.Address)
		mu.Lock()
		total = append(total, at.Sub(scaled))
		before = append(before, f.Started.Sub(scaled))
		after = append(after, at.Sub(f.Listening))
		mu.Unlock()
		h.scale(r, 0)
		h.Drained(keyOf(r), i.Name)
		h.await(r, "the end", func(s workload.State) bool { return len(s.Instances) == 0 })
		alone = append(alone, startAlone(t, r))
	}
	median := func(times []time.Duration) time.Duration {
		slices.Sort(times)
		return times[len(times)/2].Round(10 * time.Microsecond)
	}
	t.Logf("medians: scale to ready %v, of which until main %v, from listening on %v; the process alone, from fork to connection %v",
		median(total), median(before), median(after), median(alone))
}

// startAlone returns the time from starting the process of a Revision until it accepts a connection, without a Runtime.
func startAlone(t *testing.T, r *servingv1.Revision) time.Duration {
	t.Helper()
	ports := newPorts()
	port, err := ports.allocate()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(r.Spec.Containers[0].Command[0])
	cmd.Env = append(os.Environ(), sampleVariable+"=serve", "PORT="+strconv.Itoa(port))
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	for time.Since(began) < testTimeout {
		if conn, err := net.Dial("tcp", net.JoinHostPort(loopback, strconv.Itoa(port))); err == nil {
			conn.Close()
			return time.Since(began)
		}
	}
	t.Fatal("the sample does not listen")
	return 0
}

// TestManyAtOnce checks that hundreds of backends that start at the same time all become ready, and that idle backends need
// no CPU time and no thread each.
func TestManyAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("starts hundreds of processes")
	}
	const revisions = 200
	h := start(t, Options{})
	var all []*servingv1.Revision
	began := time.Now()
	for n := range revisions {
		r := sample(fmt.Sprintf("many-%d", n), "serve")
		// The program is small, because the test measures the Runtime.
		c := &r.Spec.Containers[0]
		c.Command = []string{"sleep", "60"}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}, PeriodSeconds: 3600, TimeoutSeconds: 60}
		h.apply(r, 1)
		all = append(all, r)
	}
	for _, r := range all {
		h.await(r, "a backend", ready(1))
	}
	t.Logf("%d backends are ready after %v", revisions, time.Since(began))
	cpu := func() time.Duration {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			t.Fatal(err)
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	// Work that remains after the starts, such as garbage collection, takes a while on a busy machine.
	var spent time.Duration
	for began = time.Now(); time.Since(began) < testTimeout; {
		before := cpu()
		<-time.After(500 * time.Millisecond)
		if spent = cpu() - before; spent <= 100*time.Millisecond {
			break
		}
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("at rest: %v of processor time in half a second, %d threads", spent, len(threads))
	if spent > 100*time.Millisecond {
		t.Errorf("%d backends at rest cost %v of processor time in half a second", revisions, spent)
	}
	// A slow process has more threads, because system calls block them.
	if len(threads) >= revisions {
		t.Errorf("%d threads for %d backends", len(threads), revisions)
	}
	began = time.Now()
	h.shutdown()
	t.Logf("all have ended after %v", time.Since(began))
}
