package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// certificate returns a server configuration and one of clients that trust it.
func certificate(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	pair := s.TLS.Certificates[0]
	server = &tls.Config{
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil },
	}
	client = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	client.ServerName = "example.com"
	return server, client
}

// serveTLS serves h over TLS at in-memory connections until the returned function is called.
func serveTLS(t *testing.T, h *Handler, config *tls.Config) (listener *pipes, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	listener, served := newPipes(), make(chan error)
	go func() { served <- h.ServeTLS(ctx, listener, config, time.Second) }()
	return listener, func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// TestTLS covers events over TLS with HTTP/1.1 and HTTP/2, and the memory of their connections.
func TestTLS(t *testing.T) {
	server, trusting := certificate(t)
	for name, test := range map[string]struct {
		http2 bool
		// held is the memory of an idle connection.
		held int64
	}{
		"HTTP/1.1": {false, connSize + tlsSize},
		"HTTP/2":   {true, connSize + tlsSize + http2Size},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &memory{}
				o := options(l)
				o.Budget = flow.NewBudget(4<<20, 0)
				listener, stop := serveTLS(t, New(o), server)
				protocols := new(http.Protocols)
				protocols.SetHTTP1(!test.http2)
				protocols.SetHTTP2(test.http2)
				transport := &http.Transport{
					Protocols: protocols, TLSClientConfig: trusting.Clone(), // HTTP/2 adds its name to it
					DialContext: func(context.Context, string, string) (net.Conn, error) { return listener.dial(), nil },
				}
				client := &http.Client{Transport: transport}
				// The second request has a large head.
				for _, large := range []string{"", strings.Repeat("x", 40<<10)} {
					r := request(t, "https://example.com/default/orders", strings.NewReader(strings.Repeat("d", 100<<10)), "ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t", "x-large", large)
					r.RequestURI = ""
					response, err := client.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					io.Copy(io.Discard, response.Body) //nolint:errcheck // it is empty
					response.Body.Close()
					if response.StatusCode != http.StatusAccepted || response.TLS == nil || (response.ProtoMajor == 2) != test.http2 {
						t.Errorf("%s, TLS %v", response.Proto+" "+response.Status, response.TLS != nil)
					}
					synctest.Wait()
					if held := o.Budget.Used(); held != test.held {
						t.Errorf("the idle connection holds %d bytes, want %d", held, test.held)
					}
				}
				transport.CloseIdleConnections()
				synctest.Wait()
				if held := o.Budget.Used(); held != 0 {
					t.Errorf("%d bytes are held after the connection was closed", held)
				}
				stop()
			})
		})
	}
}

// TestSlowHandshakes checks that connections with incomplete handshakes are closed in time and hold a bounded part of the memory.
func TestSlowHandshakes(t *testing.T) {
	const number, limit = 200, 4 << 20
	server, _ := certificate(t)
	for name, sent := range map[string]string{
		"nothing is sent": "",
		"a hello of 64 KiB that does not end": "\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("x", 1<<14-4) +
			"\x16\x03\x01\x40\x00" + strings.Repeat("x", 1<<14) + "\x16\x03\x01\x40\x00" + strings.Repeat("x", 1<<14),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := options(&memory{})
				o.Budget = flow.NewBudget(limit, 0)
				listener, stop := serveTLS(t, New(o), server)
				start := time.Now()
				for range number {
					client := listener.dial()
					defer client.Close()
					go func() {
						io.WriteString(client, sent) //nolint:errcheck // the server may close the connection
						io.Copy(io.Discard, client)  //nolint:errcheck // as above
					}()
				}
				synctest.Wait()
				if used := o.Budget.Used(); used > limit/2 {
					t.Errorf("handshakes hold %d bytes, want at most half of %d", used, limit)
				}
				time.Sleep(headerTimeout + time.Second) //nolint:forbidigo // the clock is synctest's
				synctest.Wait()
				if used := o.Budget.Used(); used != 0 {
					t.Errorf("handshakes hold %d bytes after %s", used, time.Since(start))
				}
				stop()
			})
		})
	}
}

// TestServes checks that requests with or without TLS are answered 404 if the setting excludes them, except requests that another replica forwards.
func TestServes(t *testing.T) {
	server, trusting := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		o := options(&memory{})
		only := false
		o.Serves = func(tls bool) bool { return tls == only }
		h := New(o)
		listener, stop := serveTLS(t, h, server)
		const head = "POST /default/orders HTTP/1.1\r\nHost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nContent-Length: 0\r\n\r\n"
		secure := func() int {
			conn := tls.Client(listener.dial(), trusting)
			defer conn.Close()
			go io.WriteString(conn, head) //nolint:errcheck // the answer shows it
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			return response.StatusCode
		}
		plain := func(handler http.Handler) int {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/default/orders", http.NoBody)
			for _, attribute := range [][2]string{{"specversion", "1.0"}, {"id", "1"}, {"source", "/s"}, {"type", "t"}} {
				r.Header.Set("ce-"+attribute[0], attribute[1])
			}
			handler.ServeHTTP(w, r)
			return w.Code
		}
		if got := secure(); got != http.StatusNotFound {
			t.Errorf("https, which is disabled: %d, want 404", got)
		}
		if got := plain(h); got != http.StatusAccepted {
			t.Errorf("http, which is enabled: %d, want 202", got)
		}
		only = true
		if got := secure(); got != http.StatusAccepted {
			t.Errorf("https, which is required: %d, want 202", got)
		}
		if got := plain(h); got != http.StatusNotFound {
			t.Errorf("http, while https is required: %d, want 404", got)
		}
		if got := plain(h.Forwarded()); got != http.StatusAccepted {
			t.Errorf("a request that another replica forwards: %d, want 202", got)
		}
		stop()
	})
}
