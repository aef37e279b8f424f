package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
)

const (
	// http3Streams and http3UniStreams bound the concurrent streams of a client: for requests, and for HTTP/3 itself, which needs three.
	http3Streams, http3UniStreams = 16, 8
	// maxHTTP3Header bounds the head of a request, in bytes. It is smaller than maxHeaderBytes because the heads of all streams may stay incomplete.
	maxHTTP3Header = 32 << 10
	// http3Window bounds the unread input of a connection at first, maxHTTP3Window once it has grown, in bytes. Each byte of it may hold
	// http3Overhead bytes of memory, because small frames occupy whole packet buffers.
	http3Window, maxHTTP3Window, http3Overhead = 32 << 10, 128 << 10, 12
	// http3HandshakeSize is the memory of a connection during its handshake, http3StreamSize of a stream whose head is still arriving,
	// http3ConnSize of a connection with all of these and http3Window, in bytes. Requests have memory of their own.
	http3HandshakeSize = 128 << 10
	http3StreamSize    = maxHTTP3Header + 16<<10
	http3ConnSize      = http3HandshakeSize + http3Streams*http3StreamSize + http3Window*http3Overhead
	// smallHTTP3Streams, smallHTTP3Window and smallHTTP3Size replace http3Streams, http3Window and http3ConnSize for connections that are accepted once
	// others hold a quarter of the memory that all may hold, so that about twice as many fit.
	smallHTTP3Streams, smallHTTP3Window = 4, 16 << 10
	smallHTTP3Size                      = http3HandshakeSize + smallHTTP3Streams*http3StreamSize + smallHTTP3Window*http3Overhead
	// http3Memory is the namespace of the memory of connections. It is not the name of a Kubernetes namespace.
	http3Memory = "/http3"
	// maxUnverified is the number of handshakes in progress from which on clients must prove their address first, which takes a round trip.
	maxUnverified = 64
	// http3KeepAlive is the interval of packets that keep a connection open, http3Silence the time after which a silent client is gone.
	http3KeepAlive, http3Silence = 30 * time.Second, 90 * time.Second
	// http3Linger is the time between the last response of a connection that ends and its close: the response is still being sent, and the
	// client learns not to send another request.
	http3Linger = time.Second
	// bodyWait limits the time to find out whether a GET request without Content-Length has a body.
	bodyWait = time.Second
	// altSvcAge is the time for which clients remember that a host is served by HTTP/3, in seconds.
	altSvcAge = 3600
)

var errHTTP3Full = errors.New("too many connections or too little memory")

// altSvc returns the Alt-Svc field that offers HTTP/3 at a port, 0 for 443 (RFC 7838).
func altSvc(port int) string {
	if port == 0 {
		port = httpsPort
	}
	return fmt.Sprintf(`h3=":%d"; ma=%d`, port, altSvcAge)
}

// advertised returns the Alt-Svc field of responses for a host at a connection with TLS, or "": while HTTP/3 is served, for hosts with a
// certificate, which is the one of the connection unless that also covers others.
func advertised[S string | []byte](c *chain, certificates *certificates.Store, serverName string, host S) string {
	if c.http3.Load() == 0 || !routetable.SameHost(host, serverName) && !certificates.Has(routetable.HostName(string(host))) {
		return ""
	}
	return c.altSvc
}

