package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// newCertificate returns a self-signed certificate for host names.
func newCertificate(t testing.TB, hosts ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: hosts, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// serveTLS starts a gateway with HTTPS alone until the test ends. Its certificates are for "app", and "*.example.com" with "b.test".
func serveTLS(t testing.TB, options Options, app http.Handler) (*bench, *certificates.Store) {
	t.Helper()
	b := serve(t, options, revision(0), app)
	all := []routing.Target{{Revision: key("r"), Percent: 100}}
	b.SetRoute(&routing.Route{Key: key("app"), Hosts: []routing.Host{
		{Name: "app", Targets: all, RedirectToHTTPS: true}, {Name: "a.example.com", Targets: all}, {Name: "b.test", Targets: all}, {Name: "c.test", Targets: all},
		{Name: "local", Targets: all, ClusterLocal: true},
	}})
	store, other := &certificates.Store{}, newCertificate(t, "*.example.com", "b.test")
	store.Set(map[string]*tls.Certificate{"app": newCertificate(t, "app", "local"), "*.example.com": other, "b.test": other})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- b.ServeTLS(ctx, listener, store) }()
	b.plain, b.address = b.address, listener.Addr().String()
	stopPlain, stopped := b.stop, false
	b.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		err := <-served
		if plain := stopPlain(); err == nil {
			err = plain
		}
		return err
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return b, store
}

// dialTLS connects with a server name.
func (b *bench) dialTLS(t testing.TB, name string, edit func(*tls.Config)) (*tls.Conn, error) {
	t.Helper()
	conn, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{ServerName: name, InsecureSkipVerify: true}
	if edit != nil {
		edit(config)
	}
	client := tls.Client(conn, config)
	return client, client.HandshakeContext(t.Context())
}

func (b *bench) mustDialTLS(t testing.TB, name string, edit func(*tls.Config)) *tls.Conn {
	t.Helper()
	conn, err := b.dialTLS(t, name, edit)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// ask sends a request on a connection and returns the response with its body.
func ask(t testing.TB, conn net.Conn, reader *bufio.Reader, request string) (int, string) {
	t.Helper()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// https returns a client of HTTP/1.1 or HTTP/2 for a server name.
func https(t testing.TB, name string, http2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{ServerName: name, InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// TestServeTLS covers requests of HTTP/1.1 and HTTP/2 over TLS, on both paths, with bodies of several sizes. They are not redirected, and
// the application learns the scheme.
func TestServeTLS(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %v\n%s", r.Header.Get("X-Forwarded-Proto"), r.Header.Get("Forwarded"), err, body)
	})
	for _, standardOnly := range []bool{false, true} {
		for _, http2 := range []bool{false, true} {
			b, _ := serveTLS(t, Options{StandardOnly: standardOnly, Listeners: 2}, app)
			client := https(t, "app", http2)
			for range 2 {
				for _, size := range []int{0, 1, 3000, 20_000, 300_000} {
					for _, stream := range []bool{false, true} {
						sent := strings.Repeat("x", size)
						var body io.Reader = strings.NewReader(sent)
						if stream {
							body = streamed(sent)
						}
						r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+b.address, body)
						if err != nil {
							t.Fatal(err)
						}
						r.Host = "app"
						res, err := client.Do(r)
						if err != nil {
							t.Fatal(err)
						}
						got, err := io.ReadAll(res.Body)
						res.Body.Close()
						if want := "https for=127.0.0.1;host=\"app\";proto=https <nil>\n" + sent; err != nil || string(got) != want {
							t.Errorf("HTTP/2 %v, size %d, streamed %v: %v, got %.100q (%d bytes), want %.100q", http2, size, stream, err, got, len(got), want)
						}
						if (res.ProtoMajor == 2) != http2 {
							t.Errorf("%s, want HTTP/2 %v", res.Proto, http2)
						}
					}
				}
			}
		}
	}
}

// TestConnectionOfTLS covers a connection with pipelined requests, partial heads, and requests that alternate between the paths.
func TestConnectionOfTLS(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { echo(w, r.Body); fmt.Fprint(w, r.URL.Path) })
	b, _ := serveTLS(t, Options{}, app)
	conn := b.mustDialTLS(t, "app", nil)
	reader := bufio.NewReader(conn)
	for range 3 {
		if _, body := ask(t, conn, reader, "GET /1 HTTP/1.1\r\nHost: app\r\n\r\nGET /2 HTTP/1.1\r\nHost: app\r\n\r\nGET /3 HT"); body != "/1" {
			t.Fatalf("got %q", body)
		}
		if _, body := ask(t, conn, reader, ""); body != "/2" {
			t.Fatalf("got %q", body)
		}
		if _, body := ask(t, conn, reader, "TP/1.1\r\nHost: APP:443\r\n\r\n"); body != "/3" {
			t.Fatalf("got %q", body)
		}
		if _, body := ask(t, conn, reader, "POST /4 HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"); body != "abc/4" {
			t.Fatalf("got %q", body)
		}
	}
	if status, _ := ask(t, conn, reader, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); status != http.StatusHTTPVersionNotSupported {
		t.Errorf("HTTP/2 that was not negotiated: %d", status)
	}
}

