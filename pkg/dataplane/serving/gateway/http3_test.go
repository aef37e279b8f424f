package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// serveHTTP3 starts a gateway with HTTPS and HTTP/3 until the test ends, and returns the address of HTTP/3.
func serveHTTP3(t testing.TB, options Options, app http.Handler) (*bench, *certificates.Store, string) {
	t.Helper()
	b, store := serveTLS(t, options, app)
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := socket.LocalAddr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- b.ServeHTTP3(ctx, socket, store) }()
	stopTLS := b.stop
	b.stop = sync.OnceValue(func() error {
		cancel()
		return errors.Join(<-served, stopTLS())
	})
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "HTTP/3 is served", func() bool { return b.chain.http3.Load() > 0 })
	return b, store, address
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !holds() {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not reached: %s", what)
		}
	}
}

// isTimeout reports whether a connection ended because the other end did not respond: one of both was paused, most likely during the
// handshake.
func isTimeout(err error) bool {
	_, handshake := errors.AsType[*quic.HandshakeTimeoutError](err)
	_, idle := errors.AsType[*quic.IdleTimeoutError](err)
	return handshake || idle
}

// isIdle reports whether the server closed a connection without requests.
func isIdle(err error) bool {
	closed, ok := errors.AsType[*quic.ApplicationError](err)
	return ok && closed.ErrorCode == quic.ApplicationErrorCode(http3.ErrCodeNoError)
}

// dialQUIC connects to an address, again after a timeout.
func dialQUIC(ctx context.Context, address string, config *tls.Config) (conn *quic.Conn, err error) {
	for range 5 {
		if conn, err = quic.DialAddr(ctx, address, config, nil); !isTimeout(err) {
			break
		}
	}
	return conn, err
}

// http3Client returns a client with one connection to an address.
func http3Client(t testing.TB, serverName string) *http3.Transport {
	t.Helper()
	transport := &http3.Transport{TLSClientConfig: &tls.Config{ServerName: serverName, InsecureSkipVerify: true}}
	t.Cleanup(func() { transport.Close() })
	return transport
}

// received is a response without its body.
type received struct {
	StatusCode      int
	Proto           string
	Header, Trailer http.Header
	TLS             *tls.ConnectionState
}

// send3 sends a request by HTTP/3, again after a timeout of the connection, and returns the response with its body.
func send3(t testing.TB, client http.RoundTripper, address string, edit func(*http.Request)) (received, string) {
	t.Helper()
	res, body, err := trySend3(t, client, address, edit)
	for attempts := 1; isTimeout(err) && attempts < 5; attempts++ {
		res, body, err = trySend3(t, client, address, edit)
	}
	if err != nil {
		t.Fatal(err)
	}
	return res, body
}