// ServeHTTP3 is like ServeTLS for HTTP/3 on a UDP socket. Meanwhile, responses over TLS advertise it.
//
// Connections and their unread input count against the memory budget as one namespace, and their number has the limit of one listener.
// Beyond either, connections are refused at once: clients continue with HTTP/2. Before that, they get fewer concurrent requests. Early data (0-RTT),
// which could be replayed, is refused.
func (g *Gateway) ServeHTTP3(ctx context.Context, socket net.PacketConn, certificates *certificates.Store) error {
	defer g.background(ctx)()
	s := newHTTP3Listening(g.chain, certificates)
	transport := &quic.Transport{Conn: socket, ConnContext: s.admit, VerifySourceAddress: func(net.Addr) bool { return s.handshakes.Load() >= maxUnverified }}
	defer socket.Close()
	defer transport.Close()
	listener, err := transport.Listen(http3TLSConfig(certificates), s.config())
	if err != nil {
		return fmt.Errorf("listen for HTTP/3 at %s: %w", socket.LocalAddr(), err)
	}
	g.chain.http3.Add(1)
	// Accept returns the remaining connections before the error.
	closeListener := context.AfterFunc(ctx, func() { listener.Close() })
	defer closeListener()
	for {
		conn, failure := listener.Accept(context.WithoutCancel(ctx))
		if failure != nil {
			err = failure
			break
		}
		s.serve(conn) //nolint:contextcheck // a connection has its own context
	}
	g.chain.http3.Add(-1)
	s.stop(context.WithoutCancel(ctx), g.options.StopTimeout)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("accept connections of HTTP/3 at %s: %w", socket.LocalAddr(), err)
}

// http3TLSConfig returns the configuration of handshakes for HTTP/3: as for the other protocols, without the challenges of ACME, which use TCP.
func http3TLSConfig(certificates *certificates.Store) *tls.Config {
	config := tlsConfig(certificates)
	config.GetConfigForClient = nil
	return http3.ConfigureTLSConfig(config)
}

// http3Listening is one call of ServeHTTP3.
type http3Listening struct {
	handler listenerHandler
	// limit is the maximum number of connections, handshakes the number of handshakes in progress.
	limit      int
	handshakes atomic.Int64

	// mu guards the fields below.
	mu    sync.Mutex
	conns map[*http3Conn]struct{}
	// draining is true once the connections end.
	draining bool
	// small is the client that is being accepted with the limits of a small connection, or nil.
	small *quic.ClientInfo
}

func newHTTP3Listening(c *chain, certificates *certificates.Store) *http3Listening {
	return &http3Listening{
		handler: listenerHandler{chain: c, public: true, certificates: certificates},
		limit:   max(connectionLimit()/max(c.options.Listeners, 1), minConnections), conns: map[*http3Conn]struct{}{},
	}
}

// config returns the limits of QUIC.
func (s *http3Listening) config() *quic.Config {
	config := &quic.Config{
		// The handshake may take twice this time.
		HandshakeIdleTimeout: headerTimeout / 2,
		MaxIdleTimeout:       http3Silence, KeepAlivePeriod: http3KeepAlive,
		MaxIncomingStreams: http3Streams, MaxIncomingUniStreams: http3UniStreams,
		InitialStreamReceiveWindow: http3Window, InitialConnectionReceiveWindow: http3Window,
		MaxStreamReceiveWindow: maxHTTP3Window, MaxConnectionReceiveWindow: maxHTTP3Window,
		AllowConnectionWindowIncrease: func(conn *quic.Conn, delta uint64) bool {
			return http3ConnOf(conn.Context()).hold(int64(delta) * http3Overhead) //nolint:gosec // at most maxHTTP3Window
		},
	}
	small := config.Clone()
	small.MaxIncomingStreams, small.InitialStreamReceiveWindow, small.InitialConnectionReceiveWindow = smallHTTP3Streams, smallHTTP3Window, smallHTTP3Window
	// It is called before admit.
	config.GetConfigForClient = func(client *quic.ClientInfo) (*quic.Config, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.small = nil; s.holdsQuarters(1) {
			s.small = client
			return small, nil
		}
		return config, nil
	}
	return config
}

