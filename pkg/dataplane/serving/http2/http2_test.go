package http2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// serve returns a Pool and the address of an application.
func serve(t *testing.T, maxStreams int, app http.HandlerFunc) (*Pool, string) {
	t.Helper()
	return serveWith(t, &http.HTTP2Config{MaxConcurrentStreams: maxStreams}, app)
}

// serveWith is like serve for an application with a configuration of HTTP/2.
func serveWith(t *testing.T, config *http.HTTP2Config, app http.HandlerFunc) (*Pool, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(app)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.HTTP2 = config
	server.Start()
	t.Cleanup(server.Close)
	return NewPool(new(net.Dialer).DialContext), server.Listener.Addr().String()
}

func get() *Request {
	return &Request{Method: http.MethodGet, Authority: "app", Path: "/", Header: http.Header{"X-A": {"1", "2"}}}
}

func post() *Request {
	return &Request{Method: http.MethodPost, Authority: "app", Path: "/", HasBody: true, Length: -1}
}

// exchange sends a request with a body, and returns the response.
func exchange(ctx context.Context, p *Pool, address string, r *Request, body []byte, trailer http.Header) (Head, string, []hpack.HeaderField, error) {
	s, err := p.Open(ctx, address, r)
	if err != nil {
		return Head{}, "", nil, err
	}
	defer s.Close(errCanceled)
	var sending sync.WaitGroup
	defer sending.Wait()
	if r.HasBody {
		sending.Go(func() {
			if s.Write(ctx, body) == nil {
				s.CloseWrite(trailer) //nolint:errcheck // Head and read return the error
			}
		})
	}
	head, err := s.Head(ctx)
	if err != nil {
		return head, "", nil, err
	}
	content, err := read(ctx, s)
	return head, content, s.Trailer(), err
}

// read returns the body of a response.
func read(ctx context.Context, s *Stream) (string, error) {
	var content bytes.Buffer
	for {
		chunk, ended, err := s.Body(ctx, func() {})
		if err != nil {
			return content.String(), err
		}
		content.Write(chunk.Data)
		chunk.Done()
		if ended {
			return content.String(), nil
		}
	}
}

// connections returns the number of connections to an address.
func (p *Pool) connections(address string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.backends[address]; b != nil {
		return len(b.conns)
	}
	return 0
}

// TestExchanges covers requests and responses with bodies larger than all windows, and trailers, many at a time (serving 8-2).
func TestExchanges(t *testing.T) {
	p, address := serve(t, 100, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-B", r.Method+strings.Join(r.Header["X-A"], ""))
		w.Header().Set("Trailer", "X-End")
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Write(body) //nolint:errcheck // the client checks the body
		w.Header().Set("X-End", r.Trailer.Get("X-Sum"))
	})
	large := bytes.Repeat([]byte("0123456789"), 300_000)
	var running sync.WaitGroup
	for i := range 64 {
		running.Go(func() {
			r, body, want := post(), []byte(fmt.Sprint("small ", i)), "POST"
			switch i % 8 {
			case 0:
				body = large
			case 1:
				r, body, want = get(), nil, "GET12"
			}
			trailer := http.Header{}
			if r.HasBody {
				r.Trailer, trailer = http.Header{"X-Sum": nil}, http.Header{"X-Sum": {"sum"}}
			}
			head, content, end, err := exchange(t.Context(), p, address, r, body, trailer)
			if err != nil || head.Status != http.StatusOK || content != string(body) {
				t.Errorf("request %d: status %d with %d bytes, want %d bytes: %v", i, head.Status, len(content), len(body), err)
			}
			fields := map[string]string{}
			for _, f := range append(head.Fields, end...) {
				fields[f.Name] = f.Value
			}
			if fields["x-b"] != want || r.HasBody && fields["x-end"] != "sum" {
				t.Errorf("request %d: fields %v", i, fields)
			}
		})
	}
	running.Wait()
	if n := p.connections(address); n < 1 || n > maxSpread {
		t.Errorf("%d connections for 64 requests, want 1 to %d", n, maxSpread)
	}
}

