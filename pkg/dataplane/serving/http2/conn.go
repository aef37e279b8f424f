package http2

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// window bounds the unread bytes of a response, as the first window of a stream does in RFC 9113 6.9.2.
	window = 65535
	// connWindow is the window of a connection: so large that slow readers of some responses do not stop others. It is extended whenever
	// half of it is used.
	connWindow = 1 << 30
	// maxPending bounds the bytes of bodies that wait to be written, and maxControl all bytes that do: a backend that sends requests for
	// answers, such as pings, and does not read them loses its connection.
	maxPending, maxControl = 256 << 10, 1 << 20
	// maxHead bounds the head of a response, and its trailers, in bytes.
	maxHead = 128 << 10
	// firstMaxStreams is the number of concurrent requests before the backend has set its limit.
	firstMaxStreams = 100
	// maxFrame bounds the size of frames in both directions: every backend accepts it, and larger ones would delay other requests.
	maxFrame = 16 << 10
	// maxStreamID is the last ID of a stream that a connection can have.
	maxStreamID = 1<<31 - 1
	// readBuffer is the size of the buffer of a connection.
	readBuffer = 16 << 10
	// writeTimeout is the time in which the backend must take some bytes that are sent.
	writeTimeout = 30 * time.Second
)

var (
	// errUnavailable is the error of a request that needs another connection.
	errUnavailable = errors.New("the connection takes no more requests")
	errClosed      = errors.New("the instance closed the connection")
	errFlood       = errors.New("the instance does not read what it asks for")
	errIdle        = errors.New("the connection was idle")
	errWindow      = errors.New("the instance exceeds the flow control window")
)

// conn is a connection to a backend. Its goroutines read and write frames until it is closed.
type conn struct {
	net     net.Conn
	removed func(*conn)
	reader  *http2.Framer

	mu sync.Mutex
	// mu guards the fields below, and the fields of streams.
	streams map[uint32]*Stream
	nextID  uint32
	// err is set once the connection is closed. draining is true once it takes no more requests.
	err      error
	draining bool
	// The settings of the backend.
	maxStreams    uint32
	streamWindow  int32
	settingsKnown bool
	// window is the number of bytes of bodies that may be sent, received the number of bytes received since the connection's own window was
	// extended.
	window   int64
	received uint32
	// blocked are the streams that wait to send.
	blocked []*Stream
	// idleSince is the time since which there are no requests. idle closes the connection.
	idleSince time.Time
	idle      *time.Timer

	// pending are the frames to write, which writer appends. wake, with one element, makes the goroutine write them; spare is its
	// former buffer.
	pending, spare []byte
	// batch is the number of times that pending was written.
	batch   uint64
	wake    chan struct{}
	writer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
}

func newConn(made net.Conn, removed func(*conn)) *conn {
	c := &conn{
		net: made, removed: removed, streams: map[uint32]*Stream{}, nextID: 1, maxStreams: firstMaxStreams, streamWindow: window, window: window,
		wake: make(chan struct{}, 1), idleSince: time.Now(),
	}
	c.encoder = hpack.NewEncoder(&c.block)
	c.writer = http2.NewFramer(pendingWriter{c}, nil)
	c.reader = http2.NewFramer(nil, bufio.NewReaderSize(made, readBuffer))
	c.reader.SetReuseFrames()
	c.reader.SetMaxReadFrameSize(maxFrame)
	c.reader.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.reader.MaxHeaderListSize = maxHead
	return c
}

// pendingWriter collects frames. The mu of the conn is held.
type pendingWriter struct{ *conn }

// Write implements io.Writer.
func (w pendingWriter) Write(frame []byte) (int, error) {
	w.pending = append(w.pending, frame...)
	return len(frame), nil
}

// start sends the preface, and begins to read and write.
func (c *conn) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = append(c.pending, http2.ClientPreface...)
	c.write(c.writer.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: maxHead}))
	c.write(c.writer.WriteWindowUpdate(0, connWindow-window))
	c.idle = time.AfterFunc(idleTime, c.closeIdle)
	go c.writeLoop()
	go c.readLoop()
}