// TestClientOfTLSCloses covers that a request ends when its client closes the connection.
func TestClientOfTLSCloses(t *testing.T) {
	begun, ended := make(chan bool, 1), make(chan bool, 1)
	app := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		begun <- true
		<-r.Context().Done()
		ended <- true
	})
	b, _ := serveTLS(t, Options{}, app)
	for _, request := range []string{"GET / HTTP/1.1\r\nHost: app\r\n\r\n", "GET / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"} {
		conn := b.mustDialTLS(t, "app", nil)
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		<-begun
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		<-ended
	}
}

// TestUpgradeOverTLS covers an upgraded connection, such as a WebSocket.
func TestUpgradeOverTLS(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		trySend(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		echo(conn, buffered)
	})
	b, _ := serveTLS(t, Options{}, app)
	conn := b.mustDialTLS(t, "app", nil)
	trySend(conn, "GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res.Status)
	}
	for _, message := range []string{"hello", strings.Repeat("x", 100_000)} {
		go trySend(conn, message)
		got := make([]byte, len(message))
		if _, err := io.ReadFull(reader, got); err != nil || string(got) != message {
			t.Errorf("got %.20q, %v", got, err)
		}
	}
}

func trySend(to io.Writer, s string) { _, _ = io.WriteString(to, s) }

// TestMisdirected covers requests for another host than the server name: 421, unless the certificate covers that host too.
func TestMisdirected(t *testing.T) {
	b, _ := serveTLS(t, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, test := range []struct {
		serverName, host string
		want             int
	}{
		{"app", "APP.:443", 200}, {"APP", "app", 200}, {"app", "b.test", 421}, {"app", "c.test", 421}, {"app", "unknown", 421},
		{"a.example.com", "b.test", 200}, {"b.test", "a.example.com:8443", 200}, {"a.example.com", "app", 421}, {"a.example.com", "x.a.example.com", 421},
		{"x.example.com", "y.example.com", 404}, {"app", "local", 404},
	} {
		for _, http2 := range []bool{false, true} {
			for _, body := range []io.Reader{nil, streamed("x")} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+b.address, body)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = test.host
				res, err := https(t, test.serverName, http2).Do(r)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if res.StatusCode != test.want {
					t.Errorf("host %s at %s, HTTP/2 %v: %d, want %d", test.host, test.serverName, http2, res.StatusCode, test.want)
				}
			}
		}
	}
}

