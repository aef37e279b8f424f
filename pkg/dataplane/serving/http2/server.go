package http2

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// receiveWindow bounds the unread bytes of a client's connection, and of each of its streams.
	receiveWindow = 256 << 10
	// maxUnsent bounds the bytes of bodies that wait to be written to a client.
	maxUnsent = 64 << 10
	// clientReadBuffer is the size of the buffer of a client's connection.
	clientReadBuffer = 4 << 10
	// maxFields bounds the number of fields of a head.
	maxFields = 1000
	// fieldOverhead is the part of the limit of a head that is for the overhead of its fields (RFC 9113 6.5.2), in bytes.
	fieldOverhead = 10 * 32
	// goneTime is the time in which a client must answer a ping, and goodbyeTime the time to write the last frames of a connection.
	goneTime, goodbyeTime = 10 * time.Second, time.Second
	// maxResets is the number of streams that were reset of which late frames are ignored.
	maxResets = 64
	// bodies is the account of the budget. It is not a valid name of a namespace.
	bodies = "/http2"
	// idleWorkers bounds the goroutines that wait for requests of any connection of a Server.
	idleWorkers = 64
)

// The steps of the end of a connection.
const (
	open int = iota
	// announced means that the client was asked to send no more requests. Requests that it had sent are served.
	announced
	// ending means that no more requests are served.
	ending
)

var (
	errStopped = errors.New("server stopped")
	errGone    = errors.New("the client does not answer")
	errLeft    = errors.New("the client closed the connection")
	// drainPing is answered after all requests that the client sent before it was asked to send no more.
	drainPing = [8]byte{'d', 'r', 'a', 'i', 'n'}
)

// ServerOptions are the options of a Server.
type ServerOptions struct {
	// Handler handles requests. As with net/http, the end of a request cancels its context, http.ErrAbortHandler resets it, and headers with
	// http.TrailerPrefix are trailers; but the type of a body is not guessed.
	Handler http.Handler
	// Rejected, if not nil, is called for requests that Handler does not get: with 431 if the head is too large, and with 400 if it is malformed,
	// so that the stream is reset. r has the parts of the request that could be read, at least RemoteAddr, and is valid until Rejected returns.
	Rejected func(r *http.Request, status int)
	// MaxHeaderBytes bounds the names and values of the fields of a head, which may have 1,000 fields; larger ones are answered with 431.
	// MaxStreams bounds the concurrent requests of a connection.
	MaxHeaderBytes, MaxStreams int
	// HeaderTimeout bounds the time until the client has begun the connection, IdleTimeout the time without a request.
	HeaderTimeout, IdleTimeout time.Duration
	// Budget, if not nil, bounds the bytes of bodies that Handler has not read yet, and of responses that wait to be written, beyond 16 KiB
	// of a connection. They belong to no namespace.
	Budget *flow.Budget
}

// Server serves connections of clients that speak HTTP/2.
//
// Whatever a client does, its connection holds at most receiveWindow unread bytes of bodies, one head of a request that is arriving, and the
// requests of MaxStreams streams, including canceled ones until Handler returns. A response waits while the client does not read.
type Server struct {
	ServerOptions
	// work passes requests, or nil to end them, to idle goroutines, whose stacks have grown already. idle is their number.
	work    chan *serverStream
	idle    atomic.Int32
	stopped atomic.Bool
	// standIn is the server that handlers find in the context. It serves nothing.
	standIn *http.Server
}

// NewServer returns a server.
func NewServer(options ServerOptions) *Server {
	return &Server{
		ServerOptions: options, work: make(chan *serverStream),
		standIn: &http.Server{Handler: options.Handler, ReadHeaderTimeout: options.HeaderTimeout},
	}
}

// Stop ends the idle goroutines, and others when they have handled their requests.
func (s *Server) Stop() {
	s.stopped.Store(true)
	for s.idle.Load() > 0 {
		select {
		case s.work <- nil:
		default:
			runtime.Gosched()
		}
	}
}

// run handles a request in another goroutine.
func (s *Server) run(r *serverStream) {
	select {
	case s.work <- r:
	default:
		go s.worker(r)
	}
}