// TestMaxStreams covers a backend that allows fewer requests on a connection than there are.
func TestMaxStreams(t *testing.T) {
	begun, proceed := make(chan struct{}, 20), make(chan struct{})
	p, address := serve(t, 2, func(http.ResponseWriter, *http.Request) {
		begun <- struct{}{}
		<-proceed
	})
	// The limit is known afterwards.
	go func() { <-begun; proceed <- struct{}{} }()
	if _, _, _, err := exchange(t.Context(), p, address, get(), nil, nil); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for range cap(begun) {
		running.Go(func() {
			for {
				_, _, _, err := exchange(t.Context(), p, address, get(), nil, nil)
				// A connection may be used before its limit is known.
				if !errors.Is(err, ErrUnprocessed) {
					if err != nil {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	close(proceed)
	running.Wait()
}

// A reader that stops holds at most a window, and does not stop others on its connection.
func TestSlowReader(t *testing.T) {
	p, address := serve(t, 100, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/endless" {
			for r.Context().Err() == nil {
				w.Write(make([]byte, 64<<10)) //nolint:errcheck // ends with the context
			}
		}
	})
	var streams []*Stream
	for range crowd - 1 {
		r := get()
		r.Path = "/endless"
		s, err := p.Open(t.Context(), address, r)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
		if _, err := s.Head(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		if _, _, _, err := exchange(t.Context(), p, address, get(), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.connections(address); n != 1 {
		t.Errorf("%d connections, want one", n)
	}
	for _, s := range streams {
		s.conn.mu.Lock()
		if s.unread > firstWindow || s.body.size > firstWindow {
			t.Errorf("%d unread bytes", s.unread)
		}
		s.conn.mu.Unlock()
		s.Close(errCanceled)
	}
}

// A body that the backend does not read uses up the window of its connection, and does not stop other requests.
func TestStalledBody(t *testing.T) {
	proceed := make(chan struct{})
	p, address := serve(t, 100, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stalled" {
			<-proceed
			return
		}
		if n, err := io.Copy(io.Discard, r.Body); n != firstWindow || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
	defer close(proceed)
	r := post()
	r.Path = "/stalled"
	stalled, err := p.Open(t.Context(), address, r)
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.Close(errCanceled)
	go stalled.Write(t.Context(), make([]byte, 8<<20)) //nolint:errcheck // ends with the test
	for blocked := false; !blocked; {
		stalled.conn.mu.Lock()
		blocked = stalled.conn.window == 0
		stalled.conn.mu.Unlock()
		runtime.Gosched()
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for range 10 {
		if _, _, _, err := exchange(ctx, p, address, post(), make([]byte, firstWindow), nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := p.connections(address); n != 2 {
		t.Errorf("%d connections, want the stalled one and another", n)
	}
}

// Connections whose backend takes no bodies are not multiplied without bound, unless it does not for long.
func TestBusyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFake(t)
		go func() {
			for c := range b.conns {
				go func() {
					if _, err := c.begin(); err == nil {
						c.discard()
					}
				}()
			}
		}()
		defer close(b.conns)
		upload := func(want int) {
			t.Helper()
			s, err := b.pool.Open(t.Context(), "app", post())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close(errCanceled) })
			go s.Write(t.Context(), make([]byte, firstWindow)) //nolint:errcheck // ends with the test
			synctest.Wait()
			if n := b.pool.connections("app"); n != want {
				t.Fatalf("%d connections, want %d", n, want)
			}
		}
		for i := range maxSpread {
			upload(i + 1)
		}
		for range 10 {
			upload(maxSpread)
		}
		time.Sleep(stallTime + time.Millisecond) //nolint:forbidigo // virtual time
		for i := range maxSpread {
			upload(maxSpread + i + 1)
		}
		upload(2 * maxSpread)
	})
}

// A connection without requests is closed after a while, and the next request makes another one.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFake(t)
		b.answers(t, 2)
		for range 2 {
			if _, _, _, err := exchange(t.Context(), b.pool, "app", get(), nil, nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(idleTime / 2) //nolint:forbidigo // virtual time
			if n := b.pool.connections("app"); n != 1 {
				t.Errorf("%d connections, want one", n)
			}
			time.Sleep(idleTime) //nolint:forbidigo // virtual time
			if n := b.pool.connections("app"); n != 0 {
				t.Errorf("%d connections, want none", n)
			}
		}
	})
}

// TestUnreachable covers the error of a request without a connection.
func TestUnreachable(t *testing.T) {
	p := NewPool(func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrUnexpectedEOF })
	_, err := p.Open(t.Context(), "app", get())
	if !errors.As(err, new(*DialError)) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want a DialError with the cause", err)
	}
	if len(p.backends) > 0 {
		t.Error("the address is kept")
	}
	ctx, cancel := context.WithCancel(t.Context())
	canceled := make(chan struct{})
	defer close(canceled)
	p = NewPool(func(context.Context, string, string) (net.Conn, error) {
		cancel()
		<-canceled
		return nil, io.EOF
	})
	if _, err := p.Open(ctx, "app", get()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the end of the request", err)
	}
}

// fake is a backend whose frames a test writes.
type fake struct {
	pool  *Pool
	conns chan *fakeConn
}

// fakeConn is a connection to a fake.
type fakeConn struct {
	net.Conn
	*http2.Framer
}

func newFake(t *testing.T) *fake {
	b := &fake{conns: make(chan *fakeConn, 10)}
	b.pool = NewPool(func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		c := &fakeConn{server, http2.NewFramer(server, server)}
		c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		t.Cleanup(func() { server.Close() })
		b.conns <- c
		return client, nil
	})
	return b
}