// TestCertificateChanges covers that a new certificate is for new connections, and that existing ones stay, also without any certificate.
func TestCertificateChanges(t *testing.T) {
	b, store := serveTLS(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	const request = "GET / HTTP/1.1\r\nHost: app\r\n\r\n"
	old := b.mustDialTLS(t, "app", nil)
	reader := bufio.NewReader(old)
	ask(t, old, reader, request)
	next := newCertificate(t, "app")
	store.Set(map[string]*tls.Certificate{"app": next})
	if _, body := ask(t, old, reader, request); body != "ok" {
		t.Errorf("the existing connection got %q", body)
	}
	if got := b.mustDialTLS(t, "app", nil).ConnectionState().PeerCertificates[0]; !bytes.Equal(got.Raw, next.Certificate[0]) {
		t.Error("a new connection has the old certificate")
	}
	store.Set(nil)
	if _, body := ask(t, old, reader, request); body != "ok" {
		t.Errorf("the existing connection got %q after the certificate was removed", body)
	}
	if _, err := b.dialTLS(t, "app", nil); err == nil {
		t.Error("a new connection was accepted without a certificate")
	}
}

// anySession is a cache that offers the same session to all servers.
type anySession struct{ session *tls.ClientSessionState }

func (c *anySession) Get(string) (*tls.ClientSessionState, bool) { return c.session, c.session != nil }
func (c *anySession) Put(_ string, s *tls.ClientSessionState)    { c.session = s }

// TestSessions covers that sessions are resumed, for the server name that they began with and only while it has a certificate.
func TestSessions(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		b, store := serveTLS(t, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		cache := &anySession{}
		resumes := func(name string) (bool, error) {
			conn, err := b.dialTLS(t, name, func(c *tls.Config) { c.ClientSessionCache, c.MinVersion, c.MaxVersion = cache, version, version })
			if err != nil {
				return false, err
			}
			// The client receives a ticket of TLS 1.3 with the response.
			ask(t, conn, bufio.NewReader(conn), "GET / HTTP/1.1\r\nHost: "+name+"\r\n\r\n")
			return conn.ConnectionState().DidResume, nil
		}
		for _, test := range []struct {
			name string
			want bool
		}{{"a.example.com", false}, {"a.example.com", true}, {"b.test", false}, {"b.test", true}} {
			if resumed, err := resumes(test.name); err != nil || resumed != test.want {
				t.Errorf("version %x, %s: resumed %v, %v, want %v", version, test.name, resumed, err, test.want)
			}
		}
		store.Set(nil)
		if _, err := resumes("b.test"); err == nil {
			t.Errorf("version %x: a session was resumed without a certificate", version)
		}
	}
}

// TestSessionsOfAnother covers that a session that began at one gateway is resumed at another one with the same keys, also while one of them has
// the keys of the next period already, and that tickets of older keys begin new sessions.
func TestSessionsOfAnother(t *testing.T) {
	keys := [][32]byte{{1}, {2}, {3}, {4}, {5}}
	periods := [][][32]byte{{keys[1], keys[2], keys[0]}, {keys[2], keys[3], keys[1]}, {keys[3], keys[4], keys[2]}}
	app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	a, storeA := serveTLS(t, Options{}, app)
	b, storeB := serveTLS(t, Options{}, app)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		cache := &anySession{}
		resumes := func(at *bench) bool {
			conn := at.mustDialTLS(t, "app", func(c *tls.Config) { c.ClientSessionCache, c.MinVersion, c.MaxVersion = cache, version, version })
			// The client receives a ticket of TLS 1.3 with the response.
			ask(t, conn, bufio.NewReader(conn), "GET / HTTP/1.1\r\nHost: app\r\n\r\n")
			return conn.ConnectionState().DidResume
		}
		storeA.SetTicketKeys(periods[0])
		storeB.SetTicketKeys(periods[0])
		if resumes(a) || !resumes(b) || !resumes(a) {
			t.Errorf("version %x: a session was not resumed at the other gateway", version)
		}
		storeB.SetTicketKeys(periods[1])
		// Its ticket is of the previous period.
		if !resumes(b) {
			t.Errorf("version %x: a session of the previous period was not resumed", version)
		}
		// Its ticket is of the next period.
		if version == tls.VersionTLS13 && !resumes(a) {
			t.Error("a session of the next period was not resumed")
		}
		storeB.SetTicketKeys(periods[2])
		cache.session = nil
		resumes(a)
		if resumes(b) {
			t.Errorf("version %x: a session was resumed by a key of two periods ago", version)
		}
	}
}