// trySend3 sends a request by HTTP/3 once.
func trySend3(t testing.TB, client http.RoundTripper, address string, edit func(*http.Request)) (received, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/path?q=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "app"
	if edit != nil {
		edit(r)
	}
	res, err := client.RoundTrip(r)
	if err != nil {
		return received{}, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return received{res.StatusCode, res.Proto, res.Header, res.Trailer, res.TLS}, string(body), err
}

// TestServeHTTP3 covers requests with bodies of several sizes, what the application gets, and the access log.
func TestServeHTTP3(t *testing.T) {
	log := &syncBuffer{}
	b, _, address := serveHTTP3(t, Options{AccessLog: log}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%s %s %s %s %d %q %v %v\n%s", r.Method, r.RequestURI, r.Header.Get("X-Forwarded-Proto"), r.Header.Get("Forwarded"), r.ContentLength, r.TransferEncoding, r.Trailer.Get("X-Sent"), err, body)
		w.Header().Set("X-Sum", "sum")
	}))
	client := http3Client(t, "app")
	const forwarded = "https for=127.0.0.1;host=\"app\";proto=https"
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		for _, size := range []int{0, 1, 3000, 20_000, 300_000} {
			for _, stream := range []bool{false, true} {
				sent := strings.Repeat("x", size)
				res, got := send3(t, client, address, func(r *http.Request) {
					r.Method, r.Body, r.ContentLength = method, io.NopCloser(strings.NewReader(sent)), int64(size)
					if size == 0 {
						r.Body = nil
					}
					if stream && size > 0 {
						r.ContentLength = -1
					}
				})
				want := fmt.Sprintf("%s /path?q=1 %s %d []  <nil>\n%s", method, forwarded, size, sent)
				if stream && size > 0 {
					want = fmt.Sprintf("%s /path?q=1 %s -1 [\"chunked\"]  <nil>\n%s", method, forwarded, sent)
				}
				if got != want || res.Proto != "HTTP/3.0" || res.Header.Get("Alt-Svc") != "" || res.Trailer.Get("X-Sum") != "sum" {
					t.Errorf("%s, size %d, streamed %v: %s %v %v, got %.120q, want %.120q", method, size, stream, res.Proto, res.Header, res.Trailer, got, want)
				}
			}
		}
	}
	if _, got := send3(t, client, address, func(r *http.Request) {
		r.Method, r.Body, r.ContentLength, r.Trailer = http.MethodPost, io.NopCloser(strings.NewReader("x")), -1, http.Header{"X-Sent": {"trailer"}}
	}); !strings.Contains(got, " trailer <nil>\nx") {
		t.Errorf("a request with a trailer: %q", got)
	}
	eventually(t, "the access log has the protocol", func() bool { return strings.Contains(log.String(), `"protocol":"HTTP/3.0"`) })
	var line struct {
		Protocol, Host, Error string
		Status                int
	}
	if err := json.Unmarshal([]byte(strings.SplitN(log.String(), "\n", 2)[0]), &line); err != nil || line.Host != "app" || line.Status != 200 || line.Error != "" {
		t.Errorf("access log: %+v, %v", line, err)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all memory is released", func() bool { return b.options.Budget.Used() == 0 })
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// TestStreamsOfHTTP3 covers a conversation: the application responds while the request body is still being sent.
func TestStreamsOfHTTP3(t *testing.T) {
	_, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := errors.Join(control.EnableFullDuplex(), control.Flush()); err != nil {
			t.Error(err)
		}
		buffer := make([]byte, 100)
		for {
			n, err := r.Body.Read(buffer)
			_, _ = w.Write(bytes.ToUpper(buffer[:n]))
			control.Flush() // the client sees a failure
			if err != nil {
				return
			}
		}
	}))
	client := http3Client(t, "app")
	var res *http.Response
	var to *io.PipeWriter
	retried(t, func() bool {
		var from *io.PipeReader
		from, to = io.Pipe()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address, from)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "app"
		if res, err = client.RoundTrip(r); err != nil && !isTimeout(err) { //nolint:bodyclose // closed below
			t.Fatal(err)
		}
		return err == nil
	})
	defer res.Body.Close()
	for range 3 {
		trySend(to, "hello")
		got := make([]byte, 5)
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != "HELLO" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	to.Close()
	if rest, err := io.ReadAll(res.Body); err != nil || len(rest) > 0 {
		t.Errorf("the end of the response: %q, %v", rest, err)
	}
}

// TestHostsOfHTTP3 covers server names without a certificate, and requests for other hosts than the server name.
func TestHostsOfHTTP3(t *testing.T) {
	b, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, name := range []string{"unknown", "c.test"} {
		_, err := dialQUIC(t.Context(), address, quicClient(name))
		var alert *quic.TransportError
		if !errors.As(err, &alert) || !alert.ErrorCode.IsCryptoError() || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v, want the alert unrecognized_name", name, err)
		}
	}
	for _, test := range []struct {
		serverName, host string
		want             int
	}{
		{"app", "APP.:443", 200}, {"app", "b.test", 421}, {"app", "unknown", 421}, {"a.example.com", "b.test", 200}, {"a.example.com", "app", 421},
		{"x.example.com", "y.example.com", 404}, {"app", "local", 404},
	} {
		if res, _ := send3(t, http3Client(t, test.serverName), address, func(r *http.Request) { r.Host = test.host }); res.StatusCode != test.want {
			t.Errorf("host %s at %s: %d, want %d", test.host, test.serverName, res.StatusCode, test.want)
		}
	}
	eventually(t, "failed handshakes are over", func() bool { return b.options.Budget.Held(http3Memory)%http3ConnSize == 0 })
}