// begin reads the preface, and the frames up to a request, while it sends settings. It returns the stream of the request.
func (c *fakeConn) begin(settings ...http2.Setting) (uint32, error) {
	failed := make(chan error, 1)
	go func() { failed <- c.WriteSettings(settings...) }()
	id, err := c.awaitRequest()
	return id, errors.Join(err, <-failed)
}

// awaitRequest reads the preface, and the frames up to a request.
func (c *fakeConn) awaitRequest() (uint32, error) {
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return 0, err
	}
	return c.request()
}

// request reads up to a request.
func (c *fakeConn) request() (uint32, error) {
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			return 0, err
		}
		if head, ok := frame.(*http2.MetaHeadersFrame); ok {
			return head.StreamID, nil
		}
	}
}

// discard reads all frames, and returns the code of the reset of a stream.
func (c *fakeConn) discard() chan http2.ErrCode {
	codes := make(chan http2.ErrCode, 1000)
	go func() {
		for {
			frame, err := c.ReadFrame()
			if err != nil {
				return
			}
			if reset, ok := frame.(*http2.RSTStreamFrame); ok {
				codes <- reset.ErrCode
			}
		}
	}()
	return codes
}

func block(fields ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) //nolint:errcheck // a bytes.Buffer never fails
	}
	return b.Bytes()
}

func (c *fakeConn) respond(id uint32, end bool, fields ...string) error {
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(fields...), EndHeaders: true, EndStream: end})
}

// answers makes the fake answer one request on each of n connections.
func (b *fake) answers(t *testing.T, n int) {
	go func() {
		for range n {
			b.answer(t, func(c *fakeConn, id uint32) error { return c.respond(id, true, ":status", "200") })
		}
	}()
}

