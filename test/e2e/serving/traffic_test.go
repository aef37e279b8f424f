package serving

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// counts sends requests by several concurrent clients, each on its own connections, and returns the number of each response.
func (s *space) counts(t *testing.T, target string, clients, each int) map[string]int {
	t.Helper()
	var mu sync.Mutex
	seen := map[string]int{}
	var running sync.WaitGroup
	for range clients {
		client := s.HTTPClient(answerTimeout)
		t.Cleanup(client.CloseIdleConnections)
		running.Go(func() {
			for range each {
				a, err := ask(t.Context(), client, http.MethodGet, target, nil, nil)
				if err != nil || a.code != http.StatusOK {
					t.Errorf("GET %s: %+v, %v", target, a, err)
					return
				}
				mu.Lock()
				seen[a.body]++
				mu.Unlock()
			}
		})
	}
	running.Wait()
	return seen
}

// TestSplit checks that requests are split 90 to 10 at every replica: each replica splits every hundred (serving 8-6).
func TestSplit(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "split", nil)
	s.deploy(t, s.app("hello", revisionName("most"), env("TARGET", "most"), instances("1")))
	service := s.deploy(t, s.app("hello", revisionName("few"), env("TARGET", "few"), instances("1"),
		traffic(pinned("hello-most", 90), pinned("hello-few", 10))))
	// At most three gateways are within a block of a hundred at the start and at the end.
	const clients, each, off = 10, 200, 30
	const want = clients * each / 10
	seen := s.counts(t, service.Status.URL, clients, each)
	if few := seen["Hello few!\n"]; few < want-off || few > want+off || few+seen["Hello most!\n"] != clients*each {
		t.Errorf("of %d requests each Revision got %v, want about %d for the one of 10 %%", clients*each, seen, want)
	}
}

// TestRollback checks that a template with the name and the content of an older Revision makes that Revision the latest again.
func TestRollback(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "rollback", nil)
	first := s.app("hello", revisionName("one"), env("TARGET", "one"))
	url := s.deploy(t, first).Status.URL
	s.deploy(t, s.app("hello", revisionName("two"), env("TARGET", "two")))
	if got := s.get(t, url); got != "Hello two!\n" {
		t.Fatalf("the second Revision answers %q", got)
	}
	service := s.deploy(t, first)
	if got := service.Status; got.LatestReadyRevisionName != "hello-one" || got.LatestCreatedRevisionName != "hello-one" {
		t.Errorf("the latest Revisions are %q and %q, want hello-one", got.LatestCreatedRevisionName, got.LatestReadyRevisionName)
	}
	if got := s.get(t, url); got != "Hello one!\n" {
		t.Errorf("after the rollback it answers %q", got)
	}
	// Without a new name, a change of the template would change the Revision.
	changed := s.app("hello", revisionName("one"), env("TARGET", "three"))
	if _, err := s.Admin.Knative.ServingV1().Services(s.namespace).Update(t.Context(), withVersion(changed, service), metav1.UpdateOptions{}); err == nil {
		t.Error("a change under a Revision's name is accepted")
	}
}

func withVersion(object, of *servingv1.Service) *servingv1.Service {
	object.ResourceVersion = of.ResourceVersion
	return object
}

// rolloutTo deploys a Revision with a rollout of some duration from another one, and returns its shares in percent, in the order in which the Route
// reports them.
func (s *space) rolloutTo(t *testing.T, from, to, duration string) (shares []int64) {
	t.Helper()
	// In contrast to repeated reads, a watch misses no step while this process waits for a processor.
	changes, err := s.Admin.Knative.ServingV1().Routes(s.namespace).Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: "hello"}))
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	s.apply(t, s.app("hello", rollout(duration), revisionName(to), env("TARGET", to)))
	for timeout := time.After(2 * patience); len(shares) == 0 || shares[len(shares)-1] < 100; {
		var route *servingv1.Route
		select {
		case event := <-changes.ResultChan():
			changed, ok := event.Object.(*servingv1.Route)
			if !ok {
				t.Fatalf("the watch ended with %+v", event)
			}
			route = changed
		case <-timeout:
			t.Fatalf("the shares were %v, want 100 at last", shares)
		}
		share := map[string]int64{}
		for _, target := range route.Status.Traffic {
			share[target.RevisionName] += *target.Percent
		}
		if len(shares) == 0 && share["hello-"+from] < 100 {
			// The replica that serves the watch has not observed the latest status yet.
			continue
		}
		if sum := share["hello-"+from] + share["hello-"+to]; sum != 100 {
			t.Errorf("the shares are %v", share)
		}
		now := share["hello-"+to]
		if len(shares) == 0 || shares[len(shares)-1] != now {
			shares = append(shares, now)
			if now > 0 && now < 100 {
				if err := condition(route, &route.Status.Status, servingv1.RouteConditionIngressReady, corev1.ConditionUnknown, "RolloutInProgress"); err != nil {
					t.Errorf("at %d %%: %v", now, err)
				}
			}
		}
	}
	for i := 1; i < len(shares); i++ {
		if shares[i] < shares[i-1] {
			t.Errorf("the shares were %v", shares)
		}
	}
	return shares
}

// rollout sets the duration of rollouts.
func rollout(duration string) option {
	return func(s *servingv1.Service) {
		s.Annotations = map[string]string{servingv1.RolloutDurationAnnotationKey: duration}
	}
}

// TestRollout covers a gradual rollout: both Revisions have a share until it ends, and the conditions report it.
func TestRollout(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "rollout", nil)
	latest := "one"
	s.deploy(t, s.app("hello", rollout("6s"), revisionName(latest), env("TARGET", latest)))
	// A slow leader omits steps whose time has passed. A longer rollout has enough others.
	for _, next := range []struct{ revision, duration string }{{"two", "6s"}, {"three", "60s"}} {
		shares := s.rolloutTo(t, latest, next.revision, next.duration)
		latest = next.revision
		if len(shares) >= 4 && shares[1] == 1 {
			break
		}
		if latest == "three" {
			t.Errorf("the shares were %v, want 0, 1 and several steps to 100", shares)
		}
		t.Logf("the shares within %s were %v", next.duration, shares)
	}
	service := s.ready(t, "hello")
	if diff := cmp.Diff(map[string]int{"Hello " + latest + "!\n": 10}, s.counts(t, service.Status.URL, 1, 10)); diff != "" {
		t.Errorf("after the rollout (-want +got):\n%s", diff)
	}
}
