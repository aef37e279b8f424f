//go:build linux

package process

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

var tcp = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}

// TestProbeNumbers checks the times of checks, and when their results change the state (serving 10.9-2, 10.9-4 to 10.9-7).
func TestProbeNumbers(t *testing.T) {
	failed := errors.New("failed")
	exec := corev1.ProbeHandler{Exec: &corev1.ExecAction{}}
	// report is a reported state of the container, with its time in seconds.
	type report struct {
		At      float64
		Healthy bool
	}
	for name, test := range map[string]struct {
		kind func(*corev1.Probe, check) *probe
		spec corev1.Probe
		// Checks pass between from and to, in seconds. If hang is true, all others run into their timeout.
		from, to float64
		hang     bool
		want     []report
		// checks is the expected number of checks within 100 seconds, or 0 for any.
		checks int
	}{
		"readiness by connecting, tight and once": {
			kind: newReadinessProbe, spec: corev1.Probe{ProbeHandler: tcp}, from: 0.005, to: 100,
			want: []report{{0.005, true}}, checks: 6,
		},
		"readiness, tight and then with the default period": {
			kind: newReadinessProbe, spec: corev1.Probe{ProbeHandler: exec}, from: 0.005, to: 50,
			want: []report{{0.005, true}, {70.005, false}}, checks: 15,
		},
		"readiness with a period": {
			kind: newReadinessProbe, spec: corev1.Probe{ProbeHandler: tcp, InitialDelaySeconds: 2, PeriodSeconds: 5, FailureThreshold: 2, SuccessThreshold: 3},
			from: 6, to: 30, want: []report{{17, true}, {37, false}}, checks: 20,
		},
		"readiness that does not pass changes nothing": {
			kind: newReadinessProbe, spec: corev1.Probe{ProbeHandler: exec, PeriodSeconds: 1}, from: 200,
		},
		"liveness": {
			kind: newLivenessProbe, spec: corev1.Probe{ProbeHandler: exec, PeriodSeconds: 10, FailureThreshold: 3}, from: 0, to: 15,
			want: []report{{40, false}}, checks: 9,
		},
		"liveness with the defaults of core/v1": {
			kind: newLivenessProbe, spec: corev1.Probe{ProbeHandler: exec, InitialDelaySeconds: 5}, from: 0, to: 6,
			want: []report{{35, false}}, checks: 10,
		},
		"timeout": {
			kind: newLivenessProbe, spec: corev1.Probe{ProbeHandler: exec, PeriodSeconds: 10, TimeoutSeconds: 4, FailureThreshold: 1}, from: 0, to: 5, hang: true,
			want: []report{{14, false}},
		},
		"startup": {
			kind: newStartupProbe, spec: corev1.Probe{ProbeHandler: exec, PeriodSeconds: 3, FailureThreshold: 10}, from: 8, to: 100,
			want: []report{{9, true}}, checks: 4,
		},
		"startup that fails": {
			kind: newStartupProbe, spec: corev1.Probe{ProbeHandler: exec, PeriodSeconds: 20, FailureThreshold: 4}, from: 200,
			want: []report{{60, false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				at := func() float64 { return time.Since(began).Seconds() }
				checks := 0
				p := test.kind(&test.spec, within(func(ctx context.Context) error {
					checks++
					if at() >= test.from && at() < test.to {
						return nil
					}
					if test.hang {
						<-ctx.Done()
					}
					return failed
				}))
				ctx, cancel := context.WithTimeout(t.Context(), 99500*time.Millisecond)
				defer cancel()
				var got []report
				p.watch(ctx, clock.RealClock{}, &pacer{}, func(err error) { got = append(got, report{at(), err == nil}) })
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("reports (-want +got):\n%s", diff)
				}
				if test.checks != 0 && checks != test.checks {
					t.Errorf("%d checks, want %d", checks, test.checks)
				}
			})
		})
	}
}

// TestTightStartup checks that a startup probe without a period is tight, and fails after the time that the default period
// allows.
func TestTightStartup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		checks, after := 0, time.Duration(0)
		p := newStartupProbe(&corev1.Probe{ProbeHandler: tcp}, within(func(context.Context) error {
			checks++
			return errors.New("failed")
		}))
		var pace pacer
		p.watch(ctx, clock.RealClock{}, &pace, func(error) {
			after = time.Since(began)
			cancel()
		})
		if after < 30*time.Second || after > 31*time.Second {
			t.Errorf("failed after %v, want 3 times 10 s", after)
		}
		if checks < 200 || checks > 2000 {
			t.Errorf("%d checks in 30 s, want some hundreds", checks)
		}
		if n := pace.starting.Load(); n != 0 {
			t.Errorf("%d backends still count as starting", n)
		}
	})
}

func TestInterval(t *testing.T) {
	for name, test := range map[string]struct {
		elapsed, took time.Duration
		starting      int64
		want          time.Duration
	}{
		"at first":              {want: time.Millisecond},
		"some time later":       {elapsed: 100 * time.Millisecond, want: 5 * time.Millisecond},
		"in the first second":   {elapsed: time.Second, want: 10 * time.Millisecond},
		"slow starter":          {elapsed: 10 * time.Second, want: 100 * time.Millisecond},
		"never":                 {elapsed: time.Hour, want: time.Second},
		"costly check":          {took: 10 * time.Millisecond, want: 40 * time.Millisecond},
		"many at the same time": {starting: 100, want: 50 * time.Millisecond},
		"too many":              {starting: 10000, want: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			var p pacer
			p.starting.Store(test.starting)
			if got := p.interval(test.elapsed, test.took); got != test.want {
				t.Errorf("interval %v, want %v", got, test.want)
			}
		})
	}
}

