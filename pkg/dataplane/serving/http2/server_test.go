package http2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// patience is the time after which a test fails.
const patience = 20 * time.Second

// testing options of a server.
func options(handler http.HandlerFunc) ServerOptions {
	return ServerOptions{Handler: handler, MaxHeaderBytes: 8 << 10, MaxStreams: 10, HeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
}

// listen serves connections at loopback until the test ends, and returns the address, and a function that stops the server.
func listen(t *testing.T, o ServerOptions) (address string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(o)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.ServeConn(ctx, conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		serving.Wait()
		s.Stop()
	})
	return l.Addr().String(), cancel
}

// connect returns a client of a server, after the preface.
func connect(t *testing.T, o ServerOptions) (c *fakeConn, stop func()) {
	t.Helper()
	address, stop := listen(t, o)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return greet(t, conn), stop
}

// greet begins a connection.
func greet(t *testing.T, conn net.Conn, settings ...http2.Setting) *fakeConn {
	t.Helper()
	c := &fakeConn{conn, http2.NewFramer(conn, conn)}
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends the head of a request.
func (c *fakeConn) ask(t *testing.T, id uint32, end bool, method string, fields ...string) {
	t.Helper()
	fields = append([]string{":method", method, ":scheme", "http", ":authority", "app", ":path", "/"}, fields...)
	if err := c.respond(id, end, fields...); err != nil {
		t.Fatal(err)
	}
}

// expect reads up to a frame, and returns it.
func expect[F http2.Frame](t *testing.T, c *fakeConn, matches func(F) bool) F {
	t.Helper()
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("no %T: %v", *new(F), err)
		}
		if frame, ok := frame.(F); ok && matches(frame) {
			return frame
		}
	}
}

// expectReset reads up to the reset of a stream.
func (c *fakeConn) expectReset(t *testing.T, id uint32, code http2.ErrCode) {
	t.Helper()
	frame := expect(t, c, func(f *http2.RSTStreamFrame) bool { return f.StreamID == id })
	if frame.ErrCode != code {
		t.Errorf("stream %d was reset with %v, want %v", id, frame.ErrCode, code)
	}
}

// expectStatus reads up to the head of a response.
func (c *fakeConn) expectStatus(t *testing.T, id uint32, status string) *http2.MetaHeadersFrame {
	t.Helper()
	frame := expect(t, c, func(f *http2.MetaHeadersFrame) bool { return f.StreamID == id })
	if got := frame.PseudoValue("status"); got != status {
		t.Errorf("stream %d: status %s, want %s", id, got, status)
	}
	return frame
}

