package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// bench is a running gateway with the host app for one Revision.
type bench struct {
	*Gateway
	address string
	// plain is the address without TLS of a bench with TLS.
	plain string
	// app is the address of the application.
	app    string
	client *http.Client
	stop   func() error
}

// serve starts a gateway on loopback until the test ends. Without app, its Revision has no backend.
func serve(t testing.TB, options Options, spec *routing.Revision, app http.Handler) *bench {
	t.Helper()
	g := New(options)
	g.SetRevision(spec)
	g.SetRoute(routeTo("app", "app", routing.Target{Revision: spec.Key, Percent: 100}))
	var appAddress string
	if app != nil {
		appAddress = listen(t, app)
		g.SetInstances(spec.Key, []workload.Instance{{Name: "i-1", Address: appAddress}})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, listener) }()
	b := &bench{Gateway: g, address: listener.Addr().String(), app: appAddress}
	stopped := false
	b.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-served
	}
	transport := &http.Transport{DisableCompression: true}
	b.client = &http.Client{Transport: transport, Timeout: time.Minute}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := b.stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return b
}

// listen starts an app for HTTP/1.1 and h2c on loopback until the test ends, and returns its address.
func listen(t testing.TB, app http.Handler) string {
	t.Helper()
	server := httptest.NewUnstartedServer(app)
	server.Config.Protocols = new(http.Protocols)
	server.Config.DisableGeneralOptionsHandler = true
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// h2c configures the client to speak HTTP/2.
func (b *bench) h2c() *bench {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	b.client.Transport = transport
	return b
}

func (b *bench) request(t *testing.T, method string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+b.address+"/path?a=1;b", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "app"
	return r
}

// reply is the head of a response.
type reply struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// do sends a request and returns its response.
func (b *bench) do(t *testing.T, r *http.Request) (reply, string) {
	t.Helper()
	res, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{StatusCode: res.StatusCode, Status: res.Status, Header: res.Header}, string(body)
}

// drain reads to the end or an error.
func drain(from io.Reader) { echo(io.Discard, from) }

func echo(to io.Writer, from io.Reader) {
	if _, err := io.Copy(to, from); err != nil {
		return
	}
}

// streamed returns a body of unknown length, which needs the standard path.
func streamed(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }

// paths are the paths of a request through the gateway.
var paths = []struct {
	name string
	http2,
	plain,
	standardOnly bool
}{{name: "plain", plain: true}, {name: "standard"}, {name: "h2c", http2: true}, {name: "plain without fast path", plain: true, standardOnly: true}}

// onPaths runs a test for each path. send returns a request that takes it.
func onPaths(t *testing.T, options Options, app http.Handler, test func(t *testing.T, b *bench, send func() *http.Request)) {
	for _, path := range paths {
		t.Run(path.name, func(t *testing.T) {
			spec := revision(0)
			if path.http2 {
				spec.Protocol = routing.H2C
			}
			options := options
			options.StandardOnly = path.standardOnly
			b := serve(t, options, spec, app)
			if path.http2 {
				b.h2c()
			}
			test(t, b, func() *http.Request {
				if path.plain {
					return b.request(t, http.MethodPost, strings.NewReader("hello"))
				}
				return b.request(t, http.MethodPost, streamed("hello"))
			})
		})
	}
}

// TestForward covers the parts of a request and its response that are forwarded (serving 8-1, 8-2, 8-6).
func TestForward(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.RequestURI, body)
		for _, name := range []string{"Host", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "K-Proxy-Request", "Knative-Serving-Revision", "Tracestate", "X-Own"} {
			fmt.Fprintf(w, "\n%s: %s", name, strings.Join(r.Header.Values(name), "|"))
		}
		fmt.Fprintf(w, "\nhost: %s\ntrace: %s", r.Host, r.Header.Get("Traceparent")[:36])
	})
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		r := send()
		r.Host = "APP:8080"
		for name, value := range map[string]string{
			"X-Forwarded-For": "10.0.0.1", "X-Forwarded-Host": "evil", "X-Forwarded-Proto": "https", "Forwarded": "for=10.0.0.1",
			"K-Proxy-Request": "x", "Knative-Serving-Revision": "x", "Tracestate": "a=b", "X-Own": "mine",
			"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		} {
			r.Header.Set(name, value)
		}
		res, got := b.do(t, r)
		want := `POST /path?a=1;b hello
Host: 
X-Forwarded-For: 127.0.0.1
X-Forwarded-Host: APP:8080
X-Forwarded-Proto: http
Forwarded: for=127.0.0.1;host="APP:8080";proto=http
K-Proxy-Request: 
Knative-Serving-Revision: 
Tracestate: a=b
X-Own: mine
host: APP:8080
trace: 00-0af7651916cd43dd8448eb211c80319c-`
		if res.StatusCode != http.StatusOK || got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", res.Status, got, want)
		}
		r = send()
		r.Host = "other"
		if res, _ := b.do(t, r); res.StatusCode != http.StatusNotFound {
			t.Errorf("unknown host: %s", res.Status)
		}
	})
}