// answer accepts a connection, and answers its first request.
func (b *fake) answer(t *testing.T, with func(c *fakeConn, id uint32) error) {
	t.Helper()
	c := <-b.conns
	id, err := c.begin()
	if err == nil {
		c.discard()
		err = with(c, id)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestMisbehavior covers backends that violate the protocol, or end requests. Each request ends with an error that says so.
func TestMisbehavior(t *testing.T) {
	large := strings.Repeat("x", maxFrame)
	tests := map[string]struct {
		answer func(c *fakeConn, id uint32) error
		want   error
		reset  http2.ErrCode
	}{
		"refused": {answer: func(c *fakeConn, id uint32) error { return c.WriteRSTStream(id, http2.ErrCodeRefusedStream) }, want: ErrUnprocessed},
		"closing": {answer: func(c *fakeConn, _ uint32) error { return c.WriteGoAway(0, http2.ErrCodeNo, nil) }, want: ErrUnprocessed},
		"closed":  {answer: func(c *fakeConn, _ uint32) error { return c.Close() }, want: errClosed},
		"push": {answer: func(c *fakeConn, id uint32) error {
			return c.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: block(":method", "GET"), EndHeaders: true})
		}, want: ErrMalformed},
		"body first":     {answer: func(c *fakeConn, id uint32) error { return c.WriteData(id, true, []byte("x")) }, want: ErrMalformed},
		"no status":      {answer: func(c *fakeConn, id uint32) error { return c.respond(id, true, "x", "y") }, want: ErrMalformed},
		"status":         {answer: func(c *fakeConn, id uint32) error { return c.respond(id, true, ":status", "099") }, want: ErrMalformed},
		"switch":         {answer: func(c *fakeConn, id uint32) error { return c.respond(id, false, ":status", "101") }, want: ErrMalformed},
		"upper case":     {answer: func(c *fakeConn, id uint32) error { return c.respond(id, true, ":status", "200", "A", "b") }, want: ErrMalformed},
		"line break":     {answer: func(c *fakeConn, id uint32) error { return c.respond(id, true, ":status", "200", "a", "b\r\nc: d") }, want: ErrMalformed},
		"unknown stream": {answer: func(c *fakeConn, id uint32) error { return c.respond(id+2, true, ":status", "200") }, want: ErrMalformed},
		"window of stream": {answer: func(c *fakeConn, id uint32) error {
			return errors.Join(c.WriteWindowUpdate(id, 1<<31-1), c.WriteWindowUpdate(id, 1<<31-1))
		}, want: errWindow},
		"window of all": {answer: func(c *fakeConn, _ uint32) error { return errors.Join(c.WriteWindowUpdate(0, 1<<31-1)) }, want: ErrMalformed},
		"HTTP/1.1": {answer: func(c *fakeConn, _ uint32) error {
			_, err := io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			return err
		}, want: ErrMalformed},
		"frame size": {answer: func(c *fakeConn, id uint32) error {
			return c.WriteRawFrame(http2.FrameData, 0, id, make([]byte, maxFrame+1))
		}, want: ErrMalformed},
		"large header": {answer: func(c *fakeConn, id uint32) error {
			err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200")})
			for range maxHead/maxFrame + 1 {
				err = errors.Join(err, c.WriteContinuation(id, false, block("a", large[:maxFrame-100])))
			}
			return errors.Join(err, c.WriteContinuation(id, true, nil))
		}, want: ErrMalformed},
		"endless header": {answer: func(c *fakeConn, id uint32) error {
			err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200")})
			for err == nil {
				err = c.WriteContinuation(id, false, block("a", large[:maxFrame-100]))
			}
			return nil
		}, want: ErrMalformed},
		"endless interim": {answer: func(c *fakeConn, id uint32) (err error) {
			for range maxInterim + 1 {
				err = errors.Join(err, c.respond(id, false, ":status", "103"))
			}
			return err
		}, want: ErrMalformed},
		"large interim": {answer: func(c *fakeConn, id uint32) (err error) {
			for range maxHead / maxFrame {
				err = errors.Join(err, c.respond(id, false, ":status", "103", "a", large[:maxFrame-100], "b", large[:200]))
			}
			return err
		}, want: ErrMalformed},
		"more than the window": {answer: func(c *fakeConn, id uint32) error {
			err := c.respond(id, false, ":status", "200")
			for range firstWindow/maxFrame + 1 {
				err = errors.Join(err, c.WriteData(id, false, []byte(large)))
			}
			return err
		}, want: errWindow},
		"trailers in between": {answer: func(c *fakeConn, id uint32) error {
			return errors.Join(c.respond(id, false, ":status", "200"), c.respond(id, false, "a", "b"))
		}, want: ErrMalformed},
		"two heads": {answer: func(c *fakeConn, id uint32) error {
			return errors.Join(c.respond(id, false, ":status", "200"), c.respond(id, true, ":status", "200"))
		}, want: ErrMalformed},
		"reset in the body": {answer: func(c *fakeConn, id uint32) error {
			return errors.Join(c.respond(id, false, ":status", "200"), c.WriteData(id, false, []byte("x")), c.WriteRSTStream(id, http2.ErrCodeInternal))
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newFake(t)
			go b.answer(t, func(c *fakeConn, id uint32) error {
				if test.want == nil {
					return test.answer(c, id)
				}
				test.answer(c, id) //nolint:errcheck // the client may have closed the connection before it has read everything
				return nil
			})
			s, err := b.pool.Open(t.Context(), "app", get())
			if err != nil {
				t.Fatal(err)
			}
			for status := 0; err == nil && status < http.StatusOK; {
				var head Head
				head, err = s.Head(t.Context())
				status = head.Status
			}
			// Nothing is read before the stream has failed.
			for err == nil {
				s.conn.mu.Lock()
				err = s.err
				s.conn.mu.Unlock()
				runtime.Gosched()
			}
			if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if !s.Close(errCanceled) {
				t.Error("the backend has not ended the request")
			}
		})
	}
}

// TestNoSettings covers a connection that does not begin with settings (RFC 9113 3.4).
func TestNoSettings(t *testing.T) {
	b := newFake(t)
	go func() {
		c := <-b.conns
		// The request must not find the connection closed already.
		if _, err := c.awaitRequest(); err != nil {
			t.Error(err)
		}
		c.WritePing(false, [8]byte{}) //nolint:errcheck // the connection is closed
	}()
	if _, _, _, err := exchange(t.Context(), b.pool, "app", get(), nil, nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("error %v, want ErrMalformed", err)
	}
}