// TestHandshakes covers that connections that do not complete their handshake cost neither others nor memory.
func TestHandshakes(t *testing.T) {
	b, _ := serveTLS(t, Options{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i := range 100 {
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		trySend(conn, "\x16\x03\x01\x02\x00\x01"[:i%7])
	}
	if _, err := b.dialTLS(t, "unknown", nil); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("an unknown server name got %v", err)
	}
	if _, err := b.dialTLS(t, "", nil); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("a missing server name got %v", err)
	}
	if answer := talk(t, b, "GET / HTTP/1.1\r\nHost: app\r\n\r\n"); strings.Contains(answer, "200") {
		t.Errorf("a request without TLS got %q", answer)
	}
	conn := b.mustDialTLS(t, "app", nil)
	if status, _ := ask(t, conn, bufio.NewReader(conn), "GET / HTTP/1.1\r\nHost: app\r\n\r\n"); status != http.StatusOK {
		t.Errorf("got %d", status)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	// Handshakes end shortly after their connections are closed.
	for b.options.Budget.Used() != 0 {
		<-time.After(time.Millisecond)
	}
}

// TestSlowHandshake covers the limits on the time and memory of a handshake.
func TestSlowHandshake(t *testing.T) {
	s := newListening(New(Options{}).chain, listenerHandler{certificates: &certificates.Store{}})
	s.tls = tlsConfig(&certificates.Store{})
	silent := func() *http1.TLSConn {
		server, client := net.Pipe()
		t.Cleanup(func() { client.Close() })
		return http1.NewTLSConn(server, s.tls)
	}
	if s.handshake(t.Context(), time.Millisecond, silent()) {
		t.Error("a silent client completed its handshake")
	}
	for s.budget.Reserve(handshaking, handshakeSize) {
		continue
	}
	if s.handshake(t.Context(), s.regular.http1.HeaderTimeout, silent()) {
		t.Error("a handshake completed without memory")
	}
	if s.regular.http1.HeaderTimeout != 10*time.Second {
		t.Errorf("a handshake may take %v", s.regular.http1.HeaderTimeout)
	}
}

// TestFloodOfHandshakes covers that clients that begin handshakes, and use up the memory for them, do not lock out others: each handshake gets the
// memory of the one that began first, and memory stays bounded.
func TestFloodOfHandshakes(t *testing.T) {
	const held = 20
	// A namespace that is alone may hold half of it.
	budget := flow.NewBudget(2*held*handshakeSize, 0)
	b, _ := serveTLS(t, Options{Budget: budget}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	conns := make([]net.Conn, 4*held)
	for i := range conns {
		var err error
		if conns[i], err = net.Dial("tcp", b.address); err != nil {
			t.Fatal(err)
		}
		defer conns[i].Close()
	}
	for range 5 {
		// It waits until one of the unfinished ones has had handshakeTime.
		conn := b.mustDialTLS(t, "app", nil)
		if status, _ := ask(t, conn, bufio.NewReader(conn), "GET / HTTP/1.1\r\nHost: app\r\n\r\n"); status != http.StatusOK {
			t.Errorf("got %d", status)
		}
		if used := budget.Held(handshaking); used > held*handshakeSize {
			t.Errorf("handshakes hold %d bytes, want at most %d", used, held*handshakeSize)
		}
	}
	for _, conn := range conns {
		conn.Close()
	}
	for budget.Held(handshaking) != 0 {
		<-time.After(time.Millisecond)
	}
}

// TestHandshakeWithoutMemory covers that clients perform handshakes while namespaces hold all of the memory.
func TestHandshakeWithoutMemory(t *testing.T) {
	const limit = 4 << 20
	budget := flow.NewBudget(limit, 0)
	b, _ := serveTLS(t, Options{Budget: budget}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	budget.Add("a", limit)
	conn := b.mustDialTLS(t, "app", nil)
	if status, _ := ask(t, conn, bufio.NewReader(conn), "GET / HTTP/1.1\r\nHost: app\r\n\r\n"); status != http.StatusOK {
		t.Errorf("got %d", status)
	}
}

// TestDrainTLS covers that stopping waits for requests in flight, and ends idle connections.
func TestDrainTLS(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		begun, proceed := make(chan bool), make(chan bool)
		b, _ := serveTLS(t, Options{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			begun <- true
			<-proceed
			fmt.Fprint(w, "done")
		}))
		idle := b.mustDialTLS(t, "app", nil)
		answer := make(chan string, 1)
		go func() {
			r, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://"+b.address, nil)
			r.Host = "app"
			res, err := https(t, "app", http2).Do(r)
			if err != nil {
				answer <- err.Error()
				return
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			answer <- string(body)
		}()
		<-begun
		stopped := make(chan error, 1)
		go func() { stopped <- b.stop() }()
		if n, err := idle.Read(make([]byte, 1)); err == nil {
			t.Errorf("an idle connection got %d bytes", n)
		}
		proceed <- true
		if got := <-answer; got != "done" {
			t.Errorf("HTTP/2 %v: the request in flight got %q", http2, got)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	}
}
