package kubernetes

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	testport "github.com/knative-apiserver/knative-apiserver/test/port"
)

// listening returns a port of the loopback interface that accepts connections until stop is called.
func listening(t *testing.T) (port int32, stop func()) {
	t.Helper()
	listener := testport.Listen(t)
	return int32(listener.Addr().(*net.TCPAddr).Port), func() { listener.Close() }
}

// probedAt sets the readiness probe of a Pod to a port of the loopback interface.
func probedAt(port int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.PodIP = "127.0.0.1"
		p.Spec.Containers[0].Ports[0].ContainerPort = port
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)},
		}}
	}
}

// running returns a Runtime with a Revision and its Deployment.
func running(t *testing.T, change func(*Options)) *harness {
	t.Helper()
	d := newDeployment(newRevision(), plan{replicas: 1})
	d.UID = "deployment"
	h := newHarness(t, change, d)
	h.apply(t.Context(), newRevision())
	return h
}

func TestProbeIsFasterThanTheKubelet(t *testing.T) {
	port, stop := listening(t)
	synctest.Test(t, func(t *testing.T) {
		h := running(t, nil)
		began := time.Now()
		h.put(newBackendPod("a", probedAt(port)))
		if got := h.state(); got.Ready != 1 {
			t.Fatalf("%d ready, want the Pod that accepts requests", got.Ready)
		}
		if took := time.Since(began); took > minInterval {
			t.Errorf("ready after %v, want at once", took)
		}
		// Until the kubelet reports a state, the Pod must pass the probes of this server.
		stop()
		<-time.After(2 * maxInterval)
		if got := h.state(); got.Ready != 0 {
			t.Errorf("%d ready, want none once nothing listens", got.Ready)
		}
		h.put(newBackendPod("a", probedAt(port), isReady))
		if got := h.state(); got.Ready != 1 {
			t.Errorf("%d ready, want the kubelet's state", got.Ready)
		}
		h.put(newBackendPod("a", probedAt(port)))
		if got := h.state(); got.Ready != 0 {
			t.Errorf("%d ready, want the kubelet's state", got.Ready)
		}
	})
}

func TestProbeFindsAWrongPort(t *testing.T) {
	port, stop := listening(t)
	stop()
	synctest.Test(t, func(t *testing.T) {
		h := running(t, nil)
		h.put(newBackendPod("a", probedAt(port)))
		<-time.After(3 * time.Second)
		if got := h.state(); got.Failure != nil {
			t.Fatalf("failure %+v, want none while the container may be starting", got.Failure)
		}
		<-time.After(5 * time.Second)
		got := h.state()
		if got.Failure == nil || got.Failure.Reason != "Unhealthy" || got.Failure.Resources ||
			!strings.HasPrefix(got.Failure.Message, `Container "user-container" failed its readiness probe: dial tcp 127.0.0.1:`) {
			t.Fatalf("failure %+v, want the failure of the probe", got.Failure)
		}
		h.put(newBackendPod("a", probedAt(port), isReady))
		if got := h.state(); got.Failure != nil {
			t.Errorf("failure %+v, want none once it is ready", got.Failure)
		}
	})
}

// TestProbesOfOtherPorts checks probes of a separate health port, and that a native sidecar determines the readiness of the
// Pod too.
func TestProbesOfOtherPorts(t *testing.T) {
	tcp := func(port int32) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}}
	}
	for name, failing := range map[string]string{"ready": "", "the health port": "main", "the sidecar": "proxy"} {
		t.Run(name, func(t *testing.T) {
			health, stopHealth := listening(t)
			proxy, stopProxy := listening(t)
			want := ""
			switch failing {
			case "main":
				stopHealth()
				want = fmt.Sprintf("It must listen on port %d, which the probe names, on all addresses.", health)
			case "proxy":
				stopProxy()
				want = fmt.Sprintf(`Container "proxy" failed its readiness probe: dial tcp 127.0.0.1:%d`, proxy)
			}
			synctest.Test(t, func(t *testing.T) {
				h := running(t, nil)
				h.put(newBackendPod("a", probedAt(health), func(p *corev1.Pod) {
					p.Spec.InitContainers = []corev1.Container{
						{Name: "prepare", ReadinessProbe: tcp(1)},
						{Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), ReadinessProbe: tcp(proxy)},
					}
					p.Spec.Containers[0].Ports[0].ContainerPort = 1
				}))
				<-time.After(10 * time.Second)
				got := h.state()
				switch {
				case want == "" && (got.Ready != 1 || got.Failure != nil):
					t.Errorf("%d ready, failure %+v, want the Pod", got.Ready, got.Failure)
				case want != "" && (got.Ready != 0 || got.Failure == nil || !strings.Contains(got.Failure.Message, want)):
					t.Errorf("%d ready, failure %+v, want %q", got.Ready, got.Failure, want)
				}
			})
		})
	}
}

