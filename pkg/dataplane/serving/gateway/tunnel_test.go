package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// TestTunnelConnClosed checks that nothing is written to the stream of another replica once its handler may have ended: net/http
// panics then. Both directions of an upgraded connection are copied by goroutines that may outlive the handler.
func TestTunnelConnClosed(t *testing.T) {
	for name, blocked := range map[string]bool{"no write in progress": false, "a write in progress": true} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan net.Conn, 1)
			written := make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, _, err := (&tunnelWriter{ResponseWriter: w, in: r.Body}).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				if blocked {
					writing := make(chan struct{})
					begin := sync.OnceFunc(func() { close(writing) })
					go func() {
						// The client reads nothing, so its window is used up.
						for {
							if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
								close(written)
								return
							}
							begin()
						}
					}()
					<-writing
				}
				conn.Close()
				ended <- conn
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			defer server.Close()
			res, err := server.Client().Post(server.URL, "", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			conn := <-ended
			if blocked {
				select {
				case <-written:
				case <-time.After(time.Minute):
					t.Fatal("the write was not ended")
				}
			}
			// The handler ends soon after; no write may reach its stream at any time.
			for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
				if n, err := conn.Write([]byte("late")); n != 0 || !errors.Is(err, net.ErrClosed) {
					t.Fatalf("%d bytes were written, %v, want the error of a closed connection", n, err)
				}
			}
		})
	}
}