// TestRefusedByHTTP3 covers requests that HTTP/3 can express, but the gateway does not forward: WebSockets over HTTP/3 among them.
func TestRefusedByHTTP3(t *testing.T) {
	_, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("forwarded") }))
	client := http3Client(t, "app")
	for name, edit := range map[string]func(*http.Request){
		"CONNECT":   func(r *http.Request) { r.Method = http.MethodConnect },
		"WebSocket": func(r *http.Request) { r.Method, r.Proto = http.MethodConnect, "websocket" },
	} {
		if res, body := send3(t, client, address, edit); res.StatusCode != http.StatusMethodNotAllowed || body != "CONNECT is not supported\n" {
			t.Errorf("%s: %d %q", name, res.StatusCode, body)
		}
	}
	conn, err := quic.DialAddr(t.Context(), address, &tls.Config{ServerName: "app", InsecureSkipVerify: true, NextProtos: []string{"h2"}}, nil)
	if err == nil {
		t.Errorf("HTTP/2 over QUIC was accepted")
		conn.CloseWithError(0, "") //nolint:errcheck // always nil
	}
}

// TestForwardedOfHTTP3 covers trusted proxies: their headers are kept, others replaced.
func TestForwardedOfHTTP3(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Forwarded-Proto"), " ", r.Header.Get("X-Forwarded-Host"))
	})
	for prefix, want := range map[string]string{"127.0.0.0/8": "192.0.2.1, 127.0.0.1 http kept", "192.0.2.0/24": "127.0.0.1 https a.example.com"} {
		_, _, address := serveHTTP3(t, Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix(prefix)}}, app)
		if _, got := send3(t, http3Client(t, "a.example.com"), address, func(r *http.Request) {
			r.Header.Set("X-Forwarded-For", "192.0.2.1")
			r.Header.Set("X-Forwarded-Proto", "http")
			r.Header.Set("X-Forwarded-Host", "kept")
			// It is not redirected.
			r.Host = "a.example.com"
		}); got != want {
			t.Errorf("%s trusted: %q, want %q", prefix, got, want)
		}
	}
}

// TestCertificateChangesOfHTTP3 covers that a new certificate is for new connections, and that existing ones stay, also without any certificate.
func TestCertificateChangesOfHTTP3(t *testing.T) {
	_, store, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	old := http3Client(t, "app")
	first, _ := send3(t, old, address, nil)
	next := newCertificate(t, "app")
	store.Set(map[string]*tls.Certificate{"app": next})
	kept, body := send3(t, old, address, nil)
	if got := kept.TLS.PeerCertificates[0].Raw; body != "ok" || !bytes.Equal(got, first.TLS.PeerCertificates[0].Raw) {
		t.Errorf("the existing connection got %q, or was replaced", body)
	}
	if res, _ := send3(t, http3Client(t, "app"), address, nil); !bytes.Equal(res.TLS.PeerCertificates[0].Raw, next.Certificate[0]) {
		t.Error("a new connection has the old certificate")
	}
	store.Set(nil)
	if _, body := send3(t, old, address, nil); body != "ok" {
		t.Errorf("the existing connection got %q after the certificate was removed", body)
	}
	if _, err := quic.DialAddr(t.Context(), address, quicClient("app"), nil); err == nil {
		t.Error("a new connection was accepted without a certificate")
	}
}

func quicClient(serverName string) *tls.Config {
	return &tls.Config{ServerName: serverName, InsecureSkipVerify: true, NextProtos: []string{http3.NextProtoH3}}
}

