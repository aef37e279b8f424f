package serving

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestHealthPort covers probes of the serving container at another port than the one for requests: a Revision whose Pod answers
// requests is ready once the health port responds, not earlier. The Pod has the template's grace period for a failed liveness
// probe (serving 10.4-7, 10.9).
func TestHealthPort(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "health", nil)
	const port, grace = 8081, 7
	health := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)}}
	s.apply(t, s.app("hello", revisionName("one"), container(func(c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: health}
		// The container must not be restarted before the port responds.
		c.LivenessProbe = &corev1.Probe{ProbeHandler: health, TerminationGracePeriodSeconds: ptr.To[int64](grace), FailureThreshold: 100}
	})))
	eventually(t, s.Admin.Knative.ServingV1().Services(s.namespace), "hello", "reports that its health port has no listener", func(service *servingv1.Service) error {
		ready := service.Status.Conditions.Get(duckv1.ConditionReady)
		if ready == nil || ready.Status != corev1.ConditionFalse || !strings.Contains(ready.Message, fmt.Sprintf("It must listen on port %d, which the probe names", port)) {
			return fmt.Errorf("its conditions are %+v", service.Status.Conditions)
		}
		return nil
	})
	pods, err := s.pods(t.Context(), "hello-one")
	if err != nil || len(pods) != 1 {
		t.Fatalf("got %d Pods, %v", len(pods), err)
	}
	if got := pods[0].Spec.Containers[0].LivenessProbe; got.HTTPGet.Port.IntValue() != port || ptr.Deref(got.TerminationGracePeriodSeconds, 0) != grace {
		t.Errorf("the liveness probe of the Pod is %+v, want port %d and %d seconds", got, port, grace)
	}
	// Requests that bypass the gateway.
	direct := "http://" + pods[0].Status.PodIP + ":8080"
	// The kubelet may report the failed probe before the application listens.
	until(t, "the Pod answers", func() error {
		a, err := ask(t.Context(), http.DefaultClient, http.MethodGet, direct, nil, nil)
		if err == nil && (a.code != http.StatusOK || a.body != "Hello World!\n") {
			err = fmt.Errorf("it answers %+v", a)
		}
		return err
	})
	if a, err := ask(t.Context(), http.DefaultClient, http.MethodGet, fmt.Sprintf("%s/listen?port=%d", direct, port), nil, nil); err != nil || a.code != http.StatusNoContent {
		t.Fatalf("opening the health port: %+v, %v", a, err)
	}
	service := s.ready(t, "hello")
	if got := s.get(t, service.Status.URL); got != "Hello World!\n" {
		t.Errorf("it answers %q", got)
	}
	if got := s.untilPods(t, "hello-one", 1)[0]; got.UID != pods[0].UID || got.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("Pod %s is ready after %d restarts, want the container of Pod %s", got.Name, got.Status.ContainerStatuses[0].RestartCount, pods[0].Name)
	}
}