// http3Conn is a connection of HTTP/3, from the first packet of its handshake on.
type http3Conn struct {
	serving *http3Listening
	// idle is the time without a request after which the connection is closed.
	idle time.Duration
	// size is the memory of the connection after its handshake, in bytes.
	size int64
	// server serves this connection alone: it can end it without the others.
	server http3.Server

	// mu guards the fields below.
	mu sync.Mutex
	// conn is nil during the handshake.
	conn *quic.Conn
	// memory is the reserved memory.
	memory *flow.Arrival
	// active is the number of requests being served, timer the limit of the time without any; nil during the handshake.
	active int
	timer  *time.Timer
	// draining is true once GOAWAY was sent.
	draining, closed bool
}

// http3ConnKey is the key of the http3Conn in the context of a connection.
type http3ConnKey struct{}

func http3ConnOf(ctx context.Context) *http3Conn {
	c, _ := ctx.Value(http3ConnKey{}).(*http3Conn)
	return c
}

// admit decides whether a connection is accepted, by the limits on number and memory. It implements quic.Transport.ConnContext.
func (s *http3Listening) admit(ctx context.Context, client *quic.ClientInfo) (context.Context, error) {
	memory := flow.NewArrival(s.handler.chain.options.Budget, http3Memory, flow.ClientOf(client.RemoteAddr))
	c := &http3Conn{serving: s, idle: idleTimeout, size: http3ConnSize, memory: memory}
	recorder := s.handler.chain.recorder
	s.mu.Lock()
	if s.small == client {
		c.size = smallHTTP3Size
	}
	full := s.draining || len(s.conns) >= s.limit
	if !full && (len(s.conns) > s.limit/4*3 || s.holdsQuarters(3)) {
		c.idle = scarceTimeout
	}
	if full || !c.hold(http3HandshakeSize) {
		s.mu.Unlock()
		recorder.refusedHTTP3.Inc()
		return nil, errHTTP3Full
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	s.handshakes.Add(1)
	recorder.http3Connections.Inc()
	context.AfterFunc(ctx, c.ended)
	return context.WithValue(ctx, http3ConnKey{}, c), nil
}

// holdsQuarters reports whether the connections hold n quarters of the memory that they may hold: as much as is free.
func (s *http3Listening) holdsQuarters(n int64) bool {
	budget := s.handler.chain.options.Budget
	return budget.Held(http3Memory)/n > budget.Free()/4
}

// hold reserves memory until the connection is closed.
func (c *http3Conn) hold(size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.memory.Reserve(size)
}

// ended releases the memory of a closed connection.
func (c *http3Conn) ended() {
	s := c.serving
	c.mu.Lock()
	handshaking := c.conn == nil
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	c.memory.ReleaseAll()
	c.mu.Unlock()
	if handshaking {
		s.handshakes.Add(-1)
	}
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.handler.chain.recorder.http3Connections.Dec()
}

// serve serves a connection after its handshake. It does not block.
func (s *http3Listening) serve(conn *quic.Conn) {
	c := http3ConnOf(conn.Context())
	if !c.accepted(conn) {
		return
	}
	s.handshakes.Add(-1)
	if !c.hold(c.size - http3HandshakeSize) {
		s.handler.chain.recorder.refusedHTTP3.Inc()
		go c.close(http3.ErrCodeExcessiveLoad)
		return
	}
	go c.server.ServeQUICConn(conn) //nolint:errcheck // errors of the client
}

// accepted notes the end of the handshake. It returns false if the connection is closed.
func (c *http3Conn) accepted(conn *quic.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.server = http3.Server{
		Handler: c, MaxHeaderBytes: maxHTTP3Header,
		// Errors of clients are not logged.
		Logger: slog.New(slog.DiscardHandler),
		ConnContext: func(ctx context.Context, conn *quic.Conn) context.Context {
			return context.WithValue(ctx, serverNameKey{}, conn.ConnectionState().TLS.ServerName)
		},
	}
	c.conn = conn
	c.timer = time.AfterFunc(c.idle, c.endIdle)
	return true
}

// ServeHTTP implements http.Handler.
func (c *http3Conn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.active++
	c.mu.Unlock()
	defer c.requestEnded() //nolint:contextcheck // see serve
	// It is the name of another protocol for an extended CONNECT (RFC 9220 3).
	r.Proto = "HTTP/3.0"
	prepareBody(w, r)
	c.serving.handler.ServeHTTP(w, r)
}

func (c *http3Conn) requestEnded() {
	c.mu.Lock()
	c.active--
	if c.active == 0 {
		c.restartTimer()
	}
	c.mu.Unlock()
	if c.serving.handler.chain.retired.Load() {
		c.drain()
	}
}

// restartTimer restarts the time without requests. The caller holds mu.
func (c *http3Conn) restartTimer() {
	switch {
	case c.closed || c.timer == nil:
	case c.draining:
		c.timer.Reset(http3Linger)
	default:
		c.timer.Reset(c.idle)
	}
}

// endIdle ends the connection unless it has a request: it sends GOAWAY first, because the client may be sending one, and closes the connection
// http3Linger later.
func (c *http3Conn) endIdle() {
	c.mu.Lock()
	active, draining := c.active, c.draining
	c.mu.Unlock()
	switch {
	case active > 0:
		// requestEnded starts the timer again.
	case draining:
		c.close(http3.ErrCodeNoError)
	default:
		c.drain()
	}
}

// close closes the connection, and cancels its requests and its handshake.
func (c *http3Conn) close(code http3.ErrCode) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	// The listener ends handshakes.
	if conn != nil {
		conn.CloseWithError(quic.ApplicationErrorCode(code), "") //nolint:errcheck // always nil
	}
}

