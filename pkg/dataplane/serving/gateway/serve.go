package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http2"
)

const (
	maxHeaderBytes = 64 << 10
	headerTimeout  = 10 * time.Second
	idleTimeout    = 3 * time.Minute
	// scarceTimeout replaces both timeouts for connections that are accepted while few slots are free.
	scarceTimeout = 2 * time.Second
	maxStreams    = 1000
	// ownFiles is the number of open files reserved for purposes other than connections to clients and backends.
	ownFiles = 512
	// minConnections and maxConnections bound the limit on connections of clients, regardless of the limit on open files.
	minConnections, maxConnections = 64, 1 << 17
)

// Serve accepts TCP connections until ctx is canceled. Then it drains requests in flight, at most for Options.StopTimeout, and
// closes the remaining connections. It returns an error if the listener fails before.
//
// Half of the files that the process may open are for connections of clients, the other half for connections to backends. Once
// three quarters of the clients' connections are open, new ones have a timeout of 2 s, both for a request's head and between
// requests. Once all are open, further clients wait in the listener's backlog. So clients that open connections and send nothing,
// or send slowly, do not block others.
func (g *Gateway) Serve(ctx context.Context, listener net.Listener) error {
	return g.serveListener(ctx, listener, newListening(g.chain, listenerHandler{chain: g.chain}))
}

// ServePublic is like Serve for requests from outside the cluster: cluster-local hosts are answered as unknown.
func (g *Gateway) ServePublic(ctx context.Context, listener net.Listener) error {
	return g.serveListener(ctx, listener, newListening(g.chain, listenerHandler{chain: g.chain, public: true}))
}

// ServeTLS is like ServePublic for HTTPS, with these certificates. Their changes apply to new connections.
func (g *Gateway) ServeTLS(ctx context.Context, listener net.Listener, certificates *certificates.Store) error {
	s := newListening(g.chain, listenerHandler{chain: g.chain, public: true, certificates: certificates})
	s.tls = tlsConfig(certificates)
	return g.serveListener(ctx, listener, s)
}

func (g *Gateway) serveListener(ctx context.Context, listener net.Listener, s *listening) error {
	defer g.background(ctx)()
	var running sync.WaitGroup
	defer running.Wait()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	running.Go(func() { s.standard.Serve(s.lent) }) //nolint:errcheck // ends by Shutdown
	closeListener := context.AfterFunc(serving, func() { listener.Close() })
	defer closeListener()
	err := s.accept(serving, listener)
	stop()
	s.stop(context.WithoutCancel(ctx), g.options.StopTimeout)
	s.regular.http2.Stop()
	s.scarce.http2.Stop()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("accept connections at %s: %w", listener.Addr(), err)
}

