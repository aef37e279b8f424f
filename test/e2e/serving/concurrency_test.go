package serving

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// gateways returns a client for each replica of the gateway, which connects to that one only.
func (s *space) gateways(t *testing.T) map[string]*http.Client {
	t.Helper()
	pods, err := s.GatewayPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string]*http.Client{}
	for i := range pods {
		clients[pods[i].Name] = toward(t, net.JoinHostPort(pods[i].Status.PodIP, gatewayPort))
	}
	if len(clients) != 3 {
		t.Fatalf("got %d gateways, want 3", len(clients))
	}
	return clients
}

// suspended is the body of a response by a gateway that was too slow to confirm its membership: it rejects requests to Services with a limit until it
// has, because another gateway may own them.
const suspended = "the gateway has no connection to the others"

// askLimited sends a GET request to a Service with a concurrency limit. A gateway that was suspended gets it again, as its response requests.
func askLimited(t *testing.T, client *http.Client, target string) (*answer, error) {
	t.Helper()
	for began := time.Now(); ; {
		a, err := ask(t.Context(), client, http.MethodGet, target, nil, nil)
		if err != nil || a.code != http.StatusServiceUnavailable || !strings.Contains(a.body, suspended) || time.Since(began) > patience {
			return a, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			return a, t.Context().Err()
		}
	}
}

// TestConcurrencyLimit checks that no backend ever has more requests than containerConcurrency, although they arrive at all
// replicas of the gateway at the same time, and that waiting requests are answered.
func TestConcurrencyLimit(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "limit", nil)
	service := s.deploy(t, s.app("hello", concurrency(1), instances("2"), scaling("target-burst-capacity", "-1")))
	s.untilPods(t, service.Status.LatestReadyRevisionName, 2)
	target := service.Status.URL + "/concurrency?sleep=3ms"
	var running sync.WaitGroup
	for name, client := range s.gateways(t) {
		for range 8 {
			running.Go(func() {
				for range 40 {
					a, err := askLimited(t, client, target)
					if err != nil || a.code != http.StatusOK {
						t.Errorf("by %s: %+v, %v", name, a, err)
						return
					}
					if got := decoded[struct{ Current, Max int }](t, a.body); got.Current != 1 || got.Max != 1 {
						t.Errorf("by %s: an instance of containerConcurrency 1 has %d requests, had %d", name, got.Current, got.Max)
						return
					}
				}
			})
		}
	}
	running.Wait()
}
