package kubernetes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// TestStartOf checks when the steps of a Pod's start are observed, by the clock of this server, and that they stay.
func TestStartOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.apply(t.Context(), newRevision())
		if err := h.Scale(t.Context(), key, 0); err != nil {
			t.Fatal(err)
		}
		h.state()
		if _, ok := h.StartOf(key, "a"); ok {
			t.Error("an unknown Pod has a start")
		}
		began := time.Now()
		after := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
		want := workload.Start{Scaled: after(1), Created: after(2), Scheduled: after(3), Started: after(4), Ready: after(5)}
		<-time.After(time.Second)
		if err := h.Activate(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		h.state()
		for _, change := range []func(*corev1.Pod){
			func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} },
			func(p *corev1.Pod) {
				p.Status.Phase, p.Status.PodIP, p.Status.ContainerStatuses = corev1.PodPending, "", nil
			},
			func(*corev1.Pod) {},
			isReady,
			isReady,
		} {
			<-time.After(time.Second)
			h.put(newBackendPod("a", func(p *corev1.Pod) { p.Status.PodIP = "" }, change, func(p *corev1.Pod) {
				if p.Status.Phase == corev1.PodRunning && len(p.Status.Conditions) > 1 {
					p.Status.PodIP = "10.1.2.3"
				}
			}))
		}
		got, ok := h.StartOf(key, "a")
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("%t (-want +got):\n%s", ok, diff)
		}
	})
}