// TestTimeouts checks that a request whose response does not start in time gets 504, and that a stalled response is aborted,
// regardless of the time limit for its start (serving 9.4.2-3).
func TestTimeouts(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		if r.Header.Get("Begin") != "" {
			fmt.Fprint(w, "begun")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	})
	const short, stall = 100 * time.Millisecond, time.Second
	for _, test := range []struct {
		timeouts routing.Revision
		longest  time.Duration
		stalls   bool
	}{
		{timeouts: routing.Revision{Timeout: short}, longest: time.Minute},
		{timeouts: routing.Revision{Timeout: time.Minute, ResponseStartTimeout: short}, longest: time.Minute},
		{timeouts: routing.Revision{Timeout: time.Minute, IdleTimeout: short}, longest: time.Minute},
		{timeouts: routing.Revision{Timeout: time.Minute, IdleTimeout: stall}, longest: time.Minute, stalls: true},
		{timeouts: routing.Revision{Timeout: time.Minute}, longest: stall, stalls: true},
	} {
		options := Options{MaxTimeout: func() time.Duration { return test.longest }}
		onPaths(t, options, app, func(t *testing.T, b *bench, send func() *http.Request) {
			spec := specOf(b.Gateway)
			spec.Timeout, spec.ResponseStartTimeout, spec.IdleTimeout = test.timeouts.Timeout, test.timeouts.ResponseStartTimeout, test.timeouts.IdleTimeout
			b.SetRevision(&spec)
			if !test.stalls {
				retried(t, func() bool {
					res, err := b.client.Do(send())
					if err != nil {
						// The request had not been sent when its time was over: the gateway responded and closed the connection.
						t.Log(err)
						return false
					}
					defer res.Body.Close()
					body, err := io.ReadAll(res.Body)
					if err != nil || res.StatusCode != http.StatusGatewayTimeout || strings.TrimSpace(string(body)) != "request timeout" {
						t.Errorf("%s %q, %v, want 504 request timeout", res.Status, body, err)
					}
					return true
				})
				return
			}
			retried(t, func() bool {
				r := send()
				r.Header.Set("Begin", "1")
				begun, err := b.client.Do(r)
				if err != nil {
					t.Log(err)
					return false
				}
				defer begun.Body.Close()
				body, err := io.ReadAll(begun.Body)
				if begun.StatusCode == http.StatusGatewayTimeout || err != nil && len(body) == 0 {
					t.Logf("%s, %v", begun.Status, err)
					return false
				}
				if err == nil || string(body) != "begun" {
					t.Errorf("the response is %q, %v, want an error after its start", body, err)
				}
				return true
			})
		})
	}
}

// TestStreamOutlivesTimeouts checks that the timeouts for the start of a response do not limit a response that has started
// (serving 9.4.2-3).
func TestStreamOutlivesTimeouts(t *testing.T) {
	const limit = 2 * time.Second
	proceed := make(chan bool)
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		fmt.Fprint(w, "begun ")
		w.(http.Flusher).Flush()
		select {
		case <-proceed:
		case <-r.Context().Done():
			return
		}
		fmt.Fprint(w, "ended")
	})
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		spec := specOf(b.Gateway)
		spec.Timeout, spec.ResponseStartTimeout = limit, limit
		b.SetRevision(&spec)
		retried(t, func() bool {
			res, err := b.client.Do(send())
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode == http.StatusGatewayTimeout {
				return false
			}
			time.AfterFunc(limit+limit/4, func() { proceed <- true })
			if body, err := io.ReadAll(res.Body); err != nil || string(body) != "begun ended" {
				t.Errorf("the response is %q, %v", body, err)
			}
			return true
		})
	})
}

// TestHold checks that requests wait for the first backend (serving 8-7) on each path, and are forwarded to the Revision that was
// chosen first (serving 8-8).
func TestHold(t *testing.T) {
	for _, path := range paths {
		t.Run(path.name, func(t *testing.T) {
			app := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
			activated := make(chan routing.Key, 1)
			spec := revision(1)
			if path.http2 {
				spec.Protocol = routing.H2C
			}
			b := serve(t, Options{Activate: func(key routing.Key) { activated <- key }, StandardOnly: path.standardOnly}, spec, nil)
			if path.http2 {
				b.h2c()
			}
			go func() {
				b.SetInstances(<-activated, []workload.Instance{{Name: "a", Address: app}})
			}()
			body := streamed("x")
			if path.plain {
				body = strings.NewReader("x")
			}
			if res, body := b.do(t, b.request(t, http.MethodPost, body)); body != "hello" {
				t.Errorf("%s %s", res.Status, body)
			}
		})
	}
}

