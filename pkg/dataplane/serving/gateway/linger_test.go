package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// lines is an access log whose lines can be awaited.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		l <- string(line)
	}
	return len(b), nil
}

// stubborn is an application that observes canceled requests, but ends one only for each value in end.
type stubborn struct {
	now, most atomic.Int64
	// began gets a value for each request, canceled one for each canceled request.
	began, canceled, end chan bool
	// streams is true if the response begins at once.
	streams bool
}

func newStubborn(streams bool) *stubborn {
	return &stubborn{began: make(chan bool, 10), canceled: make(chan bool, 10), end: make(chan bool, 10), streams: streams}
}

func (a *stubborn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := a.now.Add(1)
	defer a.now.Add(-1)
	a.most.Store(max(a.most.Load(), n))
	drain(r.Body)
	if a.streams {
		fmt.Fprintln(w, "begin")
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
	}
	a.began <- true
	select {
	case <-r.Context().Done():
		a.canceled <- true
	case <-a.end:
		return
	}
	<-a.end
}

// TestCanceledRequestKeepsItsPlace checks that a request that its client canceled counts against containerConcurrency until the
// application has ended it, before and after the response has begun (serving 8-7).
func TestCanceledRequestKeepsItsPlace(t *testing.T) {
	for _, streams := range []bool{false, true} {
		for _, path := range paths {
			t.Run(fmt.Sprintf("%s, streams %t", path.name, streams), func(t *testing.T) {
				app, log := newStubborn(streams), make(lines, 10)
				spec := revision(1)
				if path.http2 {
					spec.Protocol = routing.H2C
				}
				b := serve(t, Options{StandardOnly: path.standardOnly, AccessLog: log}, spec, app)
				defer close(app.end)
				if path.http2 {
					b.h2c()
				}
				request := b.request(t, http.MethodPost, streamed("hello"))
				if path.plain {
					request = b.request(t, http.MethodPost, nil)
				}
				send := func(ctx context.Context) error {
					res, err := b.client.Do(request.Clone(ctx))
					if err != nil {
						return err
					}
					_, err = io.Copy(io.Discard, res.Body)
					return errors.Join(err, res.Body.Close())
				}
				var clients sync.WaitGroup
				defer clients.Wait()
				first, cancel := context.WithCancel(t.Context())
				clients.Go(func() {
					if send(first) == nil {
						t.Error("the canceled request has a response")
					}
				})
				<-app.began
				second, cancelSecond := context.WithCancel(t.Context())
				defer cancelSecond()
				clients.Go(func() {
					if err := send(second); err != nil && !path.http2 {
						t.Error(err)
					}
				})
				for waiting(b.Gateway) != 1 {
					<-time.After(time.Millisecond)
				}
				cancel()
				<-app.canceled
				// The request ends at the gateway before this line.
				<-log
				if n := waiting(b.Gateway); n != 1 {
					t.Fatalf("%d requests wait while the application still works on the canceled one", n)
				}
				app.end <- true
				if path.http2 {
					// The end cannot be observed, so the place ends after ten seconds.
					return
				}
				<-app.began
				app.end <- true
				clients.Wait()
				if most := app.most.Load(); most != 1 {
					t.Errorf("the application had %d concurrent requests", most)
				}
			})
		}
	}
}

// TestTimedOutRequestKeepsItsPlace checks that a timed-out request counts until the application has ended it.
func TestTimedOutRequestKeepsItsPlace(t *testing.T) {
	for _, path := range paths {
		if path.http2 {
			continue
		}
		t.Run(path.name, func(t *testing.T) {
			retried(t, func() bool {
				app, log := newStubborn(false), make(lines, 10)
				spec := revision(1)
				spec.ResponseStartTimeout = 2 * time.Second
				b := serve(t, Options{StandardOnly: path.standardOnly, AccessLog: log}, spec, app)
				defer close(app.end)
				body := streamed("hello")
				if path.plain {
					body = strings.NewReader("hello")
				}
				if reply, text := b.do(t, b.request(t, http.MethodPost, body)); reply.StatusCode != http.StatusGatewayTimeout {
					t.Errorf("got %s %s", reply.Status, text)
				}
				<-log
				select {
				case <-app.began:
				case <-time.After(5 * time.Second):
					return false
				}
				if p := poolOf(b.Gateway); try(p) != nil {
					t.Fatal("the backend gets another request while the application still works on the timed-out one")
				}
				app.end <- true
				for try(poolOf(b.Gateway)) == nil {
					<-time.After(time.Millisecond)
				}
				return true
			})
		})
	}
}

// TestSilentTunnelKeepsItsPlace covers upgraded connections that the gateway ends because of silence.
func TestSilentTunnelKeepsItsPlace(t *testing.T) {
	retried(t, func() bool {
		ended, end := make(chan bool, 1), make(chan bool)
		finish := sync.OnceFunc(func() { close(end) })
		defer finish()
		app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
			drain(conn)
			ended <- true
			<-end
		})
		log, spec := make(lines, 10), revision(1)
		spec.IdleTimeout = 2 * time.Second
		b := serve(t, Options{AccessLog: log}, spec, app)
		r := b.request(t, http.MethodGet, nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "test")
		res, err := b.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Log(res.Status)
			return false
		}
		// The application sees the end of the stream.
		<-ended
		<-log
		if try(poolOf(b.Gateway)) != nil {
			t.Error("the backend gets another request while the application still has the connection")
		}
		finish()
		for try(poolOf(b.Gateway)) == nil {
			<-time.After(time.Millisecond)
		}
		return true
	})
}

// TestUnlimitedRequestsEndAtOnce checks that requests without containerConcurrency do not linger.
func TestUnlimitedRequestsEndAtOnce(t *testing.T) {
	for _, path := range paths {
		t.Run(path.name, func(t *testing.T) {
			app, log := newStubborn(false), make(lines, 10)
			spec := revision(0)
			if path.http2 {
				spec.Protocol = routing.H2C
			}
			b := serve(t, Options{StandardOnly: path.standardOnly, AccessLog: log}, spec, app)
			defer close(app.end)
			if path.http2 {
				b.h2c()
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-app.began
				cancel()
			}()
			if _, err := b.client.Do(b.request(t, http.MethodGet, nil).WithContext(ctx)); err == nil { //nolint:bodyclose // it fails
				t.Error("the canceled request has a response")
			}
			<-app.canceled
			<-log
			if requests := inFlight(b.Gateway); len(requests) != 0 {
				t.Errorf("%v requests are in flight", requests)
			}
		})
	}
}
