package serving

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestNoRequestFailsWhileRolling replaces the Revision 20 times under load by clients of both protocols. No request fails, and
// once the Service is ready only the new Revision answers (serving 8-1, 8-2).
func TestNoRequestFailsWhileRolling(t *testing.T) {
	t.Parallel()
	const updates = 20
	s := shared.newSite(t, "rolling", env("TARGET", "0"))
	plain := generate(t, 8, 5*time.Millisecond, s.keepAlive("/?sleep=2ms"))
	streams := generate(t, 8, 5*time.Millisecond, s.streams(t, "/?sleep=2ms"))
	for i := 1; i <= updates; i++ {
		s.deploy(t, app(t, s.namespace, s.name, env("TARGET", fmt.Sprint(i))))
		for range 3 {
			if got, want := s.mustGet(t, s.url+"/"), fmt.Sprintf("Hello %d!\n", i); got != want {
				t.Fatalf("after update %d was ready the answer was %q, want %q", i, got, want)
			}
		}
	}
	plain.mustNotFail(t, 10*updates)
	streams.mustNotFail(t, 10*updates)
}

// TestNoRequestFailsWhileScalingDown holds requests that need ten backends beside a load for one. When the clients of the held
// requests leave, nine backends are removed, and no request of the load fails (serving 8-7).
func TestNoRequestFailsWhileScalingDown(t *testing.T) {
	t.Parallel()
	const backends, target = 10, 10
	s := shared.newSite(t, "shrinking", scaling("max-scale", fmt.Sprint(backends)), scaling("target", fmt.Sprint(target)),
		scaling("target-utilization-percentage", "100"), scaling("window", "6s"))
	held := make([]func(), backends*target)
	for i := range held {
		held[i] = s.hold(t)
	}
	plain := generate(t, target/2, 5*time.Millisecond, s.keepAlive("/?sleep=20ms"))
	streams := generate(t, target/2, 5*time.Millisecond, s.streams(t, "/?sleep=20ms"))
	s.untilScale(t, backends)
	for _, release := range held {
		release()
	}
	s.untilScale(t, 1)
	plain.mustNotFail(t, 100)
	streams.mustNotFail(t, 100)
}

// TestNoRequestFailsAtZero sends requests at the moment when Revisions scale to zero: all became idle at the same time, so when
// the first one scales down, the others are about to.
func TestNoRequestFailsAtZero(t *testing.T) {
	t.Parallel()
	const services, rounds = 12, 2
	in := namespace()
	sites := make([]*site, services)
	for i := range sites {
		sites[i] = shared.newSiteIn(t, in, fmt.Sprintf("idle-%d", i), scaling("window", "6s"), scaling("scale-to-zero-pod-retention-period", "0s"))
	}
	all := func(when string) {
		var running sync.WaitGroup
		for i, s := range sites {
			running.Go(func() {
				method := []string{http.MethodGet, http.MethodPost}[i%2]
				for range 3 {
					a, err := ask(t.Context(), s.http, method, s.url+"/", nil)
					if err != nil || a.code != http.StatusOK {
						t.Errorf("%s, %s of %s got %+v, %v", when, method, s.name, a, err)
					}
				}
			})
		}
		running.Wait()
	}
	all("at the start")
	for round := range rounds {
		watch, err := shared.Knative.ServingV1().Revisions(in).Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		began, timeout := time.Now(), time.After(harness.Patience)
		// If all Revisions were at zero before the watch began, they need requests again.
		idle := time.NewTicker(15 * time.Second)
		// The first events of the watch may report earlier changes.
		for running := map[string]bool{}; ; {
			gone := false
			select {
			case event := <-watch.ResultChan():
				if revision, ok := event.Object.(*servingv1.Revision); ok {
					wanted := ptr.Deref(revision.Status.DesiredReplicas, 0) > 0
					gone = running[revision.Name] && !wanted
					running[revision.Name] = wanted
				}
			case <-idle.C:
				all(fmt.Sprintf("again in round %d", round))
			case <-timeout:
				t.Fatalf("in round %d no revision scaled to zero within %s", round, time.Since(began))
			}
			if gone {
				break
			}
		}
		idle.Stop()
		watch.Stop()
		all(fmt.Sprintf("while revisions scaled to zero in round %d", round))
	}
}