// TestUnreachableInstance checks that a request is forwarded to another backend if one refuses the connection.
func TestUnreachableInstance(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { echo(w, r.Body) })
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		b.SetInstances(key("r"), []workload.Instance{
			{Name: "dead", Address: "127.0.0.1:1"}, {Name: "i-1", Address: b.app},
		})
		for range 4 {
			if res, body := b.do(t, send()); body != "hello" {
				t.Errorf("%s %q", res.Status, body)
			}
		}
	})
}

// TestNotRepeated checks that a request is not repeated if a backend closes the connection without a response, whether the connection
// was new or reused.
func TestNotRepeated(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodOptions, http.MethodPost} {
		t.Run(method, func(t *testing.T) {
			seen := make(chan string, 100)
			app := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				seen <- r.URL.Path + r.Header.Get("Idempotency-Key")
				if r.URL.Path == "/break" {
					panic(http.ErrAbortHandler)
				}
			})
			// Requests of an HTTP/2 client take the standard path to a backend that speaks HTTP/1.1.
			b := serve(t, Options{}, revision(0), app).h2c()
			for _, path := range []string{"/break", "/fine", "/break"} {
				r := b.request(t, method, nil)
				r.URL.Path = path
				r.Header.Set("Idempotency-Key", "1")
				res, _ := b.do(t, r)
				want := http.StatusOK
				if path == "/break" {
					want = http.StatusBadGateway
				}
				if res.StatusCode != want {
					t.Errorf("%s: %s", path, res.Status)
				}
				if got := <-seen; got != path+"1" {
					t.Errorf("the backend got %s, want %s1", got, path)
				}
			}
			if len(seen) > 0 {
				t.Errorf("the backend got %s again", <-seen)
			}
		})
	}
}

// TestClientGone checks that a client that closes its connection cancels its request at the backend.
func TestClientGone(t *testing.T) {
	began, ended := make(chan bool, 1), make(chan bool, 1)
	app := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		began <- true
		<-r.Context().Done()
		ended <- true
	})
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-began
			cancel()
		}()
		if res, err := b.client.Do(send().WithContext(ctx)); err == nil {
			res.Body.Close()
			t.Error("the client got a response")
		}
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Error("the backend still serves the request")
		}
	})
}

// TestTrailers covers the requirements of gRPC: trailers, and both directions at once.
func TestTrailers(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		w.WriteHeader(http.StatusOK)
		control := http.NewResponseController(w)
		if err := errors.Join(control.EnableFullDuplex(), control.Flush()); err != nil {
			return
		}
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintln(w, lines.Text())
			if err := control.Flush(); err != nil {
				return
			}
		}
		w.Header().Set("Grpc-Status", "0")
	})
	for _, path := range paths[1:] {
		t.Run(path.name, func(t *testing.T) {
			spec := revision(0)
			spec.Protocol = routing.HTTP1
			if path.http2 {
				spec.Protocol = routing.H2C
			}
			b := serve(t, Options{}, spec, app)
			if path.http2 {
				b.h2c()
			}
			read, write := io.Pipe()
			res, err := b.client.Do(b.request(t, http.MethodPost, read))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			lines := bufio.NewScanner(res.Body)
			for i := range 3 {
				fmt.Fprintln(write, i)
				if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
					t.Fatalf("line %d comes back as %q, %v", i, lines.Text(), lines.Err())
				}
			}
			write.Close()
			if lines.Scan() || res.Trailer.Get("Grpc-Status") != "0" {
				t.Errorf("trailer %v after %q", res.Trailer, lines.Text())
			}
		})
	}
}

// upgrade requests a WebSocket, and returns the connection after the response.
func (b *bench) upgrade(t *testing.T) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, reader, status := b.requestUpgrade(t)
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("the response has status %d", status)
	}
	return conn, reader
}

// requestUpgrade requests a WebSocket, and returns the connection after the response, and its status.
func (b *bench) requestUpgrade(t *testing.T) (conn net.Conn, reader *bufio.Reader, status int) {
	t.Helper()
	conn, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	reader = bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil) //nolint:bodyclose // it has none, or the connection is not used
	if err != nil {
		t.Fatal(err)
	}
	return conn, reader, res.StatusCode
}

// upgrading returns an app that switches protocols and calls serve with the connection.
func upgrading(serve func(conn net.Conn, from io.Reader)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		serve(conn, buffered)
	})
}

