package serving

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestConcurrencyLimitHolds sends requests of 100 clients of both protocols to backends with a limit of one. No backend ever
// has two, and all requests are answered, because the burst capacity lets them wait.
func TestConcurrencyLimitHolds(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "one-each", concurrency(1), instances("3"), scaling("target-burst-capacity", "-1"))
	s.untilScale(t, 3)
	clients := s.clients(t)
	var running sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]bool{}
	for i := range 100 {
		client := clients["HTTP/1.1"]
		if i%2 == 1 {
			client = clients["h2c"]
		}
		running.Go(func() {
			for range 10 {
				a, err := ask(t.Context(), client, http.MethodGet, s.url+"/concurrency?sleep=3ms", nil)
				if err != nil || a.code != http.StatusOK {
					t.Errorf("a request within the burst capacity got %+v, %v", a, err)
					return
				}
				if r := decoded[concurrencyReport](t, a.body); r.Max != 1 || r.Current != 1 {
					t.Errorf("an instance with containerConcurrency 1 had %d concurrent requests, has %d", r.Max, r.Current)
				}
			}
			a, err := ask(t.Context(), client, http.MethodGet, s.url+"/info", nil)
			if err != nil || a.code != http.StatusOK {
				t.Errorf("a request within the burst capacity got %+v, %v", a, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[decoded[infoReport](t, a.body).PID] = true
		})
	}
	running.Wait()
	// An instance that was slow may have answered none of the last requests.
	harness.Eventually(t, "all instances answer", func() error {
		if len(seen) != 3 {
			seen[report[infoReport](t, s, "/info").PID] = true
			return fmt.Errorf("%d did", len(seen))
		}
		return nil
	})
}

// TestBurst sends 60 requests at once to one backend with a limit of one. All of them wait, by the default target burst
// capacity, and are answered (serving 8-7).
func TestBurst(t *testing.T) {
	t.Parallel()
	const requests = 60
	s := shared.newSite(t, "burst", concurrency(1), instances("1"))
	for protocol, client := range s.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			var running sync.WaitGroup
			for range requests {
				running.Go(func() {
					if a, err := ask(t.Context(), client, http.MethodGet, s.url+"/concurrency?sleep=20ms", nil); err != nil || a.code != http.StatusOK {
						t.Errorf("a request of a burst got %+v, %v", a, err)
					}
				})
			}
			running.Wait()
		})
	}
}

// TestQueue fills the small queue of one backend: further requests are rejected, and waiting requests are served in order of
// arrival (serving 8-7).
func TestQueue(t *testing.T) {
	t.Parallel()
	for protocol := range shared.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			const depth = 10
			s := shared.newSite(t, "queue", concurrency(1), instances("1"), scaling("target-burst-capacity", "0"))
			client := untimed(s.clients(t)[protocol])
			// It is in flight until its body ends. A canceled request would release its slot before the application notices.
			gate := s.mustDial(t)
			if _, err := io.WriteString(gate, "POST /echo HTTP/1.1\r\nHost: "+s.host+"\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			s.untilMetric(t, "knative_gateway_in_flight_requests", 1)
			order := make([]int64, depth)
			var waiting sync.WaitGroup
			for i := range depth {
				waiting.Go(func() {
					a, err := ask(t.Context(), client, http.MethodGet, s.url+"/count", nil)
					if err != nil || a.code != http.StatusOK {
						t.Errorf("request %d of the waiting ones got %+v, %v", i, a, err)
						return
					}
					order[i] = decoded[countReport](t, a.body).Total
				})
				s.untilMetric(t, "knative_gateway_queued_requests", float64(i+1))
			}
			a := mustAsk(t, client, http.MethodGet, s.url+"/count", nil)
			if a.code != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || trimmed(a.body) != "pending request queue full" {
				t.Errorf("with %d requests waiting for one instance of containerConcurrency 1, the next got %+v, want 503 `pending request queue full` with Retry-After", depth, a)
			}
			if a, err := gate.exchange(http.MethodPost, "0\r\n\r\n"); err != nil || a.code != http.StatusOK {
				t.Errorf("the request that was served meanwhile got %+v, %v", a, err)
			}
			waiting.Wait()
			for i, total := range order {
				// The first request occupied the backend.
				if want := int64(i + 2); total != want {
					t.Errorf("request %d was served as number %d, want %d: order %v", i, total, want, order)
					break
				}
			}
			if n := report[concurrencyReport](t, s, "/concurrency").Max; n != 1 {
				t.Errorf("the instance had %d concurrent requests, want 1", n)
			}
		})
	}
}
