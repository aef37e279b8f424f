package http2

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/http2"
)

const (
	// connWindow is the window of a connection to a backend: so large that slow readers of some responses do not stop others.
	connWindow = 1 << 30
	// maxPending bounds the bytes of bodies that wait to be written to a backend.
	maxPending = 256 << 10
	// maxHead bounds the head of a response, and its trailers, in bytes.
	maxHead = 128 << 10
	// firstMaxStreams is the number of concurrent requests before the backend has set its limit.
	firstMaxStreams = 100
	// readBuffer is the size of the buffer of a connection to a backend.
	readBuffer = 16 << 10
	// writeTimeout is the time in which the backend must accept some bytes that are sent.
	writeTimeout = 30 * time.Second
)

var (
	// errUnavailable is the error of a request that needs another connection.
	errUnavailable = errors.New("the connection takes no more requests")
	errClosed      = errors.New("the instance closed the connection")
	errIdle        = errors.New("the connection was idle")
)

// conn is a connection to a backend. Its goroutines read and write frames until it is closed.
type conn struct {
	link
	removed func(*conn)

	// mu of the link guards the fields below.

	nextID uint32
	// draining is true once the connection takes no more requests.
	draining bool
	// maxStreams is the limit of the backend.
	maxStreams uint32
	// blockedSince is the time at which load first saw that the backend took no bodies; zero if it took some the last time.
	blockedSince time.Time
	// idleSince is the time since which there are no requests. idle closes the connection.
	idleSince time.Time
	idle      *time.Timer
}

func newConn(made net.Conn, removed func(*conn)) *conn {
	c := &conn{removed: removed, nextID: 1, maxStreams: firstMaxStreams, idleSince: time.Now()}
	c.begin(made, c, maxHead, readBuffer)
	c.streamWindow, c.connWindow, c.maxPending, c.writeTimeout = firstWindow, connWindow, maxPending, writeTimeout
	return c
}

// start sends the preface, and begins to read and write.
func (c *conn) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	pendingWriter{&c.link}.Write([]byte(http2.ClientPreface)) //nolint:errcheck // never fails
	c.write(c.writer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHead}))
	c.write(c.writer.WriteWindowUpdate(0, connWindow-firstWindow))
	c.idle = time.AfterFunc(idleTime, c.closeIdle)
	go c.writeLoop()
	go c.readLoop()
}

// load returns the number of requests, for how long the backend has taken no bodies as far as load has seen it, or 0, and whether the connection takes
// another request.
func (c *conn) load() (requests int, blocked time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.window > 0 && c.waiting() < maxPending {
		c.blockedSince = time.Time{}
		return len(c.streams), 0, c.available()
	}
	if c.blockedSince.IsZero() {
		c.blockedSince = time.Now()
	}
	return len(c.streams), max(time.Since(c.blockedSince), 1), c.available()
}

// available reports whether the connection takes another request. Much less than maxControl may wait to be written, because the head is added. mu is
// held.
func (c *conn) available() bool {
	return c.err == nil && !c.draining && len(c.streams) < int(c.maxStreams) && c.waiting() < maxControl/2
}

// open begins a request.
func (c *conn) open(r *Request) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.available() {
		return nil, errUnavailable
	}
	s := &Stream{conn: c, batch: c.batch}
	c.add(&s.stream, c.nextID, s)
	if c.nextID += 2; c.nextID > maxStreamID {
		c.drain()
	}
	c.encodeHead(r)
	s.sent = !r.HasBody
	c.writeBlock(s.id, s.sent)
	return s, nil
}

// drain makes the connection take no more requests; it is closed after the last one. mu is held.
func (c *conn) drain() {
	if !c.draining {
		c.draining = true
		go c.removed(c)
	}
	if len(c.streams) == 0 {
		c.closeLocked(errClosed)
	}
}

// closing implements role.
func (c *conn) closing(err error) {
	if !c.draining {
		c.draining = true
		go c.removed(c)
	}
	c.idle.Stop()
	for _, s := range c.streams {
		if s.owner.(*Stream).batch == c.batch {
			s.fail(fmt.Errorf("%w: it was not sent: %w", ErrUnprocessed, err))
		} else {
			s.fail(err)
		}
	}
	c.pending = nil
	c.net.Close()
}

// vacant implements role.
func (c *conn) vacant() {
	if c.draining {
		c.closeLocked(errClosed)
		return
	}
	c.idleSince = time.Now()
}

// closeIdle closes the connection if it was without requests for idleTime.
func (c *conn) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	left := idleTime
	if len(c.streams) == 0 {
		left -= time.Since(c.idleSince)
	}
	if left <= 0 {
		c.closeLocked(errIdle)
		return
	}
	c.idle.Reset(left)
}

// broken implements role.
func (c *conn) broken(err http2.StreamError) {
	if s := c.streams[err.StreamID]; s != nil {
		c.resetStream(s, err.Code, fmt.Errorf("%w: %w", ErrMalformed, err))
	}
}

// failed implements role.
func (c *conn) failed(err error) {
	var protocol http2.ConnectionError
	if errors.As(err, &protocol) || errors.Is(err, http2.ErrFrameTooLarge) {
		c.closeLocked(fmt.Errorf("%w: %w", ErrMalformed, err))
		return
	}
	c.closeLocked(fmt.Errorf("%w: %w", errClosed, err))
}

// receiveHeaders implements role.
func (c *conn) receiveHeaders(frame *http2.MetaHeadersFrame) error {
	s := c.streams[frame.StreamID]
	if s == nil {
		return c.unknown(frame.StreamID)
	}
	if err := s.owner.(*Stream).receiveFields(frame); err != nil {
		c.resetStream(s, http2.ErrCodeProtocol, err)
	}
	return nil
}

// unknown implements role.
func (c *conn) unknown(id uint32) error {
	if id%2 == 0 || id >= c.nextID {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

// lateData implements role.
func (c *conn) lateData(frame *http2.DataFrame) error { return c.unknown(frame.StreamID) }

// set implements role.
func (c *conn) set(setting http2.Setting) {
	if setting.ID != http2.SettingMaxConcurrentStreams {
		return
	}
	if c.maxStreams = setting.Val; c.maxStreams == 0 {
		c.drain()
	}
}

// ponged implements role. The connection sends no pings.
func (c *conn) ponged([8]byte) {}

// receiveEnd implements role: the connection takes no more requests, and requests end that the backend will not process.
func (c *conn) receiveEnd(frame *http2.GoAwayFrame) {
	for id, s := range c.streams {
		if id > frame.LastStreamID {
			delete(c.streams, id)
			s.fail(fmt.Errorf("%w: it closes the connection", ErrUnprocessed))
		}
	}
	c.drain()
}