// write wakes the goroutine that writes, after a frame was collected. mu is held.
func (c *conn) write(err error) {
	if err != nil {
		c.closeLocked(err)
		return
	}
	if len(c.pending) > maxControl {
		c.closeLocked(errFlood)
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) writeLoop() {
	for range c.wake {
		c.mu.Lock()
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		frames := c.pending
		c.pending, c.spare = c.spare[:0], nil
		c.batch++
		c.mu.Unlock()
		if len(frames) == 0 {
			continue
		}
		err := c.net.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err == nil {
			_, err = c.net.Write(frames)
		}
		c.mu.Lock()
		if c.spare = frames; cap(frames) > maxPending {
			c.spare = nil
		}
		if err != nil {
			c.closeLocked(fmt.Errorf("write to the instance: %w", err))
		} else if c.window > 0 {
			c.unblock()
		}
		c.mu.Unlock()
	}
}

// unblock wakes the streams that wait to send. mu is held.
func (c *conn) unblock() {
	for i, s := range c.blocked {
		s.blocked = false
		s.signalWritable()
		c.blocked[i] = nil
	}
	c.blocked = c.blocked[:0]
}

// load returns the number of requests, and whether the connection takes another one.
func (c *conn) load() (int, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams), c.available()
}

// available reports whether the connection takes another request. mu is held.
func (c *conn) available() bool {
	return c.err == nil && !c.draining && len(c.streams) < int(c.maxStreams) && len(c.pending) < maxPending
}

// open begins a request.
func (c *conn) open(r *Request) (*Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.available() {
		return nil, errUnavailable
	}
	s := newStream(c, c.nextID)
	s.sendWindow, s.batch = int64(c.streamWindow), c.batch
	if c.nextID += 2; c.nextID > maxStreamID {
		c.drain()
	}
	c.streams[s.id] = s
	c.encodeHead(r)
	s.sent = !r.HasBody
	c.writeBlock(s.id, s.sent)
	return s, nil
}

// writeBlock writes the encoded fields. mu is held.
func (c *conn) writeBlock(id uint32, end bool) {
	fields := c.block.Bytes()
	part := fields[:min(len(fields), maxFrame)]
	fields = fields[len(part):]
	err := c.writer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndStream: end, EndHeaders: len(fields) == 0})
	for err == nil && len(fields) > 0 {
		part = fields[:min(len(fields), maxFrame)]
		fields = fields[len(part):]
		err = c.writer.WriteContinuation(id, len(fields) == 0, part)
	}
	c.block.Reset()
	c.write(err)
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

// closeLocked closes the connection, and ends its requests with an error. mu is held.
func (c *conn) closeLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if !c.draining {
		c.draining = true
		go c.removed(c)
	}
	c.idle.Stop()
	for _, s := range c.streams {
		if s.batch == c.batch {
			s.fail(fmt.Errorf("%w: it was not sent: %w", ErrUnprocessed, err))
		} else {
			s.fail(err)
		}
	}
	clear(c.streams)
	c.blocked, c.pending, c.spare = nil, nil, nil
	c.net.Close()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// end forgets a stream that has ended on both sides. mu is held.