// background starts the background work of requests. The caller must call stop, which waits for its end.
func (g *Gateway) background(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	if log := g.chain.recorder.log; log != nil {
		running.Go(func() { log.run(ctx) })
	}
	if g.adjusting.CompareAndSwap(false, true) {
		running.Go(func() {
			defer g.adjusting.Store(false)
			g.fairness.Run(ctx)
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// listening is one call of Serve.
type listening struct {
	// regular has the default timeouts. scarce has scarceTimeout.
	regular, scarce servers
	// standard serves the standard path of HTTP/1.
	standard *http.Server
	// tls is nil for connections without TLS. budget bounds the memory of handshakes.
	tls        *tls.Config
	budget     *flow.Budget
	handshakes handshakes
	// trusts reports whether a peer begins its connections with a header of the PROXY protocol. Nil means that none does.
	trusts func(netip.Addr) bool
	// lent receives the connections that the standard path serves.
	lent *connListener
	// slots has an element for each open connection. Its capacity is the limit.
	slots chan struct{}

	// mu guards conns.
	mu    sync.Mutex
	conns map[*clientConn]struct{}
}

// servers serve the connections of a listener.
type servers struct {
	http1 http1.Server
	http2 *http2.Server
}

// listenerHandler passes the requests of a listener to the chain.
type listenerHandler struct {
	chain *chain
	// public is true if the requests come from outside the cluster.
	public bool
	// certificates is nil for connections without TLS.
	certificates *certificates.Store
}

// ServeHTTP1 implements http1.Handler.
func (e listenerHandler) ServeHTTP1(x *http1.Exchange) bool {
	if e.chain.options.StandardOnly {
		return false
	}
	in := inbound{peer: x.Peer(), public: e.public, head: x.Head(), tls: e.certificates != nil}
	if in.tls {
		in.misdirected = misdirected(e.certificates, x.ServerName(), in.head.Host)
		in.altSvc = advertised(e.chain, e.certificates, x.ServerName(), in.head.Host)
	}
	e.chain.identify(&in)
	return e.chain.serve(in, fastForwarder{x})
}

// ServeHTTP implements http.Handler.
func (e listenerHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	in := inbound{peer: peerOf(r), public: e.public, request: r, tls: e.certificates != nil}
	if in.tls {
		name := serverName(r.Context())
		in.misdirected = misdirected(e.certificates, name, r.Host)
		if r.ProtoMajor < 3 {
			in.altSvc = advertised(e.chain, e.certificates, name, r.Host)
		}
	}
	e.chain.serveHTTP(w, in) //nolint:contextcheck // Forwarder.Wait returns the context
}

// peerOf returns the address of the client of a request from net/http; the zero value means an unknown one.
func peerOf(r *http.Request) netip.AddrPort {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
}

func newListening(c *chain, handler listenerHandler) *listening {
	s := &listening{
		budget: c.options.Budget,
		lent:   &connListener{conns: make(chan net.Conn), closed: make(chan struct{})},
		slots:  make(chan struct{}, max(connectionLimit()/max(c.options.Listeners, 1), minConnections)),
		conns:  map[*clientConn]struct{}{},
	}
	if handler.public && c.options.ProxyProtocol {
		s.trusts = c.trusts
	}
	rejected := func(peer netip.AddrPort, r *serving.Rejection, head *http1.Head) {
		c.recorder.rejected(inbound{peer: peer, head: head}, r)
	}
	refused := func(r *http.Request, status int) {
		c.recorder.rejected(inbound{peer: peerOf(r), request: r}, &serving.Rejection{Status: status})
	}
	with := func(headerTimeout, idleTimeout time.Duration) servers {
		multiplexed := http2.NewServer(http2.ServerOptions{
			Handler: handler, MaxHeaderBytes: maxHeaderBytes, MaxStreams: maxStreams, HeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
			Budget: c.options.Budget, Rejected: refused,
		})
		return servers{http2: multiplexed, http1: http1.Server{
			Handler: handler, Standard: s.lent.add, HTTP2: multiplexed.ServeConn, Rejected: rejected, Retired: &c.retired, Budget: c.options.Budget,
			MaxHeaderBytes: maxHeaderBytes, HeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		}}
	}
	s.regular, s.scarce = with(headerTimeout, idleTimeout), with(scarceTimeout, scarceTimeout)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s.standard = &http.Server{
		Handler: handler, Protocols: protocols, ConnState: http1.ConnState, ConnContext: withServerName,
		// OPTIONS * is forwarded, as by the fast path.
		DisableGeneralOptionsHandler: true,
		MaxHeaderBytes:               maxHeaderBytes, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		// Errors of clients are not logged.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	return s
}

// connectionLimit returns the maximum number of connections of clients.
func connectionLimit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil || files.Cur > 2*maxConnections+ownFiles {
		return maxConnections
	}
	return max((int(files.Cur)-ownFiles)/2, minConnections)
}

// accept serves connections until the listener is closed or ctx is canceled.
func (s *listening) accept(ctx context.Context, listener net.Listener) error {
	failures := 0
	for {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		conn, err := listener.Accept()
		if err == nil {
			failures = 0
			s.serve(ctx, conn)
			continue
		}
		<-s.slots
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return err
		}
		// For example, too many files are open, or the client has closed its connection.
		failures++
		backoff.Sleep(ctx, clock.RealClock{}, backoff.Delay(failures, 5*time.Millisecond, time.Second))
	}
}

func (s *listening) serve(ctx context.Context, conn net.Conn) {
	c := &clientConn{Conn: conn, serving: s}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	if tcp, ok := conn.(*net.TCPConn); ok {
		// Keep-alive probes detect vanished clients. If setting them fails, reads and writes fail too.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 15 * time.Second, Count: 4})
	}
	with := &s.regular
	if len(s.slots) > cap(s.slots)/4*3 {
		with = &s.scarce
	}
	go s.serveConn(ctx, with, c)
}

// serveConn serves a connection until it is closed or belongs to the standard path.
func (s *listening) serveConn(ctx context.Context, with *servers, c *clientConn) {
	if s.trusts != nil && !s.identifyClient(ctx, c, with.http1.HeaderTimeout) {
		c.Close()
		return
	}
	if s.tls != nil {
		s.serveTLS(ctx, with, c)
		return
	}
	with.http1.ServeConn(ctx, c)
}

// stop closes all connections: idle ones at once, others after their request or the timeout within.
func (s *listening) stop(ctx context.Context, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s.standard.Shutdown(ctx) //nolint:errcheck // remaining connections are closed below
	// Connections of the fast path and upgraded connections, which Shutdown does not wait for.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(s.slots) > 0 && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	s.standard.Close()
	s.mu.Lock()
	remaining := make([]*clientConn, 0, len(s.conns))
	for c := range s.conns {
		remaining = append(remaining, c)
	}
	s.mu.Unlock()
	for _, c := range remaining {
		c.Close()
	}
}

// clientConn is a connection that counts against the limit until it is closed.
type clientConn struct {
	net.Conn
	// client is the address that a trusted proxy reported, or nil.
	client  net.Addr
	serving *listening
	once    sync.Once
}

// RemoteAddr implements net.Conn.
func (c *clientConn) RemoteAddr() net.Addr {
	if c.client != nil {
		return c.client
	}
	return c.Conn.RemoteAddr()
}

// Close closes the connection.
func (c *clientConn) Close() error {
	c.once.Do(func() {
		c.serving.mu.Lock()
		delete(c.serving.conns, c)
		c.serving.mu.Unlock()
		<-c.serving.slots
	})
	return c.Conn.Close()
}

// CloseWrite closes the write side.
func (c *clientConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// SyscallConn implements syscall.Conn.
func (c *clientConn) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// connListener is a net.Listener of connections that are already accepted.
type connListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// add passes a connection to Accept, or closes it if the listener is closed.
func (l *connListener) add(conn net.Conn) {
	select {
	case l.conns <- conn:
	case <-l.closed:
		conn.Close()
	}
}

// Accept implements net.Listener.
func (l *connListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *connListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *connListener) Addr() net.Addr { return &net.TCPAddr{} }