// TestSessionsOfHTTP3 covers that sessions are resumed for their server name only, and never with early data.
func TestSessionsOfHTTP3(t *testing.T) {
	_, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	cache := &anySession{}
	for _, test := range []struct {
		name string
		want bool
	}{{"a.example.com", false}, {"a.example.com", true}, {"b.test", false}, {"b.test", true}} {
		client := http3Client(t, test.name)
		client.TLSClientConfig.ClientSessionCache = cache
		for _, method := range []string{http3.MethodGet0RTT, http.MethodGet} {
			res, _ := send3(t, client, address, func(r *http.Request) { r.Host, r.Method = test.name, method })
			if method == http3.MethodGet0RTT && (res.TLS.DidResume != test.want || res.StatusCode != http.StatusOK) {
				t.Errorf("%s: %d, resumed %v, want %v", test.name, res.StatusCode, res.TLS.DidResume, test.want)
			}
		}
		client.Close()
		config := quicClient(test.name)
		config.ClientSessionCache = cache
		retried(t, func() bool {
			conn, err := quic.DialAddrEarly(t.Context(), address, config, nil)
			if isTimeout(err) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-conn.HandshakeComplete():
			case <-conn.Context().Done():
				if err := context.Cause(conn.Context()); !isTimeout(err) {
					t.Fatal(err)
				}
				return false
			}
			if conn.ConnectionState().Used0RTT {
				t.Errorf("%s: early data was accepted", test.name)
			}
			conn.CloseWithError(0, "") //nolint:errcheck // always nil
			return true
		})
	}
}

// TestClientOfHTTP3Cancels covers that a request ends when its client cancels it or closes the connection.
func TestClientOfHTTP3Cancels(t *testing.T) {
	begun, ended := make(chan bool, 1), make(chan bool, 1)
	b, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- true
		<-r.Context().Done()
		ended <- true
	}))
	for _, closes := range []bool{false, true} {
		retried(t, func() bool {
			client := http3Client(t, "app")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "app"
			done := make(chan error, 1)
			go func() {
				res, err := client.RoundTrip(r)
				if err == nil {
					res.Body.Close()
				}
				done <- err
			}()
			select {
			case <-begun:
			case err := <-done:
				if !isTimeout(err) {
					t.Fatalf("the request ended before it reached the application: %v", err)
				}
				return false
			}
			if closes {
				client.Close()
			} else {
				cancel()
			}
			<-ended
			if err := <-done; err == nil {
				t.Error("a canceled request got a response")
			}
			return true
		})
	}
	eventually(t, "no request is in flight", func() bool { return inFlight(b.Gateway)["i-1"] == 0 })
}

// TestDrainHTTP3 covers that stopping sends GOAWAY, waits for requests in flight, and closes idle connections, although their clients keep them.
func TestDrainHTTP3(t *testing.T) {
	begun, proceed := make(chan bool), make(chan bool)
	b, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		begun <- true
		<-proceed
		fmt.Fprint(w, "done")
	}))
	idle, err := dialQUIC(t.Context(), address, quicClient("app"))
	if err != nil {
		t.Fatal(err)
	}
	control, err := idle.AcceptUniStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	answer := make(chan string, 1)
	client := http3Client(t, "app")
	go func() { _, body := send3(t, client, address, nil); answer <- body }()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- b.stop() }()
	// The control stream has the settings, and then a GOAWAY frame (type 7, RFC 9114 7.2.6).
	frames, err := io.ReadAll(control)
	var closed *quic.ApplicationError
	if !errors.As(err, &closed) || closed.ErrorCode != quic.ApplicationErrorCode(http3.ErrCodeNoError) || len(frames) < 3 || !bytes.Equal(frames[len(frames)-3:], []byte{7, 1, 0}) {
		t.Errorf("an idle connection got % x, %v, want GOAWAY and H3_NO_ERROR", frames, err)
	}
	if _, err := quic.DialAddr(t.Context(), address, quicClient("app"), &quic.Config{HandshakeIdleTimeout: 50 * time.Millisecond}); err == nil {
		t.Error("a new connection was accepted")
	}
	proceed <- true
	if got := <-answer; got != "done" {
		t.Errorf("the request in flight got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if b.chain.http3.Load() != 0 {
		t.Error("HTTP/3 is still advertised")
	}
}

