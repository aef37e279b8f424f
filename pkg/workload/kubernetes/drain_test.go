package kubernetes

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// hook calls DrainHandler as the kubelet does, and returns the recorder of its response.
func (h *harness) hook() *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	answer.Code = 0
	request := httptest.NewRequestWithContext(h.t.Context(), http.MethodGet, "/drain/shop/cart-00001", nil)
	go h.DrainHandler().ServeHTTP(answer, request)
	return answer
}

func TestPodIsHeldUntilItHasDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := running(t, nil)
		h.put(newBackendPod("a", isReady))
		h.put(newBackendPod("b", isReady))
		h.Drained(key, "a") // it is not draining yet
		answer := h.hook()
		// The kubelet observes the deletion before this server does.
		h.put(newBackendPod("a", isDeleted))
		<-time.After(20 * time.Second)
		if synctest.Wait(); answer.Code != 0 {
			t.Fatalf("answered with %d, want it held", answer.Code)
		}
		h.Drained(key, "b")
		synctest.Wait()
		if answer.Code != 0 {
			t.Fatalf("answered with %d once another backend had drained, want it held", answer.Code)
		}
		h.Drained(key, "a")
		h.Drained(key, "a")
		if synctest.Wait(); answer.Code != http.StatusNoContent {
			t.Errorf("answered with %d, want 204", answer.Code)
		}
	})
}

func TestPodIsHeldForAllGateways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := make(chan struct{})
		h := running(t, func(o *Options) {
			o.Drain = func(_ context.Context, k types.NamespacedName, backend string) error {
				if k != key || backend != "a" {
					t.Errorf("called for %s of %s, want a", backend, k)
				}
				<-idle
				return nil
			}
		})
		h.put(newBackendPod("a", isReady))
		h.put(newBackendPod("a", isDeleted))
		h.Drained(key, "a")
		answer := h.hook()
		<-time.After(20 * time.Second)
		if synctest.Wait(); answer.Code != 0 {
			t.Fatalf("answered with %d, want it held while other gateways have requests", answer.Code)
		}
		close(idle)
		if synctest.Wait(); answer.Code != http.StatusNoContent {
			t.Errorf("answered with %d, want 204", answer.Code)
		}
	})
}

func TestPodIsNotHeldWithoutRequests(t *testing.T) {
	tests := map[string]func(*harness){
		"unknown revision": func(*harness) {},
		"the Pod stays, and only a container restarts": func(h *harness) { h.put(newBackendPod("a", isReady)) },
		"never took requests": func(h *harness) {
			h.put(newBackendPod("a", probedAt(1)))
			h.put(newBackendPod("a", probedAt(1), isDeleted))
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, nil)
				prepare(h)
				answer := h.hook()
				<-time.After(deletionDelay)
				if synctest.Wait(); answer.Code != http.StatusNoContent {
					t.Errorf("answered with %d, want 204", answer.Code)
				}
			})
		})
	}
}

func TestHook(t *testing.T) {
	ask := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
		Host: "10.96.0.7", Port: intstr.FromInt32(80), Path: "/drain/shop/cart-00001", Scheme: corev1.URISchemeHTTP,
	}}
	sleep := func(seconds int64) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}
	}
	tests := map[string]struct {
		level   string
		host    string
		timeout int64
		want    *corev1.LifecycleHandler
	}{
		"any Pod":         {host: "10.96.0.7", timeout: 60, want: ask},
		"privileged Pods": {host: "10.96.0.7", level: "privileged", timeout: 60, want: ask},
		"baseline Pods":   {host: "10.96.0.7", level: "baseline", timeout: 60, want: sleep(10)},
		"restricted Pods": {host: "10.96.0.7", level: "restricted", timeout: 60, want: sleep(10)},
		"short requests":  {level: "restricted", timeout: 4, want: sleep(4)},
		"no address":      {timeout: 60, want: sleep(10)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{enforceLabelKey: test.level}}}
				h := newHarness(t, func(o *Options) { o.DrainAddress = func() (string, int32) { return test.host, 80 } }, namespace)
				h.apply(t.Context(), newRevision(func(r *servingv1.Revision) { *r.Spec.TimeoutSeconds = test.timeout }))
				spec := h.deployment().Spec.Template.Spec
				if diff := cmp.Diff(test.want, spec.Containers[0].Lifecycle.PreStop); diff != "" {
					t.Errorf("hook (-want +got):\n%s", diff)
				}
				if *spec.TerminationGracePeriodSeconds != test.timeout {
					t.Errorf("grace period %d s, want timeoutSeconds", *spec.TerminationGracePeriodSeconds)
				}
			})
		})
	}
}
