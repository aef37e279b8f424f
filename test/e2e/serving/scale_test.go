package serving

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// untilZero waits until a Revision has no Pods and reports that; it and its Service stay ready.
func (s *space) untilZero(t *testing.T, service *servingv1.Service) {
	t.Helper()
	name := service.Status.LatestReadyRevisionName
	until(t, "Revision "+name+" has no Pods", func() error {
		pods, err := s.Host.CoreV1().Pods(s.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=" + name})
		if err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("it has %d Pods", len(pods.Items))
		}
		return nil
	})
	eventually(t, s.Admin.Knative.ServingV1().Revisions(s.namespace), name, "is ready, and not active", func(r *servingv1.Revision) error {
		return errors.Join(
			condition(r, &r.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, ""),
			condition(r, &r.Status.Status, servingv1.RevisionConditionActive, corev1.ConditionFalse, "NoTraffic"))
	})
	s.ready(t, service.Name)
}

// TestScaleToZeroAndBack checks that a Revision without requests has no Pods, and that later requests are all answered by a new
// Pod (serving 7.3-1, 8-7).
func TestScaleToZeroAndBack(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "zero", nil)
	service := s.deploy(t, s.app("hello", scaling("window", "6s")))
	before := decoded[infoReport](t, s.get(t, service.Status.URL+"/info")).Env["HOSTNAME"]
	s.untilZero(t, service)
	if log := s.log(t, service.Status.LatestReadyRevisionName, ""); log != "" {
		t.Errorf("without Pods the log is %q", log)
	}
	const clients = 30
	began := time.Now()
	seen := s.counts(t, service.Status.URL, clients, 1)
	if seen["Hello World!\n"] != clients {
		t.Errorf("%d requests to a Revision at zero got %v", clients, seen)
	}
	t.Logf("%d requests at zero were answered within %v", clients, time.Since(began))
	if after := decoded[infoReport](t, s.get(t, service.Status.URL+"/info")).Env["HOSTNAME"]; after == before {
		t.Errorf("Pod %s answers before and after", after)
	}
	s.untilZero(t, service)
}

// TestColdStartInside checks that a request from a Pod starts a backend as well.
func TestColdStartInside(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "cold", nil)
	service := s.deploy(t, s.app("hello", scaling("window", "6s")))
	inside := s.podClient(t)
	s.untilZero(t, service)
	if got := mustGet(t, inside, "http://hello."+s.namespace); got != "Hello World!\n" {
		t.Errorf("in a Pod a Revision at zero answers %q", got)
	}
}

// TestScaleWithLoad checks that load adds backends up to max-scale, that all of them receive requests, and that they are
// removed afterwards.
func TestScaleWithLoad(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "load", nil)
	service := s.deploy(t, s.app("hello", scaling("window", "6s"), scaling("target", "2"), scaling("min-scale", "1"), scaling("max-scale", "3")))
	revision := service.Status.LatestReadyRevisionName
	s.untilPods(t, revision, 1)

	var mu sync.Mutex
	answered := map[string]int{}
	var over atomic.Bool
	var clients sync.WaitGroup
	defer clients.Wait()
	defer over.Store(true)
	for range 12 {
		clients.Go(func() {
			for !over.Load() {
				a, err := ask(t.Context(), s.http, http.MethodGet, service.Status.URL+"/info?sleep=100ms", nil, nil)
				if err != nil || a.code != http.StatusOK {
					t.Errorf("with load a request got %+v, %v", a, err)
					return
				}
				pod := decoded[infoReport](t, a.body).Env["HOSTNAME"]
				mu.Lock()
				answered[pod]++
				mu.Unlock()
			}
		})
	}
	s.untilPods(t, revision, 3)
	until(t, "three Pods receive requests", func() error {
		// While this process is slow, the load is lower: a Pod may be replaced before it receives a request.
		pods, err := s.pods(t.Context(), revision)
		if err != nil || len(pods) != 3 {
			return fmt.Errorf("got %d Pods, %w", len(pods), err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range pods {
			if answered[pods[i].Name] == 0 {
				return fmt.Errorf("Pod %s has not, the answers are %v", pods[i].Name, answered)
			}
		}
		return nil
	})
	until(t, "--subresource=scale reports three", func() error {
		got := s.kubectl.Run(t, "", "get", "rev", revision, "--subresource=scale", "-o", "jsonpath={.spec.replicas} {.status.replicas}")
		if got.Stdout != "3 3" {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	over.Store(true)
	clients.Wait()
	until(t, "one Pod remains after the load", func() error {
		left, err := s.pods(t.Context(), revision)
		if err == nil && len(left) != 1 {
			err = fmt.Errorf("there are %d", len(left))
		}
		return err
	})
}