// client returns a client of net/http for a server.
func client(t *testing.T, address string) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// TestServerAsNetHTTP compares the responses to a client of net/http with net/http's own server: methods, bodies larger than all windows, both kinds of
// trailers, interim responses, statuses without a body.
func TestServerAsNetHTTP(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		w.Header().Set("Date", "today")
		switch r.URL.Path {
		case "/empty":
			return
		case "/status":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body with 204: %v", err)
			}
			return
		case "/hints":
			w.Header().Set("Link", "<a>")
			w.WriteHeader(http.StatusEarlyHints)
		case "/connection":
			w.Header().Set("Bad Name", "x")
			w.Header().Set("X-Bad", "a\nb")
		}
		w.Header().Set("Trailer", "X-End, X-Unset")
		w.Header().Add("X-Many", "1")
		w.Header().Add("X-Many", "2")
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Length", fmt.Sprint(r.ContentLength, len(body)))
		if _, err := fmt.Fprintf(w, "%s %s %s %v %v %s ", r.Method, r.Host, r.RequestURI, r.Header["Cookie"], r.Header["X-A"], r.Proto); err != nil {
			t.Error(err)
		}
		for len(body) > 0 && err == nil {
			var n int
			n, err = w.Write(body[:min(len(body), 10_000)])
			body = body[n:]
			w.(http.Flusher).Flush()
		}
		w.Header().Set("X-End", "end "+r.Trailer.Get("X-Sum"))
		w.Header().Set(http.TrailerPrefix+"X-Late", "late")
	}
	address, _ := listen(t, options(handler))
	_, reference := serve(t, 10, handler)
	clients := []*http.Client{client(t, address), client(t, reference)}
	large := strings.Repeat("0123456789", 300_000)
	for _, tc := range []struct{ method, path, body string }{
		{"GET", "/empty", ""}, {"GET", "/a?b=c%20d", ""}, {"HEAD", "/a", ""}, {"GET", "/status", ""}, {"GET", "/hints", ""}, {"OPTIONS", "/", ""},
		{"POST", "/a", "x"}, {"POST", "/a", large}, {"PUT", "/hints", large[:70_000]}, {"GET", "/connection", ""}, {"DELETE", "/a", large[:20_000]},
	} {
		var got [2]string
		for i, c := range clients {
			r, err := http.NewRequestWithContext(t.Context(), tc.method, "http://app"+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.body != "" {
				// Without a known length, and with a trailer.
				r.Body, r.Trailer = io.NopCloser(strings.NewReader(tc.body)), http.Header{"X-Sum": {"sum"}}
			}
			r.Header = http.Header{"Cookie": {"a=b", "c=d"}, "X-A": {"1", "2"}, "User-Agent": {""}}
			response, err := c.Do(r)
			if err != nil {
				t.Fatalf("%s %s: %v", tc.method, tc.path, err)
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			// Only net/http computes the length of a complete response.
			response.Header.Del("Content-Length")
			got[i] = fmt.Sprintf("%s %v %s %v %v", response.Status, response.Header, body, response.Trailer, err)
		}
		if got[0] != got[1] {
			t.Errorf("%s %s: got %.500s, want %.500s", tc.method, tc.path, got[0], got[1])
		}
	}
}

// TestExpectContinue checks that 100 (Continue) is sent when the body is read, once (RFC 9110 10.1.1).
func TestExpectContinue(t *testing.T) {
	c, _ := connect(t, options(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" {
			t.Error("the handler got Expect")
		}
		body, _ := io.ReadAll(r.Body)
		w.Write(body) //nolint:errcheck // the client checks the body
	}))
	c.ask(t, 1, false, "POST", "expect", "100-continue")
	c.expectStatus(t, 1, "100")
	if err := c.WriteData(1, true, []byte("body")); err != nil {
		t.Fatal(err)
	}
	c.expectStatus(t, 1, "200")
	if f := expect(t, c, func(f *http2.DataFrame) bool { return f.StreamID == 1 }); string(f.Data()) != "body" || !f.StreamEnded() {
		t.Errorf("got %q, ended %v, want the body with the end", f.Data(), f.StreamEnded())
	}
}