func TestProbesLeftToTheKubelet(t *testing.T) {
	port, _ := listening(t)
	tests := map[string]func(*corev1.Pod){
		"a program": func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{}}
		},
		"several in row":  func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe.SuccessThreshold = 2 },
		"not started yet": func(p *corev1.Pod) { p.Status.ContainerStatuses[0].State = corev1.ContainerState{} },
		"another container is missing": func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "sidecar"})
		},
		"it is deleted": isDeleted,
		"initial delay": func(p *corev1.Pod) { p.Spec.Containers[0].ReadinessProbe.InitialDelaySeconds = 60 },
		"startup probe fails": func(p *corev1.Pod) {
			p.Spec.Containers[0].StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(1)},
			}}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := running(t, nil)
				h.put(newBackendPod("a", probedAt(port), change))
				<-time.After(10 * time.Second)
				if got := h.state(); got.Ready != 0 || got.Failure != nil {
					t.Errorf("%d ready, failure %+v, want none", got.Ready, got.Failure)
				}
			})
		})
	}
}

func TestCheckHTTP(t *testing.T) {
	var status atomic.Int32
	var host atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host.Store(r.Host + r.URL.String())
		w.WriteHeader(int(status.Load()))
	}))
	defer server.Close()
	port := server.Listener.Addr().(*net.TCPAddr).Port
	c := &corev1.Container{Ports: []corev1.ContainerPort{{Name: "http1", ContainerPort: int32(port)}}}
	check := newCheck(&corev1.Probe{TimeoutSeconds: 60, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: "ready?deep=1", Port: intstr.FromString("http1"), HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "cart"}},
	}}}, c, "127.0.0.1")
	for code, want := range map[int32]bool{200: true, 302: true, 404: false, 503: false} {
		status.Store(code)
		if err := check(t.Context()); (err == nil) != want {
			t.Errorf("status %d: %v, want passed: %t", code, err, want)
		}
	}
	if got := host.Load(); got != "cart/ready?deep=1" {
		t.Errorf("asked for %q, want cart/ready?deep=1", got)
	}
}

func TestPacer(t *testing.T) {
	var p pacer
	tests := map[string]struct {
		starting int
		elapsed  time.Duration
		want     time.Duration
	}{
		"at first":        {starting: 1, want: 10 * time.Millisecond},
		"after a while":   {starting: 1, elapsed: 2 * time.Second, want: 100 * time.Millisecond},
		"after long":      {starting: 1, elapsed: time.Hour, want: time.Second},
		"with many":       {starting: 50, want: 100 * time.Millisecond},
		"with very many":  {starting: 5000, want: time.Second},
		"after they left": {want: 10 * time.Millisecond},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for range test.starting {
				defer p.enter()()
			}
			if got := p.interval(test.elapsed); got != test.want {
				t.Errorf("interval %v, want %v", got, test.want)
			}
		})
	}
}

// TestInspection checks that the newest warning Event of a Pod without containers is its failure, including later Events,
// and only while the Pod has no containers. Only the leader watches Events, and only while such a Pod exists.
func TestInspection(t *testing.T) {
	event := func(name, reason, message string, at time.Duration) *corev1.Event {
		e := &corev1.Event{InvolvedObject: corev1.ObjectReference{UID: "a"}, Type: corev1.EventTypeWarning, Reason: reason, Message: message}
		e.Namespace, e.Name = key.Namespace, name
		e.LastTimestamp.Time = time.Unix(0, 0).Add(at)
		return e
	}
	ofContainer := event("5", "BackOff", "Back-off restarting failed container", 5)
	ofContainer.InvolvedObject.FieldPath = "spec.containers{user-container}"
	creating := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	}
	synctest.Test(t, func(t *testing.T) {
		var leads atomic.Bool
		d := newDeployment(newRevision(), plan{replicas: 1})
		h := newHarness(t, func(o *Options) { o.Leading = leads.Load }, d,
			event("1", "FailedMount", "old", 1),
			event("2", "FailedMount", `secret "token" not found`, 2),
			event("3", "FailedScheduling", "0/1 nodes are available", 3), ofContainer)
		h.apply(t.Context(), newRevision())
		watches := func() (n int) {
			for _, action := range h.client.Actions() {
				if action.Matches("watch", "events") {
					n++
				}
			}
			return n
		}
		fails := func(want *workload.Failure) {
			t.Helper()
			synctest.Wait()
			if got := h.state().Failure; !reflect.DeepEqual(got, want) {
				t.Fatalf("failure %+v, want %+v", got, want)
			}
		}
		h.put(newBackendPod("a", creating))
		<-time.After(firstInspection)
		fails(nil)
		if n := watches(); n != 0 {
			t.Fatalf("a replica that does not lead watches Events %d times", n)
		}
		leads.Store(true)
		<-time.After(nextInspection)
		fails(&workload.Failure{Resources: true, Reason: "FailedMount", Message: `secret "token" not found`})
		if _, err := h.client.CoreV1().Events(key.Namespace).Create(t.Context(), event("4", "FailedMount", "it is there, and wrong", 4), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		fails(&workload.Failure{Resources: true, Reason: "FailedMount", Message: "it is there, and wrong"})
		h.put(newBackendPod("a"))
		fails(nil)
		if n := watches(); n != 1 || len(h.warnings.namespaces) != 0 {
			t.Errorf("Events were watched %d times, and are in %d namespaces", n, len(h.warnings.namespaces))
		}
		h.put(newBackendPod("a", creating))
		<-time.After(firstInspection)
		fails(&workload.Failure{Resources: true, Reason: "FailedMount", Message: "it is there, and wrong"})
	})
}