// TestRetireHTTP3 covers that a connection ends after the next response, without a field of HTTP/1.1 in it.
func TestRetireHTTP3(t *testing.T) {
	b, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	client := http3Client(t, "app")
	send3(t, client, address, nil)
	b.Retire()
	if res, body := send3(t, client, address, nil); body != "ok" || res.Header.Get("Connection") != "" {
		t.Errorf("%v %q", res.Header, body)
	}
	eventually(t, "the connection is closed", func() bool { return b.options.Budget.Held(http3Memory) == 0 })
	// The client may not have noticed the end.
	eventually(t, "a new connection is used", func() bool {
		_, body, err := trySend3(t, client, address, nil)
		return err == nil && body == "ok"
	})
}

// TestAltSvc covers which responses advertise HTTP/3: over TLS, for hosts with a certificate, while it is served.
func TestAltSvc(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		if own := r.Header.Get("X-Own"); own != "" {
			w.Header().Set("Alt-Svc", own)
		}
	})
	for _, test := range []struct {
		port int
		want string
	}{{0, `h3=":443"; ma=3600`}, {8445, `h3=":8445"; ma=3600`}} {
		b, store, _ := serveHTTP3(t, Options{HTTPSPort: test.port}, app)
		ask := func(http2 bool, host string, body io.Reader, own string) []string {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+b.address, body)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = host
			r.Header.Set("X-Own", own)
			res, err := https(t, "b.test", http2).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			return res.Header.Values("Alt-Svc")
		}
		for _, http2 := range []bool{false, true} {
			for _, stream := range []bool{false, true} {
				var body io.Reader
				if stream {
					body = streamed("x")
				}
				if got := ask(http2, "B.test", body, ""); len(got) != 1 || got[0] != test.want {
					t.Errorf("HTTP/2 %v, streamed %v: Alt-Svc %q, want %q", http2, stream, got, test.want)
				}
				if stream {
					body = streamed("x")
				}
				if got := ask(http2, "b.test", body, "clear"); len(got) != 1 || got[0] != "clear" {
					t.Errorf("HTTP/2 %v, streamed %v: Alt-Svc %q, want the application's", http2, stream, got)
				}
			}
		}
		// The certificate of b.test covers this host, which has none of its own any more.
		store.Update(map[string]*tls.Certificate{"*.example.com": nil})
		if got := ask(true, "a.example.com", nil, ""); len(got) > 0 {
			t.Errorf("a host without a certificate advertises %q", got)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.plain, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "b.test"
		if res, _ := b.do(t, r); res.StatusCode != http.StatusOK || res.Header.Get("Alt-Svc") != "" {
			t.Errorf("a response without TLS: %s, Alt-Svc %q", res.Status, res.Header.Get("Alt-Svc"))
		}
	}
	b, _ := serveTLS(t, Options{}, app)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+b.address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "app"
	res, err := https(t, "app", false).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got := res.Header.Get("Alt-Svc"); got != "" {
		t.Errorf("without HTTP/3: Alt-Svc %q", got)
	}
}

