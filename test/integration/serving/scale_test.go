package serving

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// untilActive waits until the newest Revision of a site has the wanted condition Active.
func (s *site) untilActive(t testing.TB, want corev1.ConditionStatus, reason string) {
	t.Helper()
	eventually(t, s.Knative.ServingV1().Revisions(s.namespace), s.revision(t).Name, "has the wanted condition Active", func(r *servingv1.Revision) error {
		return errors.Join(
			// A scale of zero is not a failure.
			isReady(r, &r.Status.Status),
			condition(r, &r.Status.Status, servingv1.RevisionConditionActive, want, reason))
	})
}

// TestScaleToZeroAndBack checks that a Revision without requests scales to zero, reports that and stays ready, and that a new
// backend answers the next request (serving 7.3-1, 8-7, 6-15, 9.4.3-2).
func TestScaleToZeroAndBack(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "zero", scaling("window", "6s"))
	// The scale is one while a request is in flight.
	release := s.hold(t)
	before := report[infoReport](t, s, "/info")
	s.untilActive(t, corev1.ConditionTrue, "")
	release()
	s.untilScale(t, 0)
	s.untilActive(t, corev1.ConditionFalse, "NoTraffic")
	// A backend that shuts down no longer counts as a replica.
	harness.Eventually(t, "the process of the Revision ends", func() error {
		if running(before.PID) {
			return fmt.Errorf("process %d runs", before.PID)
		}
		return nil
	})
	if err := isReady(s.revision(t), &s.revision(t).Status.Status); err != nil {
		t.Errorf("at zero: %v", err)
	}
	service := read(t, s.Knative.ServingV1().Services(s.namespace), s.name)
	if err := isReady(service, &service.Status.Status); err != nil {
		t.Errorf("at zero: %v", err)
	}
	if after := report[infoReport](t, s, "/info"); after.Instance == before.Instance {
		t.Errorf("the instance %s answers before and after", after.Instance)
	}
	s.hold(t)
	s.untilActive(t, corev1.ConditionTrue, "")
	s.untilScale(t, 1)
}

// TestInitialScaleZero checks that a Revision with an initial scale of zero is ready without a backend, and starts one for the
// first request (serving 7.3-1, 8-7).
func TestInitialScaleZero(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "unborn", scaling("initial-scale", "0"))
	if left := processesOf(t, "unborn"); len(left) > 0 {
		t.Errorf("processes %v run before any request", left)
	}
	s.untilScale(t, 0)
	s.untilActive(t, corev1.ConditionFalse, "NoTraffic")
	if got := s.mustGet(t, s.url); got != "Hello World!\n" {
		t.Errorf("it answers %q", got)
	}
	s.untilScale(t, 1)
}

// TestScaleBounds checks that the scale stays between min-scale and max-scale, and that /scale reports it.
func TestScaleBounds(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "bounds", scaling("min-scale", "2"), scaling("max-scale", "3"), concurrency(1))
	s.untilScale(t, 2)
	kubectl := harness.NewKubectl(t, shared.Kubeconfig, s.namespace)
	replicas := func() string {
		return kubectl.Must(t, "", "get", "rev", s.revision(t).Name, "--subresource=scale", "-o", "jsonpath={.spec.replicas} {.status.replicas}")
	}
	if got := replicas(); got != "2 2" {
		t.Errorf("--subresource=scale has spec.replicas and status.replicas %q, want 2 2", got)
	}

	// Eight concurrent requests, one per backend, require more than three backends.
	stop := make(chan struct{})
	var clients sync.WaitGroup
	defer clients.Wait()
	defer close(stop)
	for range 8 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if a, err := s.get(t.Context(), s.url+"/info?sleep=100ms"); err != nil || a.code != http.StatusOK {
					t.Errorf("%+v, %v", a, err)
					return
				}
			}
		})
	}
	s.untilScale(t, 3)
	if got := replicas(); got != "3 3" {
		t.Errorf("--subresource=scale has spec.replicas and status.replicas %q, want 3 3", got)
	}
	harness.Eventually(t, "all three receive requests", func() error {
		if n := len(processesOf(t, "bounds")); n != 3 {
			return fmt.Errorf("%d processes run", n)
		}
		return nil
	})
}