func (c *conn) end(s *Stream) {
	if c.streams[s.id] != s {
		return
	}
	delete(c.streams, s.id)
	if len(c.streams) > 0 {
		return
	}
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

func (c *conn) readLoop() {
	for {
		frame, err := c.reader.ReadFrame()
		c.mu.Lock()
		if err == nil && c.err == nil {
			err = c.receive(frame)
		}
		var broken http2.StreamError
		if errors.As(err, &broken) {
			c.resetStream(c.streams[broken.StreamID], broken.Code, fmt.Errorf("%w: %w", ErrMalformed, err))
			err = nil
		}
		if err != nil {
			c.closeLocked(readError(err))
		}
		closed := c.err != nil
		c.mu.Unlock()
		if closed {
			return
		}
	}
}

// readError returns the error of the requests of a connection on which reading failed.
func readError(err error) error {
	var protocol http2.ConnectionError
	if errors.As(err, &protocol) || errors.Is(err, http2.ErrFrameTooLarge) {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return fmt.Errorf("%w: %w", errClosed, err)
}

// receive handles a frame. mu is held.
func (c *conn) receive(frame http2.Frame) error {
	if _, settings := frame.(*http2.SettingsFrame); !settings && !c.settingsKnown {
		// RFC 9113 3.4
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	switch frame := frame.(type) {
	case *http2.MetaHeadersFrame:
		return c.receiveHeaders(frame)
	case *http2.DataFrame:
		return c.receiveData(frame)
	case *http2.SettingsFrame:
		return c.receiveSettings(frame)
	case *http2.WindowUpdateFrame:
		return c.receiveWindow(frame)
	case *http2.RSTStreamFrame:
		if s := c.streams[frame.StreamID]; s != nil {
			s.wasReset(frame.ErrCode)
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			c.write(c.writer.WritePing(true, frame.Data))
		}
	case *http2.GoAwayFrame:
		c.receiveEnd(frame)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (c *conn) receiveHeaders(frame *http2.MetaHeadersFrame) error {
	s := c.streams[frame.StreamID]
	if s == nil {
		return c.unknown(frame.StreamID)
	}
	if err := s.receiveFields(frame); err != nil {
		c.resetStream(s, http2.ErrCodeProtocol, err)
	}
	return nil
}

// unknown returns the error of a frame for a stream that does not exist: none if it has ended.
func (c *conn) unknown(id uint32) error {
	if id%2 == 0 || id >= c.nextID {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (c *conn) receiveData(frame *http2.DataFrame) error {
	// With padding.
	length := frame.Length
	if c.received += length; c.received > connWindow/2 {
		c.write(c.writer.WriteWindowUpdate(0, c.received))
		c.received = 0
	}
	s := c.streams[frame.StreamID]
	if s == nil {
		return c.unknown(frame.StreamID)
	}
	if err := s.receiveData(frame.Data(), int(length), frame.StreamEnded()); err != nil {
		c.resetStream(s, http2.ErrCodeFlowControl, err)
	}
	return nil
}

func (c *conn) receiveSettings(frame *http2.SettingsFrame) error {
	if frame.IsAck() {
		return nil
	}
	c.settingsKnown = true
	err := frame.ForeachSetting(func(setting http2.Setting) error {
		if err := setting.Valid(); err != nil {
			return err
		}
		switch setting.ID {
		case http2.SettingMaxConcurrentStreams:
			if c.maxStreams = setting.Val; c.maxStreams == 0 {
				c.drain()
			}
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(min(setting.Val, 4096))
		case http2.SettingInitialWindowSize:
			return c.setStreamWindow(int32(setting.Val))
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.write(c.writer.WriteSettingsAck())
	return nil
}

// setStreamWindow sets the window of new streams, and changes the windows of the others by the same (RFC 9113 6.9.2).
func (c *conn) setStreamWindow(size int32) error {
	difference := int64(size) - int64(c.streamWindow)
	c.streamWindow = size
	for _, s := range c.streams {
		if s.sendWindow += difference; s.sendWindow > maxStreamID {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	}
	c.unblock()
	return nil
}

func (c *conn) receiveWindow(frame *http2.WindowUpdateFrame) error {
	if frame.StreamID == 0 {
		if c.window += int64(frame.Increment); c.window > maxStreamID {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.unblock()
		return nil
	}
	s := c.streams[frame.StreamID]
	if s == nil {
		return c.unknown(frame.StreamID)
	}
	if s.sendWindow += int64(frame.Increment); s.sendWindow > maxStreamID {
		c.resetStream(s, http2.ErrCodeFlowControl, errWindow)
		return nil
	}
	s.signalWritable()
	return nil
}

// receiveEnd makes the connection take no more requests, and ends the requests that the backend will not process.
func (c *conn) receiveEnd(frame *http2.GoAwayFrame) {
	for id, s := range c.streams {
		if id > frame.LastStreamID {
			delete(c.streams, id)
			s.fail(fmt.Errorf("%w: it closes the connection", ErrUnprocessed))
		}
	}
	c.drain()
}

// resetStream ends a stream for an error of the backend. mu is held.
func (c *conn) resetStream(s *Stream, code http2.ErrCode, err error) {
	if s == nil {
		return
	}
	s.fail(err)
	c.write(c.writer.WriteRSTStream(s.id, code))
	c.end(s)
}