// worker handles requests.
func (s *Server) worker(r *serverStream) {
	for r != nil {
		r.run()
		r = nil
		if s.idle.Add(1) <= idleWorkers && !s.stopped.Load() {
			r = <-s.work
		}
		s.idle.Add(-1)
	}
}

// serverConn is a connection of a client.
type serverConn struct {
	link
	server *Server
	// base is the parent of the contexts of requests. It is never canceled.
	base   context.Context
	remote string
	tls    *tls.ConnectionState

	// mu of the link guards the fields below.

	// step is a step of the end, lastID the last stream that the client has opened.
	step   int
	lastID uint32
	// handlers is the number of requests whose Handler has not returned.
	handlers int
	// resets are the last streams that were reset, next is the oldest of them.
	resets [maxResets]uint32
	next   int
	// seen is the number of frames of the client at the last check, pinged is true if the client was asked since.
	seen   uint64
	pinged bool
	// idleSince is the time since which there are no requests. check is called regularly.
	idleSince time.Time
	check     *time.Timer
}

// ServeConn serves a connection, whose preface was not read yet. It returns when the connection is closed. When ctx is canceled, it asks the client
// to send no more requests, and closes the connection after the last response.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn) {
	base := context.WithValue(context.WithoutCancel(ctx), http.ServerContextKey, s.standIn)
	c := &serverConn{server: s, base: context.WithValue(base, http.LocalAddrContextKey, conn.LocalAddr()), idleSince: time.Now()}
	c.begin(conn, c, s.MaxHeaderBytes+fieldOverhead, clientReadBuffer)
	c.streamWindow, c.connWindow, c.maxPending = receiveWindow, receiveWindow, maxUnsent
	if addr := conn.RemoteAddr(); addr != nil {
		c.remote = addr.String()
	}
	if s.Budget != nil {
		c.memory = flow.NewArrival(s.Budget, bodies, flow.ClientOf(conn.RemoteAddr()))
	}
	if secure, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		state := secure.ConnectionState()
		c.tls = &state
	}
	c.start()
	var writing sync.WaitGroup
	writing.Go(c.writeLoop)
	defer writing.Wait()
	defer context.AfterFunc(ctx, c.stop)()
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.input, preface); err != nil || string(preface) != http2.ClientPreface {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.closeLocked(errLeft)
		return
	}
	c.readLoop()
}

// start sends the settings.
func (c *serverConn) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.check = time.AfterFunc(c.server.HeaderTimeout, c.checkClient)
	c.write(c.writer.WriteSettings(
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(c.server.MaxStreams)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(c.server.MaxHeaderBytes + fieldOverhead)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: receiveWindow},
	))
	c.write(c.writer.WriteWindowUpdate(0, receiveWindow-firstWindow))
}

// stop ends the connection after its requests.
func (c *serverConn) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
}

// drain asks the client to send no more requests. mu is held.
func (c *serverConn) drain() {
	if c.err != nil || c.step != open {
		return
	}
	if c.step = announced; !c.settingsKnown {
		c.conclude()
		return
	}
	c.write(c.writer.WriteGoAway(maxStreamID, http2.ErrCodeNo, nil))
	c.write(c.writer.WritePing(false, drainPing))
	c.check.Reset(goodbyeTime)
}

// conclude ends the connection after the requests that have arrived. mu is held.
func (c *serverConn) conclude() {
	if c.step != ending {
		c.step = ending
		c.write(c.writer.WriteGoAway(c.lastID, http2.ErrCodeNo, nil))
	}
	if len(c.streams) == 0 {
		c.closeLocked(errStopped)
	}
}

// checkClient closes a connection without requests, or whose client is gone.
func (c *serverConn) checkClient() {
	c.mu.Lock()
	defer c.mu.Unlock()
	quiet := c.frames == c.seen
	c.seen = c.frames
	switch {
	case c.err != nil:
	case !c.settingsKnown:
		c.closeLocked(errGone)
	case c.step == announced:
		c.conclude()
		c.check.Reset(c.server.IdleTimeout)
	case len(c.streams) == 0:
		left := c.server.IdleTimeout - time.Since(c.idleSince)
		if left <= 0 {
			c.conclude()
			return
		}
		c.check.Reset(left)
	case !quiet:
		c.pinged = false
		c.check.Reset(c.server.IdleTimeout)
	case c.pinged:
		c.closeLocked(errGone)
	default:
		c.pinged = true
		c.write(c.writer.WritePing(false, [8]byte{}))
		c.check.Reset(goneTime)
	}
}

