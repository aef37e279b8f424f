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

// What holds where a Server says nothing else.
const (
	defaultMaxHeaderBytes = 64 << 10
	defaultHeaderTimeout  = 10 * time.Second
	defaultIdleTimeout    = 3 * time.Minute
)

// Server serves connections of clients. Its fields may not change once it does.
type Server struct {
	// Handler handles the requests.
	Handler Handler
	// Standard takes over connections with what this package does not do: HTTP/2, HTTP/1.0, upgrades, bodies that
	// are still arriving, CONNECT, targets in absolute form. It has an http.Server serve them whose ConnState is
	// that of this package. They have the one request, with the names of its header fields in lower case; after its
	// answer they go on here. HTTP/2 and what was hijacked is Standard's for good.
	Standard func(net.Conn)
	// Rejected, if not nil, is called for requests that are rejected for their form. head is nil if it was not read, may be
	// incomplete, and is valid until Rejected returns.
	Rejected func(peer netip.AddrPort, rejection *serving.Rejection, head *Head)
	// Retired, if not nil, tells that connections end with their next answer.
	Retired *atomic.Bool
	// Budget, if not nil, bounds the memory of requests whose heads have not arrived yet. They belong to no namespace.
	Budget *flow.Budget
	// MaxHeaderBytes bounds the head of a request; 0 means 64 KiB.
	MaxHeaderBytes int
	// HeaderTimeout bounds the arrival of a head from its first byte on, 0 means 10 s; IdleTimeout the wait for
	// it, 0 means 3 min. A connection may be closed after three quarters of its idle timeout.
	HeaderTimeout, IdleTimeout time.Duration
}

// ServeConn serves a connection until it ends or is handed over. When ctx ends, it closes once the request that
// is being answered, if there is one, has its answer. It returns when the connection ended or is Standard's for good.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn) {
	rawConn, ok := nc.(syscall.Conn)
	if !ok {
		s.Standard(nc)
		return
	}
	raw, err := rawConn.SyscallConn()
	if err != nil {
		nc.Close()
		return
	}
	c := &conn{server: s, conn: nc, raw: raw, peer: peerOf(nc), base: context.WithoutCancel(ctx), stopped: make(chan struct{})}
	c.readFunc, c.tryFunc, c.writeFunc = c.read, c.tryRead, c.write
	stop := context.AfterFunc(ctx, c.stop)
	defer stop()
	defer c.unreserve()
	defer c.contain()
	c.serve()
}

// contain keeps a panic to the connection that it happened on, as net/http does: others go on.
func (c *conn) contain() {
	fault := recover()
	if fault == nil {
		return
	}
	klog.Background().Error(nil, "Forwarding a request panicked", "panic", fault, "stack", string(debug.Stack()))
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