// TestReadiness checks that each kind of readiness probe finds a backend ready at PORT (serving 10.4-10, 10.9-1, 10.9-3,
// 10.9-6), regardless of the port that the probe names.
func TestReadiness(t *testing.T) {
	healthy := filepath.Join(t.TempDir(), "healthy")
	if err := os.WriteFile(healthy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	port := intstr.FromInt32(8080)
	for name, test := range map[string]struct {
		handler corev1.ProbeHandler
		env     []string
		h2c     bool
	}{
		"tcp":  {handler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}},
		"http": {handler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthy?a=b", Port: port}}},
		"http of h2c": {
			handler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "healthy"}}, env: []string{"H2C=1"}, h2c: true,
		},
		"grpc": {handler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Service: ptr.To("sample")}}, env: []string{"GRPC=1"}},
		"exec": {handler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", healthy}}}},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t, Options{})
			r := sample("ready", "serve", append(test.env, "HEALTHY_FILE="+healthy)...)
			c := &r.Spec.Containers[0]
			c.Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
			if test.h2c {
				c.Ports[0].Name = "h2c"
			}
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: test.handler}
			h.apply(r, 1)
			h.await(r, "a backend", ready(1))
		})
	}
}

// unhealthy returns a Revision that is unhealthy until a file exists.
func unhealthy(t *testing.T, name string) (r *servingv1.Revision, file string, get corev1.ProbeHandler) {
	file = filepath.Join(t.TempDir(), "healthy")
	return sample(name, "serve", "HEALTHY_FILE="+file), file, corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthy"}}
}

// TestReadinessChanges checks that a backend is published only while its readiness probe passes.
func TestReadinessChanges(t *testing.T) {
	h := start(t, Options{})
	r, file, get := unhealthy(t, "flapping")
	r.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: get, PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 1}
	h.apply(r, 1)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	i := h.await(r, "a backend", ready(1)).Instances[0]
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.await(r, "it to be unready", func(s workload.State) bool { return len(s.Instances) == 0 })
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if current := h.await(r, "it to be ready again", ready(1)).Instances[0]; current != i {
		t.Errorf("backend %v, want the same, %v", current, i)
	}
}

// TestHealthPort checks that a probe may use another port than the one for requests, and that a probe of the container's
// own port uses PORT.
func TestHealthPort(t *testing.T) {
	h := start(t, Options{})
	var healthy atomic.Bool
	asked := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !healthy.Load() || r.URL.Path != "/healthy" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		select {
		case asked <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	r := sample("health-port", "serve")
	c := &r.Spec.Containers[0]
	c.Ports = []corev1.ContainerPort{{Name: "http1", ContainerPort: 8080}}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthy", Port: intstr.FromInt(number)}}}
	h.apply(r, 1)
	<-asked
	if s := h.published(r); len(s) > 0 && s[len(s)-1].Ready > 0 {
		t.Error("it is ready although the probe of its health port fails")
	}
	healthy.Store(true)
	h.await(r, "a backend", ready(1))
	for _, own := range []intstr.IntOrString{intstr.FromInt(8080), intstr.FromString("http1"), {}} {
		if got, err := (&container{Container: c, serving: true}).port(12345, own.String()); got != 12345 || err != nil {
			t.Errorf("a probe of port %s uses %d, %v; want PORT", own.String(), got, err)
		}
	}
}

// TestLiveness checks that a backend is replaced after its liveness probe fails (serving 10.4-7).
func TestLiveness(t *testing.T) {
	h := start(t, Options{})
	r, file, get := unhealthy(t, "liveness")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &r.Spec.Containers[0]
	// Liveness is probed once the sample listens, so that its response is the cause of each failure.
	c.StartupProbe = &corev1.Probe{ProbeHandler: tcp, FailureThreshold: 6}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: get, PeriodSeconds: 1, TimeoutSeconds: 20, FailureThreshold: 1}
	h.apply(r, 1)
	i := h.await(r, "a backend", ready(1)).Instances[0]
	pid := ask(t, i.Address).Pid
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.await(r, "its successor", func(s workload.State) bool { return s.Ready == 1 && s.Instances[0].Name != i.Name })
	h.eventually("its end", func() bool { return !alive(pid) })
	s := h.await(r, "the failure of the successor", failing)
	if s.Failure.Reason != "Unhealthy" || s.Failure.Message != "Container failed its liveness probe: GET /healthy: status 500." {
		t.Errorf("failure %+v", s.Failure)
	}
}

// TestStartup checks that readiness is not probed before the startup probe has passed, and that a startup probe that does
// not pass is a failure.
func TestStartup(t *testing.T) {
	h := start(t, Options{})
	r, file, get := unhealthy(t, "startup")
	r.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: get, PeriodSeconds: 1, FailureThreshold: 1}
	h.apply(r, 1)
	s := h.await(r, "the failure", failing)
	// The cause differs: the sample may not listen yet.
	if s.Failure.Reason != "Unhealthy" || !strings.HasPrefix(s.Failure.Message, "Container failed its startup probe: ") {
		t.Errorf("failure %+v", s.Failure)
	}
	if s.Ready != 0 {
		t.Error("it is ready before its startup probe has passed")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.UID, r.Spec.Containers[0].StartupProbe.PeriodSeconds = "tight", 0
	h.apply(r, 1)
	if s := h.await(r, "a backend", ready(1)); s.Failure != nil {
		t.Errorf("failure %+v of a ready revision", s.Failure)
	}
}
