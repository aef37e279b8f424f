package serving

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// container changes the serving container.
func container(change func(*corev1.Container)) option {
	return func(s *servingv1.Service) { change(&s.Spec.Template.Spec.Containers[0]) }
}

// TestHealthPort checks that a Service whose probes use another port than requests is ready once that port responds, not
// earlier, and that the grace period of a failed liveness probe is accepted (serving 10.4-7, 10.9).
func TestHealthPort(t *testing.T) {
	t.Parallel()
	var healthy atomic.Bool
	asked := make(chan struct{}, 1)
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ready" {
			return
		}
		if !healthy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		select {
		case asked <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(health.Close)
	_, text, err := net.SplitHostPort(health.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(port)}}
	}
	service := app(t, namespace(), "health-port", container(func(c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: get("/ready")}
		c.LivenessProbe = &corev1.Probe{ProbeHandler: get("/live"), TerminationGracePeriodSeconds: ptr.To[int64](5)}
	}))
	stored := shared.apply(t, service)
	if got := ptr.Deref(stored.Spec.Template.Spec.Containers[0].LivenessProbe.TerminationGracePeriodSeconds, 0); got != 5 {
		t.Errorf("terminationGracePeriodSeconds of the stored liveness probe is %d, want 5", got)
	}
	// The second probe shows that the first failure was handled.
	<-asked
	<-asked
	unready := read(t, shared.Knative.ServingV1().Services(service.Namespace), service.Name)
	if ready := unready.Status.Conditions.Get(duckv1.ConditionReady); ready != nil && ready.Status == corev1.ConditionTrue {
		t.Errorf("the Service is ready although its health port has no listener: %+v", ready)
	}
	healthy.Store(true)
	if got := shared.mustGet(t, shared.ready(t, service.Namespace, service.Name).Status.URL); got != "Hello World!\n" {
		t.Errorf("it answers %q", got)
	}

	service.Name, service.ObjectMeta.ResourceVersion = "refused", ""
	service.Spec.Template.Spec.Containers[0].ReadinessProbe.TerminationGracePeriodSeconds = ptr.To[int64](5)
	_, err = shared.Knative.ServingV1().Services(service.Namespace).Create(t.Context(), service, metav1.CreateOptions{})
	wantError(t, err, "spec.template.spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Forbidden")
}
