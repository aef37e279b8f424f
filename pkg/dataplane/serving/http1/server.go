package http1

import (
	"context"
	"net"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// The defaults of a Server.
const (
	defaultMaxHeaderBytes = 64 << 10
	defaultHeaderTimeout  = 10 * time.Second
	defaultIdleTimeout    = 3 * time.Minute
)

// Server serves connections of clients. Its fields may not change after the first call of ServeConn.
type Server struct {
	// Handler handles the requests.
	Handler Handler
	// Standard passes a connection to an http.Server whose ConnState is this package's, if a request needs the standard
	// path: HTTP/1.0, upgrades, bodies that are still arriving, CONNECT, targets in absolute form. The http.Server
	// reads one request, with the names of its header fields in lower case. After the response this package continues with
	// the connection, unless it is hijacked: these never return.
	Standard func(net.Conn)
	// HTTP2 serves a connection that begins with the preface of HTTP/2 (RFC 9113 3.4), until it is closed.
	HTTP2 func(ctx context.Context, conn net.Conn)
	// Rejected, if not nil, is called for malformed requests. head is nil if it was not read, may be incomplete, and is
	// valid until Rejected returns.
	Rejected func(peer netip.AddrPort, rejection *serving.Rejection, head *Head)
	// Retired, if not nil and true, closes each connection after its next response.
	Retired *atomic.Bool
	// Budget, if not nil, bounds the memory of requests whose heads are still arriving. They belong to no namespace.
	Budget *flow.Budget
	// MaxHeaderBytes bounds the head of a request; 0 means 64 KiB.
	MaxHeaderBytes int
	// HeaderTimeout bounds the time from the first byte of a head to its last, 0 means 10 s. IdleTimeout bounds the time
	// without a request, 0 means 3 min. A connection may be closed after three quarters of its idle timeout.
	HeaderTimeout, IdleTimeout time.Duration
}

// ServeConn serves a connection, or a *TLSConn after its handshake. It returns when the connection is closed or belongs to the standard path permanently. When
// ctx is canceled, it closes the connection after the response to the current request, if any.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn) {
	below := nc
	secure, _ := nc.(*TLSConn)
	if secure != nil {
		below = secure.transport.Conn
	}
	rawConn, ok := below.(syscall.Conn)
	if !ok {
		s.Standard(nc)
		return
	}
	raw, err := rawConn.SyscallConn()
	if err != nil {
		nc.Close()
		return
	}
	c := &conn{server: s, conn: nc, raw: raw, peer: peerOf(nc), base: context.WithoutCancel(ctx), canceled: ctx.Err, stopped: make(chan struct{})}
	c.readFunc, c.tryFunc = c.read, c.tryRead
	c.sender = sender{conn: below, raw: raw}
	c.sender.writeFunc = c.sender.write
	if secure != nil {
		c.tls, c.serverName = secure, secure.ConnectionState().ServerName
		secure.transport.sender = &c.sender
		secure.limit(s.headerTimeout())
	}
	stop := context.AfterFunc(ctx, c.stop)
	defer stop()
	defer c.unreserve()
	defer c.contain()
	c.serve()
	if c.http2 != nil {
		s.HTTP2(ctx, c.http2)
	}
}

// contain recovers from a panic and closes its connection, as net/http does. Other connections are unaffected.
func (c *conn) contain() {
	fault := recover()
	if fault == nil {
		return
	}
	klog.Background().Error(nil, "Recovered from a panic while forwarding a request", "panic", fault, "stack", string(debug.Stack()))
	c.conn.Close()
	if c.x.conn != nil {
		c.x.conn.conn.Close()
	}
}

func peerOf(nc net.Conn) netip.AddrPort {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		peer := a.AddrPort()
		return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	}
	return netip.AddrPort{}
}

func (s *Server) maxHeaderBytes() int { return orDefault(s.MaxHeaderBytes, defaultMaxHeaderBytes) }

func (s *Server) headerTimeout() time.Duration {
	return orDefault(s.HeaderTimeout, defaultHeaderTimeout)
}

func (s *Server) idleTimeout() time.Duration { return orDefault(s.IdleTimeout, defaultIdleTimeout) }

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}