// A backend that asks for answers, and does not read them, loses its connection.
func TestPingFlood(t *testing.T) {
	b := newFake(t)
	go func() {
		c := <-b.conns
		if _, err := c.begin(); err != nil {
			t.Error(err)
			return
		}
		for c.WritePing(false, [8]byte{}) == nil {
		}
	}()
	if _, _, _, err := exchange(t.Context(), b.pool, "app", get(), nil, nil); !errors.Is(err, errFlood) {
		t.Errorf("error %v, want %v", err, errFlood)
	}
}

// A body waits for the window of its stream, which the backend may set to zero, and of its connection.
func TestSendWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newFake(t)
		s := make(chan *Stream, 1)
		go func() {
			opened, err := b.pool.Open(t.Context(), "app", post())
			if err != nil {
				t.Error(err)
			}
			s <- opened
		}()
		c := <-b.conns
		id, err := c.begin(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		if err != nil {
			t.Fatal(err)
		}
		sent := make(chan error, 1)
		stream := <-s
		synctest.Wait()
		received := 0
		go func() {
			for {
				frame, err := c.ReadFrame()
				if err != nil {
					return
				}
				if data, ok := frame.(*http2.DataFrame); ok {
					received += len(data.Data())
				}
			}
		}()
		go func() { sent <- stream.Write(t.Context(), make([]byte, 2*firstWindow)) }()
		grant := func(id uint32, bytes, want int) {
			t.Helper()
			if bytes > 0 {
				if err := c.WriteWindowUpdate(id, uint32(bytes)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			if received != want {
				t.Errorf("%d bytes were sent, want %d", received, want)
			}
		}
		grant(0, 0, 0)
		grant(id, 10, 10)
		// The window of the connection is 65,535 bytes until it is extended.
		grant(id, 2*firstWindow, firstWindow)
		grant(0, 5, firstWindow+5)
		// Windows that do not help do not make the stream wait more than once.
		for range 5 {
			grant(id, 1, firstWindow+5)
		}
		if stream.conn.mu.Lock(); len(stream.conn.blocked) != 1 {
			t.Errorf("%d streams wait, want one", len(stream.conn.blocked))
		}
		stream.conn.mu.Unlock()
		stream.Close(errCanceled)
		if err := <-sent; !errors.Is(err, errCanceled) {
			t.Errorf("error %v, want the end of the request", err)
		}
		c.Close()
	})
}

// A backend may answer before it has read the request, and end it (RFC 9113 8.1).
func TestEarlyAnswer(t *testing.T) {
	b := newFake(t)
	go b.answer(t, func(c *fakeConn, id uint32) error {
		return errors.Join(c.respond(id, true, ":status", "413"), c.WriteRSTStream(id, http2.ErrCodeNo))
	})
	head, _, _, err := exchange(t.Context(), b.pool, "app", post(), make([]byte, 10*firstWindow), nil)
	if err != nil || head.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d: %v, want 413", head.Status, err)
	}
}

// A request on a connection that the backend closes before the request was sent was not processed.
func TestUnsent(t *testing.T) {
	b := newFake(t)
	s, err := b.pool.Open(t.Context(), "app", get())
	if err != nil {
		t.Fatal(err)
	}
	c := <-b.conns
	// The first batch has the preface; the request is in it, or in the next one. This one is in a later one.
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	later, err := b.pool.Open(t.Context(), "app", get())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := later.Head(t.Context()); !errors.Is(err, ErrUnprocessed) {
		t.Errorf("error %v of a request that was not sent, want ErrUnprocessed", err)
	}
	s.Close(errCanceled)
}

// A canceled request is reset, and the connection stays.
func TestCancel(t *testing.T) {
	b := newFake(t)
	codes := make(chan chan http2.ErrCode, 1)
	go func() {
		c := <-b.conns
		if _, err := c.begin(); err != nil {
			t.Error(err)
		}
		codes <- c.discard()
	}()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("reason")
	s, err := b.pool.Open(ctx, "app", get())
	if err != nil {
		t.Fatal(err)
	}
	cancel(reason)
	if _, err := s.Head(ctx); !errors.Is(err, reason) {
		t.Errorf("error %v, want the cause", err)
	}
	if s.Close(errCanceled) {
		t.Error("the backend has ended the request")
	}
	if code := <-<-codes; code != http2.ErrCodeCancel {
		t.Errorf("reset with %s", code)
	}
	if n := b.pool.connections("app"); n != 1 {
		t.Errorf("%d connections, want one", n)
	}
}