// TestMalformedRequests covers requests that violate RFC 9113 8: each is reset and reported, and the next one is served.
func TestMalformedRequests(t *testing.T) {
	read, rejected := make(chan error, 1), make(chan int, 1)
	o := options(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, err := io.ReadAll(r.Body)
			read <- err
		}
	})
	o.Rejected = func(r *http.Request, status int) {
		if _, err := netip.ParseAddrPort(r.RemoteAddr); err != nil {
			t.Error(err)
		}
		rejected <- status
	}
	expectRejected := func(want int) {
		t.Helper()
		select {
		case status := <-rejected:
			if status != want {
				t.Errorf("rejected with %d, want %d", status, want)
			}
		case <-time.After(patience):
			t.Fatal("the request is not reported")
		}
	}
	c, _ := connect(t, o)
	id := uint32(1)
	for name, fields := range map[string][]string{
		"no method":         {":scheme", "http", ":path", "/"},
		"method":            {":method", "GET /a HTTP/1.1", ":scheme", "http", ":path", "/"},
		"no scheme":         {":method", "GET", ":path", "/"},
		"other scheme":      {":method", "GET", ":scheme", "ftp", ":path", "/"},
		"no path":           {":method", "GET", ":scheme", "http"},
		"absolute path":     {":method", "GET", ":scheme", "http", ":path", "http://b/"},
		"relative path":     {":method", "GET", ":scheme", "http", ":path", "a"},
		"bad escape":        {":method", "GET", ":scheme", "http", ":path", "/%zz"},
		"CONNECT with path": {":method", "CONNECT", ":scheme", "http", ":path", "/", ":authority", "a"},
		"protocol":          {":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":path", "/", ":authority", "a"},
		"upper case":        {":method", "GET", ":scheme", "http", ":path", "/", "A", "b"},
		"line break":        {":method", "GET", ":scheme", "http", ":path", "/", "a", "b\r\nc: d"},
		"connection":        {":method", "GET", ":scheme", "http", ":path", "/", "connection", "close"},
		"chunks":            {":method", "GET", ":scheme", "http", ":path", "/", "transfer-encoding", "chunked"},
		"te":                {":method", "GET", ":scheme", "http", ":path", "/", "te", "gzip"},
		"two lengths":       {":method", "GET", ":scheme", "http", ":path", "/", "content-length", "0", "content-length", "0"},
		"length":            {":method", "GET", ":scheme", "http", ":path", "/", "content-length", "-1"},
		"length, no body":   {":method", "GET", ":scheme", "http", ":path", "/", "content-length", "1"},
		"status":            {":method", "GET", ":scheme", "http", ":path", "/", ":status", "200"},
	} {
		t.Log(name)
		if err := c.respond(id, true, fields...); err != nil {
			t.Fatal(err)
		}
		c.expectReset(t, id, http2.ErrCodeProtocol)
		expectRejected(http.StatusBadRequest)
		id += 2
	}
	for _, size := range []int{1, 3} {
		c.ask(t, id, false, "POST", "content-length", "2")
		if err := c.WriteData(id, true, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		c.expectReset(t, id, http2.ErrCodeProtocol)
		if err := <-read; err == nil {
			t.Errorf("a body of %d bytes instead of 2 was read to its end", size)
		}
		id += 2
	}
	large := strings.Repeat("x", 5<<10)
	c.ask(t, id, true, "GET", "x-large", large, "x-larger", large)
	c.expectStatus(t, id, "431")
	expectRejected(http.StatusRequestHeaderFieldsTooLarge)
	// The names are in the table after the first one, so that each is one byte.
	o.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the handler got too many fields") })
	o.MaxHeaderBytes = 64 << 10
	many, _ := connect(t, o)
	many.ask(t, 1, true, "GET", slices.Repeat([]string{"a", "b"}, 1000)...)
	many.expectStatus(t, 1, "431")
	expectRejected(http.StatusRequestHeaderFieldsTooLarge)
	c.ask(t, id+2, true, "GET")
	c.expectStatus(t, id+2, "200")
	if len(rejected) > 0 {
		t.Error("a request that was served is reported")
	}
}

// A request that its client resets is canceled. Its body, which may have ended, does not look complete.
func TestReset(t *testing.T) {
	begun, result := make(chan struct{}), make(chan error)
	c, _ := connect(t, options(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
		_, read := io.ReadAll(r.Body)
		_, write := w.Write([]byte("x"))
		result <- read
		result <- write
	}))
	c.ask(t, 1, false, "POST")
	if err := c.WriteData(1, true, []byte("body")); err != nil {
		t.Fatal(err)
	}
	<-begun
	if err := c.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
		t.Fatal(err)
	}
	for _, operation := range []string{"read", "write"} {
		if err := <-result; !errors.Is(err, errReset) {
			t.Errorf("%s after the reset: %v, want an error", operation, err)
		}
	}
}

// Requests that were reset count until their handler returns: a client cannot have more than MaxStreams handlers run.
func TestRapidReset(t *testing.T) {
	o := options(nil)
	begun, proceed := make(chan struct{}, 100), make(chan struct{})
	o.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-proceed
	})
	c, _ := connect(t, o)
	id := uint32(1)
	for range o.MaxStreams {
		c.ask(t, id, true, "GET")
		if err := c.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
		id += 2
	}
	for range o.MaxStreams {
		<-begun
	}
	c.ask(t, id, true, "GET")
	c.expectReset(t, id, http2.ErrCodeRefusedStream)
	close(proceed)
	for {
		id += 2
		c.ask(t, id, true, "GET")
		frame := expect(t, c, func(f http2.Frame) bool { return f.Header().StreamID == id })
		if _, served := frame.(*http2.MetaHeadersFrame); served {
			break
		}
	}
}

// A panic resets its request only. So does http.ErrAbortHandler, after a part of the response.
func TestPanic(t *testing.T) {
	c, _ := connect(t, options(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-A") {
		case "panic":
			panic("on purpose")
		case "abort":
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}))
	c.ask(t, 1, true, "GET", "x-a", "panic")
	c.expectReset(t, 1, http2.ErrCodeInternal)
	c.ask(t, 3, true, "GET", "x-a", "abort")
	c.expectStatus(t, 3, "200")
	c.expectReset(t, 3, http2.ErrCodeInternal)
	c.ask(t, 5, true, "GET")
	if f := c.expectStatus(t, 5, "200"); !f.StreamEnded() {
		t.Error("an empty response has two frames")
	}
}