// drain sends GOAWAY (RFC 9114 5.2), after which clients send no more requests, and closes the connection after the last response.
func (c *http3Conn) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.draining || c.closed || c.conn == nil {
		return
	}
	c.draining = true
	if c.active == 0 {
		c.restartTimer()
	}
	// It returns when the connection is closed.
	go c.server.Shutdown(c.conn.Context()) //nolint:errcheck // see above
}

// stop closes all connections: idle ones at once, others after their requests or the timeout within.
func (s *http3Listening) stop(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	for _, c := range s.open() {
		c.drain() //nolint:contextcheck // see serve
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(s.open()) > 0 && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	for _, c := range s.open() {
		c.close(http3.ErrCodeNoError)
	}
}

// open returns the connections.
func (s *http3Listening) open() []*http3Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*http3Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// prepareBody makes the body of a request like the ones of HTTP/2: requests without body have none, and announced trailers appear in the map that the
// request has from the start. HTTP/3 signals an empty body by the end of the stream only.
func prepareBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		r.Body = http.NoBody
		return
	}
	b := &http3Body{ReadCloser: r.Body, request: r, trailer: r.Trailer}
	r.Body = b
	if r.ContentLength > 0 {
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodDelete:
	default:
		return
	}
	control := http.NewResponseController(w)
	first := make([]byte, 1)
	control.SetReadDeadline(time.Now().Add(bodyWait)) //nolint:errcheck // fails on closed streams only, as do reads
	n, err := b.Read(first)
	control.SetReadDeadline(time.Time{}) //nolint:errcheck // see above
	if n > 0 {
		b.first = bytes.NewReader(first)
	} else if errors.Is(err, io.EOF) && len(r.Trailer) == 0 {
		r.Body, r.ContentLength = http.NoBody, 0
	}
}

// http3Body is the body of a request.
type http3Body struct {
	io.ReadCloser
	// first has the bytes that were read before; it may be nil.
	first *bytes.Reader
	// request gets a new map of trailers at the end of the body, which are copied to trailer if they were announced.
	request *http.Request
	trailer http.Header
}

// Read implements io.Reader.
func (b *http3Body) Read(p []byte) (int, error) {
	if b.first != nil && b.first.Len() > 0 {
		return b.first.Read(p)
	}
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		for name := range b.trailer {
			b.trailer[name] = b.request.Trailer[name]
		}
	}
	return n, err
}