// closing implements role. The goroutine that writes sends the last frames, and closes the connection.
func (c *serverConn) closing(err error) {
	c.check.Stop()
	for _, s := range c.streams {
		s.fail(err)
		s.discard()
	}
	within := goodbyeTime
	if errors.Is(err, errStopped) {
		// The end of a response may still wait.
		within = goneTime
	}
	c.net.SetWriteDeadline(time.Now().Add(within)) //nolint:errcheck // fails on closed connections only
}

// vacant implements role.
func (c *serverConn) vacant() {
	if c.step == ending {
		c.closeLocked(errStopped)
		return
	}
	c.idleSince = time.Now()
}

// broken implements role.
func (c *serverConn) broken(err http2.StreamError) {
	if id := err.StreamID; id > c.lastID && id%2 == 1 {
		c.lastID = id
		c.rejected(c.newRequest(c.base), http.StatusBadRequest)
	}
	c.reset(err.StreamID, err.Code, err)
}

// rejected reports a request that Handler does not get.
func (c *serverConn) rejected(r *http.Request, status int) {
	if c.server.Rejected != nil {
		c.server.Rejected(r, status)
	}
}

// reset ends a stream with an error. mu is held.
func (c *serverConn) reset(id uint32, code http2.ErrCode, err error) {
	c.resets[c.next] = id
	c.next = (c.next + 1) % maxResets
	if s := c.streams[id]; s != nil {
		c.resetStream(s, code, err)
		return
	}
	c.write(c.writer.WriteRSTStream(id, code))
}

// wasReset reports whether late frames of a stream are ignored. mu is held.
func (c *serverConn) wasReset(id uint32) bool {
	for _, other := range c.resets {
		if other == id {
			return true
		}
	}
	return false
}

// failed implements role.
func (c *serverConn) failed(err error) {
	code, protocol := http2.ErrCodeNo, http2.ConnectionError(0)
	switch {
	case errors.As(err, &protocol):
		code = http2.ErrCode(protocol)
	case errors.Is(err, http2.ErrFrameTooLarge):
		code = http2.ErrCodeFrameSize
	}
	if code != http2.ErrCodeNo && c.err == nil {
		c.write(c.writer.WriteGoAway(c.lastID, code, nil))
	}
	c.closeLocked(err)
}

// receiveHeaders implements role.
func (c *serverConn) receiveHeaders(frame *http2.MetaHeadersFrame) error {
	id := frame.StreamID
	if s := c.streams[id]; s != nil {
		return s.owner.(*serverStream).receiveTrailer(frame)
	}
	switch {
	case id <= c.lastID && c.wasReset(id):
		return nil
	case id%2 == 0 || id <= c.lastID:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case c.step == ending:
		// The last frame that the client gets says that the request is not served.
		return nil
	}
	c.lastID = id
	if len(c.streams) >= c.server.MaxStreams || c.handlers >= c.server.MaxStreams {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	s, err := c.newStream(frame)
	if err != nil {
		return err
	}
	c.handlers++
	c.server.run(s)
	return nil
}

// unknown implements role.
func (c *serverConn) unknown(id uint32) error {
	if id%2 == 0 || id > c.lastID && c.step != ending {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// lateData implements role.
func (c *serverConn) lateData(frame *http2.DataFrame) error {
	if err := c.unknown(frame.StreamID); err != nil || c.wasReset(frame.StreamID) || frame.StreamID > c.lastID {
		return err
	}
	return http2.StreamError{StreamID: frame.StreamID, Code: http2.ErrCodeStreamClosed}
}

// set implements role. The server sends nothing that the other settings concern.
func (c *serverConn) set(http2.Setting) {}

// ponged implements role.
func (c *serverConn) ponged(data [8]byte) {
	if c.step == announced && data == drainPing {
		c.conclude()
	}
}

// receiveEnd implements role: the client reads the responses to its requests, and then closes the connection.
func (c *serverConn) receiveEnd(*http2.GoAwayFrame) { c.drain() }