// A response that ends before its request asks the client to stop (RFC 9113 8.1). What arrives until it does is ignored.
func TestEarlyResponse(t *testing.T) {
	c, _ := connect(t, options(func(http.ResponseWriter, *http.Request) {}))
	c.ask(t, 1, false, "POST")
	c.expectStatus(t, 1, "200")
	c.expectReset(t, 1, http2.ErrCodeNo)
	if err := errors.Join(c.WriteData(1, false, []byte("late")), c.respond(1, true, "x-sum", "late")); err != nil {
		t.Fatal(err)
	}
	c.ask(t, 3, true, "GET")
	c.expectStatus(t, 3, "200")
}

// Unread bytes of bodies are bounded by the windows, which are restored when requests end without reading, and by the budget.
func TestUnreadBodies(t *testing.T) {
	proceed := make(chan struct{})
	o := options(func(http.ResponseWriter, *http.Request) { <-proceed })
	o.Budget = flow.NewBudget(1<<20, 0)
	c, _ := connect(t, o)
	id := uint32(1)
	fill := func() {
		t.Helper()
		c.ask(t, id, false, "POST")
		for range receiveWindow / maxFrame {
			if err := c.WriteData(id, false, make([]byte, maxFrame)); err != nil {
				t.Fatal(err)
			}
		}
	}
	await := func(held int64) {
		t.Helper()
		for end := time.Now().Add(patience); o.Budget.Held(bodies) != held; {
			if time.Now().After(end) {
				t.Fatalf("%d bytes are held, want %d", o.Budget.Held(bodies), held)
			}
			<-time.After(time.Millisecond)
		}
	}
	fill()
	await(receiveWindow)
	proceed <- struct{}{}
	c.expectReset(t, id, http2.ErrCodeNo)
	await(0)
	expect(t, c, func(f *http2.WindowUpdateFrame) bool { return f.StreamID == 0 })

	// Without memory, the request is reset.
	id += 2
	for o.Budget.Reserve("other", maxFrame) {
		continue
	}
	for o.Budget.Reserve(bodies, maxFrame) {
		continue
	}
	held := o.Budget.Held(bodies)
	fill()
	c.expectReset(t, id, http2.ErrCodeEnhanceYourCalm)
	proceed <- struct{}{}
	await(held)

	// More than the window.
	o.Budget = nil
	c, _ = connect(t, o)
	id = 1
	fill()
	if err := c.WriteData(id, false, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if f := expect(t, c, func(*http2.GoAwayFrame) bool { return true }); f.ErrCode != http2.ErrCodeFlowControl {
		t.Errorf("the connection ended with %v", f.ErrCode)
	}
	close(proceed)
}

// A response waits while its client does not read: little of it is in memory, and other streams continue while only one window is used up.
func TestSlowClient(t *testing.T) {
	var sent sync.Map
	c, _ := connect(t, options(func(w http.ResponseWriter, r *http.Request) {
		name := r.Header.Get("X-A")
		for n := 0; name != "" && n < 10<<20; {
			written, err := w.Write(make([]byte, 1000))
			if n += written; err != nil {
				return
			}
			sent.Store(name, n)
		}
	}))
	settled := func(name string) int {
		for last := -1; ; {
			n, _ := sent.Load(name)
			if n, ok := n.(int); ok && n == last {
				return n
			} else if ok {
				last = n
			}
			<-time.After(100 * time.Millisecond)
		}
	}
	c.ask(t, 1, true, "GET", "x-a", "stream")
	if n := settled("stream"); n > firstWindow {
		t.Errorf("%d bytes were written into a window of %d", n, firstWindow)
	}
	if err := c.WriteWindowUpdate(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	c.ask(t, 3, true, "GET")
	c.expectStatus(t, 3, "200")
	// The connection is not read any more.
	if err := c.WriteWindowUpdate(1, 1<<30); err != nil {
		t.Fatal(err)
	}
	n := settled("stream")
	if err := c.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
		t.Fatal(err)
	}
	received := 0
	for id := uint32(0); id != 5; {
		if received == 0 {
			c.ask(t, 5, true, "GET")
		}
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := frame.(*http2.DataFrame); ok {
			received += len(data.Data())
		}
		if _, ok := frame.(*http2.MetaHeadersFrame); ok {
			id = frame.Header().StreamID
		}
		received++
	}
	if n > 10<<20-1 || n > received+2*maxUnsent {
		t.Errorf("%d bytes were written before %d were received", n, received)
	}
}

// Responses that wait to be written count against the budget. Without memory they continue in smaller parts.
func TestMemoryOfResponses(t *testing.T) {
	o := options(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(make([]byte, 1<<20)) //nolint:errcheck // the client checks the length
	})
	o.Budget = flow.NewBudget(1<<20, 0)
	o.MaxStreams = 100
	c, _ := connect(t, o)
	if err := errors.Join(c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}), c.WriteWindowUpdate(0, 1<<30)); err != nil {
		t.Fatal(err)
	}
	const streams = 20
	for i := range streams {
		c.ask(t, uint32(2*i+1), true, "GET")
	}
	// The connection is not read.
	for end := time.Now().Add(patience); o.Budget.Held(bodies) < maxUnsent-freePending; {
		if time.Now().After(end) {
			t.Fatalf("%d bytes are held", o.Budget.Held(bodies))
		}
		<-time.After(time.Millisecond)
	}
	for o.Budget.Reserve("other", maxFrame) || o.Budget.Reserve(bodies, maxFrame) {
		continue
	}
	received, ended := 0, 0
	for ended < streams {
		frame, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := frame.(*http2.DataFrame); ok {
			if received += len(data.Data()); data.StreamEnded() {
				ended++
			}
		}
	}
	if received != streams<<20 {
		t.Errorf("%d bytes were received", received)
	}
}

