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

// TestSlowClients covers clients that send a request's head byte by byte, none at all, a body that never comes,
// or read no answer. They do not keep others from being served; heads have to arrive in time.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	const (
		slow = 500
		// headWithin is the gateway's bound with time to spare for a slow machine.
		headWithin = 20 * time.Second
		// served is how many requests have to be answered meanwhile. Clients that were kept waiting until the
		// heads are given up would be answered about once each. How many are on a good day is not for a test
		// that shares its processors with others.
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

// trickle sends a byte now and then until ctx ends.
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

// TestClientGoesAway covers that the application learns when a client does not wait any longer, and that a
// request which waited for an instance leaves the queue.
func TestClientGoesAway(t *testing.T) {
	t.Parallel()
	for protocol := range shared.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			s := shared.newSite(t, "abandoned", concurrency(2), instances("1"))
			client := s.clients(t)[protocol]
			leave := func(path string) func() {
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					if a, err := ask(ctx, client, http.MethodGet, s.url+path, nil); err == nil {
						t.Errorf("a request that was abandoned got %+v", a)
					}
				}()
				return func() { cancel(); <-ended }
			}
			first := leave("/hang")
			second := leave("/?sleep=1h")
			s.untilMetric(t, "knative_gateway_in_flight_requests", 2)
			third := leave("/")
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

// untilCurrent waits until the one instance of a site has so many requests, that which asks included.
func untilCurrent(t testing.TB, s *site, want int64) {
	t.Helper()
	harness.Eventually(t, "abandoned requests have ended", func() error {
		if n := report[concurrencyReport](t, s, "/concurrency").Current; n != want {
			return fmt.Errorf("the instance has %d requests, want %d", n, want)
		}
		return nil
	})
}