// TestSilentClientsOfHTTP3 covers a connection whose requests never arrive completely, while memory is scarce: it gets GOAWAY after two seconds without a
// request, and is closed then. One that was accepted before stays.
func TestSilentClientsOfHTTP3(t *testing.T) {
	const limit = 16 << 20
	budget := flow.NewBudget(limit, limit)
	_, _, address := serveHTTP3(t, Options{Budget: budget}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	dial := func() (*quic.Conn, io.Reader) {
		conn, err := dialQUIC(t.Context(), address, quicClient("app"))
		if err != nil {
			t.Fatal(err)
		}
		control, err := conn.AcceptUniStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return conn, control
	}
	first, _ := dial()
	// The next connection takes most of the memory that remains.
	budget.Add("other", limit-2*http3ConnSize-http3ConnSize/8)
	defer budget.Release("other", limit-2*http3ConnSize-http3ConnSize/8)
	retried(t, func() bool {
		eventually(t, "memory of other connections is released", func() bool { return budget.Held(http3Memory) <= http3ConnSize })
		second, control := dial()
		stream, err := second.OpenStream()
		if err != nil {
			t.Log(err)
			return false
		}
		if _, err := stream.Write([]byte{1, 2}); err != nil {
			t.Log(err)
			return false
		}
		frames, _ := io.ReadAll(control)
		<-second.Context().Done()
		if early := []byte{7, 1, 0}; bytes.HasSuffix(frames, early) {
			return false
		}
		if want := []byte{7, 1, 4}; !bytes.HasSuffix(frames, want) {
			t.Errorf("the silent connection got % x, want GOAWAY after its stream, % x", frames, want)
		}
		if err := context.Cause(second.Context()); !isIdle(err) {
			t.Errorf("the silent connection ended with %v, want H3_NO_ERROR", err)
		}
		return true
	})
	if err := context.Cause(first.Context()); err != nil {
		t.Errorf("the first connection ended with %v", err)
	}
	first.CloseWithError(0, "") //nolint:errcheck // always nil
}

// TestTimeoutInBodyOfHTTP3 covers that a client that does not complete its body gets 504 in time, as by the other protocols.
func TestTimeoutInBodyOfHTTP3(t *testing.T) {
	const short = 100 * time.Millisecond
	for name, timeouts := range map[string]routing.Revision{
		"total": {Timeout: short}, "response start": {Timeout: time.Minute, ResponseStartTimeout: short}, "idle": {IdleTimeout: short},
	} {
		b, _, address := serveHTTP3(t, Options{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { drain(r.Body) }))
		spec := revision(0)
		spec.Timeout, spec.ResponseStartTimeout, spec.IdleTimeout = timeouts.Timeout, timeouts.ResponseStartTimeout, timeouts.IdleTimeout
		b.SetRevision(spec)
		res, got := send3(t, http3Client(t, "app"), address, func(r *http.Request) {
			body, rest := io.Pipe()
			t.Cleanup(func() { rest.Close() })
			go trySend(rest, "x")
			r.Method, r.Body, r.ContentLength = http.MethodPost, body, 2
		})
		if res.StatusCode != http.StatusGatewayTimeout || got != "request timeout\n" {
			t.Errorf("%s: got %d, %q", name, res.StatusCode, got)
		}
	}
}

// TestHandshakesOfHTTP3 covers first packets of handshakes that never continue: they hold memory up to the budget of one namespace, for ten seconds at
// most, and beyond maxUnverified clients must prove their address, which a real client does.
func TestHandshakesOfHTTP3(t *testing.T) {
	budget := flow.NewBudget(256<<20, largestRequest)
	b, _, address := serveHTTP3(t, Options{Budget: budget}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	packet := initialPacket(t)
	conn, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before := heap()
	// Each packet with another connection ID begins a handshake of its own, without a valid checksum: none is created for it by the client.
	flood := func(n int) {
		for i := range n {
			copy(packet[6:14], fmt.Sprintf("%08d", i))
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "handshakes in progress reach the threshold", func() bool {
		flood(100)
		return budget.Held(http3Memory) >= maxUnverified*http3HandshakeSize
	})
	flood(2000)
	if res, _ := send3(t, http3Client(t, "app"), address, nil); res.StatusCode != http.StatusOK {
		t.Errorf("a client got %d during the flood", res.StatusCode)
	}
	held := budget.Held(http3Memory)
	if held > (maxUnverified+1)*http3HandshakeSize+http3ConnSize {
		t.Errorf("the handshakes hold %d bytes", held)
	}
	if grown := heap() - before; grown > held {
		t.Errorf("the handshakes take %d bytes, the budget counts %d", grown, held)
	} else {
		t.Logf("the handshakes take %d bytes, the budget counts %d", grown, held)
	}
	eventually(t, "the handshakes time out", func() bool { return b.options.Budget.Held(http3Memory) <= http3ConnSize })
}

// initialPacket returns the first packet that a client sends.
func initialPacket(t *testing.T) []byte {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	ctx, cancel := context.WithCancel(t.Context())
	dialed := make(chan struct{})
	go func() {
		defer close(dialed)
		quic.DialAddr(ctx, socket.LocalAddr().String(), quicClient("app"), nil) //nolint:errcheck // nothing answers
	}()
	packet := make([]byte, 1500)
	n, _, err := socket.ReadFrom(packet)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-dialed
	return packet[:n]
}

// isStreamLimit reports whether a stream cannot be opened because the server allows no more.
func isStreamLimit(err error) bool {
	_, ok := errors.AsType[*quic.StreamLimitReachedError](err)
	return ok
}

// TestManyConnectionsOfHTTP3 covers that a connection gets fewer concurrent requests, and takes less memory, once others hold a quarter of what all may hold.
func TestManyConnectionsOfHTTP3(t *testing.T) {
	const limit = 24 << 20
	_, _, address := serveHTTP3(t, Options{Budget: flow.NewBudget(limit, largestRequest)}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var streams []int
	for {
		conn, err := dialQUIC(t.Context(), address, quicClient("app"))
		if err == nil {
			// Without memory for more than its handshake, the connection is closed after it.
			_, err = conn.AcceptUniStream(t.Context())
		}
		if isTimeout(err) || isIdle(err) {
			continue
		}
		if err != nil {
			break
		}
		defer conn.CloseWithError(0, "") //nolint:errcheck // always nil
		n := 0
		for ; err == nil; n++ {
			_, err = conn.OpenStream()
		}
		if isIdle(err) {
			continue
		}
		if !isStreamLimit(err) {
			t.Fatal(err)
		}
		streams = append(streams, n-1)
	}
	first, last := streams[0], streams[len(streams)-1]
	if same := limit / 2 / http3ConnSize; len(streams) < 3*same/2 || first != http3Streams || last != smallHTTP3Streams {
		t.Errorf("connections have %v streams, want %d, later %d, in more than %d connections", streams, http3Streams, smallHTTP3Streams, 3*same/2)
	}
}

// TestMemoryOfHTTP3 measures the memory of connections that open all of their streams, with the largest heads, which never end. The budget counts at least
// as much, and refuses further connections.
func TestMemoryOfHTTP3(t *testing.T) {
	retried(t, func() bool { return measureHTTP3(t) })
}

// measureHTTP3 returns false if a connection was closed meanwhile, because its client was paused.
func measureHTTP3(t *testing.T) bool {
	t.Helper()
	const limit = 24 << 20
	budget := flow.NewBudget(limit, largestRequest)
	b, _, address := serveHTTP3(t, Options{Budget: budget}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	before := heap()
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	transport := &quic.Transport{Conn: socket}
	defer socket.Close()
	defer transport.Close()
	target, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	refused, streams := 0, 0
	var open []*quic.Conn
	for refused == 0 {
		conn, err := transport.Dial(t.Context(), target, quicClient("app"), nil)
		if err == nil {
			// Without memory for more than its handshake, the connection is closed after it.
			_, err = conn.AcceptUniStream(t.Context())
		}
		if isTimeout(err) || isIdle(err) {
			t.Log(err)
			return false
		}
		if err != nil {
			refused++
			continue
		}
		open = append(open, conn)
		for {
			stream, err := conn.OpenStream()
			if isStreamLimit(err) {
				break
			}
			if err == nil {
				streams++
				// A frame of headers with 0x8000 bytes, of which the last ones never arrive.
				_, err = stream.Write(append([]byte{1, 0x80, 0, 0x80, 0}, make([]byte, maxHTTP3Header-100)...))
			}
			if isTimeout(err) || isIdle(err) {
				t.Log(err)
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if used := budget.Used(); used > limit || len(open) < 2 {
		t.Errorf("%d connections hold %d bytes of %d", len(open), used, limit)
	}
	// Both ends are in this process: the client's is larger.
	grown, held := heap()-before, budget.Held(http3Memory)
	for _, conn := range open {
		if err := context.Cause(conn.Context()); err != nil {
			t.Log(err)
			return false
		}
	}
	t.Logf("%d connections with %d streams take %d bytes with their clients, the budget counts %d", len(open), streams, grown, held)
	if grown > held {
		t.Errorf("%d connections take %d bytes, the budget counts %d", len(open), grown, held)
	}
	// HTTP/1.1 and other namespaces are served meanwhile.
	conn := b.mustDialTLS(t, "a.example.com", nil)
	if status, _ := ask(t, conn, bufio.NewReader(conn), "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n"); status != http.StatusOK {
		t.Errorf("a request by HTTP/1.1 got %d", status)
	}
	return true
}