// Many streams share the windows of a connection, in both directions: none is forgotten.
func TestManyStreams(t *testing.T) {
	const streams, size = 300, 100_000
	small := &http.HTTP2Config{MaxConcurrentStreams: streams, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 16 << 10}
	o := options(func(w http.ResponseWriter, _ *http.Request) {
		for range size / 1000 {
			w.Write(make([]byte, 1000)) //nolint:errcheck // the client checks the length
		}
	})
	o.MaxStreams = streams
	address, _ := listen(t, o)
	downloads := client(t, address)
	downloads.Transport.(*http.Transport).HTTP2 = small
	// net/http resets streams that exceed a smaller window before the client knows it.
	windows := &http.HTTP2Config{MaxConcurrentStreams: streams, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10}
	p, reader := serveWith(t, windows, func(_ http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
			t.Errorf("%d bytes were sent: %v", n, err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var running sync.WaitGroup
	for range streams {
		running.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://app/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			response, err := downloads.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if n, err := io.Copy(io.Discard, response.Body); n != size || err != nil {
				t.Errorf("%d bytes were received: %v", n, err)
			}
		})
		running.Go(func() {
			if _, _, _, err := exchange(ctx, p, reader, post(), make([]byte, size), nil); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
}

// A client that asks for answers, and does not read them, loses its connection.
func TestFloodOfPings(t *testing.T) {
	c, _ := connect(t, options(func(http.ResponseWriter, *http.Request) {}))
	sent := 0
	for ; c.WritePing(false, [8]byte{}) == nil; sent++ {
		if sent > 10_000_000 {
			t.Fatal("the connection is still open")
		}
	}
	t.Logf("%d pings", sent)
}

// A server that stops serves requests that were sent before the client could know, finishes those in flight, and closes the connection.
func TestStop(t *testing.T) {
	begun, proceed := make(chan struct{}, 1), make(chan struct{})
	c, stop := connect(t, options(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			begun <- struct{}{}
			<-proceed
			w.Write(make([]byte, 50_000)) //nolint:errcheck // the client checks the length
		}
	}))
	c.ask(t, 1, true, "POST")
	<-begun
	stop()
	if f := expect(t, c, func(*http2.GoAwayFrame) bool { return true }); f.LastStreamID != maxStreamID || f.ErrCode != http2.ErrCodeNo {
		t.Errorf("the first GOAWAY has %d and %v", f.LastStreamID, f.ErrCode)
	}
	ping := expect(t, c, func(f *http2.PingFrame) bool { return !f.IsAck() })
	// It was sent before the client got the frame.
	c.ask(t, 3, true, "GET")
	if err := c.WritePing(true, ping.Data); err != nil {
		t.Fatal(err)
	}
	last, served := uint32(0), false
	for last == 0 || !served {
		frame := expect(t, c, func(http2.Frame) bool { return true })
		if end, ok := frame.(*http2.GoAwayFrame); ok {
			last = end.LastStreamID
		}
		served = served || frame.Header().StreamID == 3
	}
	if last != 3 {
		t.Errorf("the last GOAWAY has %d", last)
	}
	// It was not.
	c.ask(t, 5, true, "GET")
	close(proceed)
	length := 0
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			break
		}
		if data, ok := frame.(*http2.DataFrame); ok {
			length += len(data.Data())
		} else if frame.Header().StreamID == 5 {
			t.Errorf("the late request got %v", frame)
		}
	}
	if length != 50_000 {
		t.Errorf("%d bytes of the response in flight, want 50,000", length)
	}
}

