package host

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// unreachable returns the address of a server that does not listen until start is called.
func unreachable(t *testing.T) (address string, start func()) {
	t.Helper()
	listener := port.Listen(t)
	address = listener.Addr().String()
	listener.Close()
	return address, func() {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.Listener.Close()
		var err error
		if server.Listener, err = port.ListenOn(address); err != nil {
			t.Error(err)
			return
		}
		server.Start()
		t.Cleanup(server.Close)
	}
}

// aggregated returns the address of a server that answers as kube-aggregator does without an aggregated server, until start is called.
func aggregated(t *testing.T) (address string, start func()) {
	t.Helper()
	var started atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !started.Load() {
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), func() { started.Store(true) }
}

// Lists and watches of informers resume when the server runs again; other requests fail at once during the outage.
func TestWatches(t *testing.T) {
	t.Parallel()
	for outage, begin := range map[string]func(*testing.T) (address string, start func()){
		"no API server": unreachable, "no aggregated server": aggregated,
	} {
		for name, test := range map[string]struct {
			method, query string
			waits         bool
		}{
			"a list of an informer":  {http.MethodGet, "resourceVersion=0&limit=500", true},
			"a watch of an informer": {http.MethodGet, "watch=true&sendInitialEvents=true", true},
			"another list":           {http.MethodGet, "limit=500", false},
			"a write":                {http.MethodPost, "", false},
		} {
			t.Run(outage+"/"+name, func(t *testing.T) {
				t.Parallel()
				address, start := begin(t)
				client := &http.Client{Transport: Watches(&http.Transport{})}
				defer client.CloseIdleConnections()
				send := func(ctx context.Context) error {
					r, err := http.NewRequestWithContext(ctx, test.method, "http://"+address+"/?"+test.query, http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					response, err := client.Do(r)
					if err != nil {
						return err
					}
					response.Body.Close()
					if response.StatusCode != http.StatusOK {
						return errors.New(response.Status)
					}
					return nil
				}
				if !test.waits {
					// Watches returns on its own, because the server never starts.
					if err := send(t.Context()); err == nil {
						t.Error("a stopped server answers")
					}
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), interval/4)
				defer cancel()
				if err := send(ctx); err == nil || ctx.Err() == nil {
					t.Errorf("got %v before the context ended, want an error once it has", err)
				}
				time.AfterFunc(interval, start)
				if err := send(t.Context()); err != nil {
					t.Errorf("once the server runs again: %v", err)
				}
			})
		}
	}
}

// An answer with Retry-After is for the client, which waits as long as it says.
func TestWatchesRetryAfter(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	client := &http.Client{Transport: Watches(&http.Transport{})}
	defer client.CloseIdleConnections()
	response, err := client.Get(server.URL + "/?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %s, want the answer of the server", response.Status)
	}
}
