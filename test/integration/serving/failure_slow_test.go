package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestSlowClients covers clients that send headers byte by byte or not at all, announce a body that they never send, or do not
// read the response. Other clients are served; headers must arrive in time.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	const (
		slow = 500
		// headWithin is the header timeout of the gateway with a margin for slow machines.
		headWithin = 20 * time.Second
		// served is the number of requests that must be answered meanwhile. Clients that wait until the header timeout would be
		// answered about once each. The number on an idle machine is not asserted, because other tests share the processors.
		clients, served = 8, 64
	)
	s := shared.newSite(t, "slow", instances("1"))
	load := generate(t, clients, 10*time.Millisecond, s.keepAlive("/"))

	var trickling sync.WaitGroup
	for range slow {
		w := s.mustDial(t)
		if err := w.SetDeadline(time.Now().Add(headWithin)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "GET / HTTP/1.1\r\nHost: "+s.host+"\r\nX-Slow: "); err != nil {
			t.Fatal(err)
		}
		ctx, refused := context.WithCancel(t.Context())
		trickling.Go(func() { trickle(ctx, w) })
		trickling.Go(func() {
			defer refused()
			a, err := w.read(http.MethodGet)
			switch {
			case err == nil && a.code != http.StatusRequestTimeout:
				t.Errorf("a head that did not end got %+v, want 408", a)
			case errors.Is(err, os.ErrDeadlineExceeded):
				t.Errorf("a head that did not end is waited for after %s", headWithin)
			}
		})
	}
	for _, begin := range []string{
		"",
		"POST /upload HTTP/1.1\r\nHost: " + s.host + "\r\nContent-Length: 1000\r\n\r\nsome",
		"GET /stream?n=100000 HTTP/1.1\r\nHost: " + s.host + "\r\n\r\n",
	} {
		for range 50 {
			half := s.mustDial(t)
			if _, err := io.WriteString(half, begin); err != nil {
				t.Fatal(err)
			}
		}
	}
	trickling.Wait()
	load.mustNotFail(t, served)
}

// trickle sends a byte at intervals until ctx is canceled.
func trickle(ctx context.Context, w net.Conn) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if _, err := w.Write([]byte{'x'}); err != nil {
				return
			}
		}
	}
}

// TestClientCancels checks that the application is notified when a client cancels, and that a canceled request is removed from
// the queue.
func TestClientCancels(t *testing.T) {
	t.Parallel()
	for protocol := range shared.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s := shared.newSite(t, "abandoned", concurrency(2), instances("1"))
			client := untimed(s.clients(t)[protocol])
			cancelAfter := func(path string) func() {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					if a, err := ask(ctx, client, http.MethodGet, s.url+path, nil); err == nil {
						t.Errorf("a canceled request got %+v", a)
					}
				}()
				return func() { cancel(); <-ended }
			}
			first := cancelAfter("/hang")
			second := cancelAfter("/?sleep=1h")
			s.untilMetric(t, "knative_gateway_in_flight_requests", 2)
			third := cancelAfter("/")
			s.untilMetric(t, "knative_gateway_queued_requests", 1)
			third()
			s.untilMetric(t, "knative_gateway_queued_requests", 0)
			first()
			s.untilMetric(t, "knative_gateway_in_flight_requests", 1)
			untilCurrent(t, s, 2)
			second()
			untilCurrent(t, s, 1)
		})
	}
}

// untilCurrent waits until the only backend of a site has that many requests in flight, including the request that asks.
func untilCurrent(t testing.TB, s *site, want int64) {
	t.Helper()
	harness.Eventually(t, "canceled requests have ended", func() error {
		if n := report[concurrencyReport](t, s, "/concurrency").Current; n != want {
			return fmt.Errorf("the instance has %d requests, want %d", n, want)
		}
		return nil
	})
}