// A response with Connection: close ends the connection after the requests in flight, as with HTTP/1.1.
func TestConnectionClose(t *testing.T) {
	c, _ := connect(t, options(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") }))
	c.ask(t, 1, true, "GET")
	frame := c.expectStatus(t, 1, "200")
	for _, f := range frame.Fields {
		if f.Name == "connection" {
			t.Error("the response has the field")
		}
	}
	ping := expect(t, c, func(f *http2.PingFrame) bool { return !f.IsAck() })
	if err := c.WritePing(true, ping.Data); err != nil {
		t.Fatal(err)
	}
	expect(t, c, func(f *http2.GoAwayFrame) bool { return f.LastStreamID == 1 })
	if _, err := c.ReadFrame(); err == nil {
		t.Error("the connection is open")
	}
}

// TestTimeouts covers clients that do not begin the connection, send no requests, or do not answer while they have requests.
func TestTimeouts(t *testing.T) {
	for name, tc := range map[string]struct {
		client func(t *testing.T, conn net.Conn)
		want   time.Duration
	}{
		"silent": {func(*testing.T, net.Conn) {}, 5 * time.Second},
		"idle":   {func(t *testing.T, conn net.Conn) { greet(t, conn) }, time.Minute},
		"idle after a request": {func(t *testing.T, conn net.Conn) {
			c := greet(t, conn)
			time.Sleep(30 * time.Second) //nolint:forbidigo // virtual time
			c.ask(t, 1, true, "GET")
		}, 90 * time.Second},
		// At the check after a minute it has sent frames since, after two it has not, and is asked.
		"gone": {func(t *testing.T, conn net.Conn) { greet(t, conn).ask(t, 1, true, "POST") }, 5*time.Second + time.Minute + goneTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewServer(options(func(_ http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost {
						<-r.Context().Done()
					}
				}))
				defer s.Stop()
				near, far := net.Pipe()
				defer far.Close()
				go io.Copy(io.Discard, far) //nolint:errcheck // ends with the connection
				begun := time.Now()
				go tc.client(t, far)
				s.ServeConn(t.Context(), near)
				if took := time.Since(begun); took != tc.want {
					t.Errorf("the connection was closed after %v, want %v", took, tc.want)
				}
			})
		})
	}
}

// TestDeadlines covers http.ResponseController: a read deadline ends reads of the body, a write deadline resets the stream.
func TestDeadlines(t *testing.T) {
	result := make(chan error, 1)
	c, _ := connect(t, options(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := errors.Join(control.EnableFullDuplex(), control.SetReadDeadline(time.Now().Add(10*time.Millisecond))); err != nil {
			t.Error(err)
		}
		_, err := io.ReadAll(r.Body)
		result <- err
		if err := control.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Error(err)
		}
		_, err = w.Write(make([]byte, 1<<20))
		result <- err
	}))
	c.ask(t, 1, false, "POST")
	c.expectStatus(t, 1, "200")
	c.expectReset(t, 1, http2.ErrCodeInternal)
	for range 2 {
		if err := <-result; err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Errorf("got %v, want a timeout", err)
		}
	}
}

// Many requests with bodies, on several connections, do not mix.
func TestConcurrentRequests(t *testing.T) {
	address, _ := listen(t, options(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body) //nolint:errcheck // the client checks the body
	}))
	clients := []*http.Client{client(t, address), client(t, address)}
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, 1+i*i*10)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://app/", bytes.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			response, err := clients[i%2].Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			if got, err := io.ReadAll(response.Body); err != nil || !bytes.Equal(got, body) {
				t.Errorf("request %d: %d bytes, %v, want %d", i, len(got), err, len(body))
			}
		})
	}
	running.Wait()
}