// TestUpgrade checks that an upgraded connection carries bytes in both directions, holds its slot, outlasts the timeout while it has
// traffic, and is closed without traffic (serving 9.4.2-3). No close frame is sent in the middle of another frame.
func TestUpgrade(t *testing.T) {
	spec := revision(1)
	spec.Timeout = 4 * time.Second
	retried(t, func() bool {
		b := serve(t, Options{}, spec, upgrading(func(conn net.Conn, from io.Reader) { echo(conn, from) }))
		began := time.Now()
		conn, reader, status := b.requestUpgrade(t)
		if status == http.StatusGatewayTimeout {
			return false
		}
		// The connection may have ended if there was no traffic after a time.
		last := began
		pause := time.NewTicker(spec.Timeout / 10)
		defer pause.Stop()
		for time.Since(began) < spec.Timeout*5/4 {
			sent := time.Now()
			// The start of a frame of 101 bytes and more.
			fmt.Fprintln(conn, "hello")
			if line, err := reader.ReadString('\n'); line != "hello\n" {
				if time.Since(last) >= spec.Timeout {
					return false
				}
				t.Fatalf("got %q, %v after %v", line, err, time.Since(began))
			}
			last = sent
			<-pause.C
		}
		if inst := try(poolOf(b.Gateway)); inst != nil {
			if time.Since(last) >= spec.Timeout {
				return false
			}
			t.Error("the slot of the upgraded connection is free")
		}
		if rest, err := io.ReadAll(reader); err != nil || len(rest) > 0 {
			t.Errorf("the connection ends with %q, %v, want its end without traffic", rest, err)
		}
		return true
	})
}

// The close frames (RFC 6455 5.5.1) with the status code 1001 that close a silent WebSocket.
const (
	closeClient  = "\x88\x02\x03\xe9"
	closeBackend = "\x88\x82\x00\x00\x00\x00\x03\xe9"
)

// TestSilentWebSocket checks that both ends of a WebSocket without traffic get a close frame, also if another replica owns the
// Revision.
func TestSilentWebSocket(t *testing.T) {
	spec := revision(1)
	spec.Timeout = 2 * time.Second
	names := []string{"a", "b"}
	owner, other := ownerAndOther(names...)
	for _, name := range []string{owner, other} {
		retried(t, func() bool {
			got := make(chan string, 1)
			app := upgrading(func(conn net.Conn, from io.Reader) {
				// A complete frame: a text message of two bytes.
				fmt.Fprint(conn, "\x81\x02hi")
				all, _ := io.ReadAll(from)
				got <- string(all)
			})
			all := serveReplicas(t, spec, []workload.Instance{{Name: "i", Address: listen(t, app)}}, nil, names, names...)
			conn, reader, status := all[name].requestUpgrade(t)
			if status == http.StatusGatewayTimeout {
				return false
			}
			// A complete masked frame: a binary message of one byte.
			const message = "\x82\x81\x01\x02\x03\x04x"
			fmt.Fprint(conn, message)
			toClient, err := io.ReadAll(reader)
			toBackend := <-got
			if !strings.HasPrefix(string(toClient), "\x81\x02hi") || !strings.HasPrefix(toBackend, message) {
				t.Logf("at %s the client gets %q, %v, the backend %q", name, toClient, err, toBackend)
				return false
			}
			if err != nil || !strings.HasPrefix(string(toClient), "\x81\x02hi"+closeClient) {
				t.Errorf("at %s the client gets %q, %v, want a message and a close frame", name, toClient, err)
			}
			if !strings.HasPrefix(toBackend, message+closeBackend) {
				t.Errorf("at %s the backend gets %q, want a message and a close frame", name, toBackend)
			}
			return true
		})
	}
}

// TestStop checks that Serve drains requests in flight.
func TestStop(t *testing.T) {
	began, proceed := make(chan bool), make(chan bool)
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		began <- true
		<-proceed
		fmt.Fprint(w, "done")
	})
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		stopped := make(chan error, 1)
		go func() {
			<-began
			go func() { stopped <- b.stop() }()
			for {
				conn, err := net.Dial("tcp", b.address)
				if err != nil {
					break
				}
				conn.Close()
			}
			proceed <- true
		}()
		if res, body := b.do(t, send()); body != "done" {
			t.Errorf("%s %q", res.Status, body)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

// TestStopWithHalfARequest checks that Serve does not wait for incomplete heads.
func TestStopWithHalfARequest(t *testing.T) {
	b := serve(t, Options{StopTimeout: time.Hour}, revision(0), http.NotFoundHandler())
	conn, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// After the response to the first request, the gateway has the start of the second one.
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: app\r\n\r\nGET / HTTP"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- b.stop() }()
	select {
	case err := <-stopped:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(headerTimeout * 9 / 10):
		t.Error("Serve waits for the rest of a head")
	}
}

// observed records the local address of the connection that sends a request.
func observed(r *http.Request, conns map[string]bool) *http.Request {
	return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		conns[info.Conn.LocalAddr().String()] = true
	}}))
}
