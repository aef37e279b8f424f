package host

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// unreachable returns the address of a server that does not listen until start is called.
func unreachable(t *testing.T) (address string, start func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = listener.Addr().String()
	listener.Close()
	return address, func() {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.Listener.Close()
		if server.Listener, err = net.Listen("tcp", address); err != nil {
			t.Error(err)
			return
		}
		server.Start()
		t.Cleanup(server.Close)
	}
}

// Lists and watches of informers resume when the server runs again; other requests fail at once during the outage.
func TestWatches(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method, query string
		waits         bool
	}{
		"a list of an informer":  {http.MethodGet, "resourceVersion=0&limit=500", true},
		"a watch of an informer": {http.MethodGet, "watch=true&sendInitialEvents=true", true},
		"another list":           {http.MethodGet, "limit=500", false},
		"a write":                {http.MethodPost, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, start := unreachable(t)
			client := &http.Client{Transport: Watches(&http.Transport{})}
			defer client.CloseIdleConnections()
			send := func(ctx context.Context) error {
				r, err := http.NewRequestWithContext(ctx, test.method, "http://"+address+"/?"+test.query, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				response, err := client.Do(r)
				if err == nil {
					response.Body.Close()
				}
				return err
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
