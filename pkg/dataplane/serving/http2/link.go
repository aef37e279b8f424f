package http2

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// firstWindow is the first window of a stream, and of a connection (RFC 9113 6.9.2).
	firstWindow = 65535
	// maxControl bounds all bytes that wait to be written: a peer that sends requests for answers, such as pings, and does not read them loses
	// its connection.
	maxControl = 1 << 20
	// maxFrame bounds the size of frames in both directions: every peer accepts it, and larger ones would delay other streams.
	maxFrame = 16 << 10
	// maxTable bounds the table of an encoder, in bytes.
	maxTable = 4096
	// maxStreamID is the last ID of a stream that a connection can have, and the largest window (RFC 9113 5.1.1, 6.9.1).
	maxStreamID = 1<<31 - 1
	// creditSize is the number of read bytes by which a window is extended at a time, since each extension is a frame.
	creditSize = 32 << 10
	// freePending is the number of bytes that may wait to be written without memory of the budget.
	freePending = 16 << 10
	// unblocked is the number of streams that continue at a time when more may be sent.
	unblocked = 16
	// keptBuffer is the capacity up to which buffers are kept for others.
	keptBuffer = 128 << 10
)

var (
	errFlood  = errors.New("the peer does not read what it asks for")
	errMemory = errors.New("the memory budget for bodies is exhausted")
	errWindow = fmt.Errorf("%w: the peer exceeds the flow control window", ErrMalformed)
)

// role is the part of a connection that differs between the two sides. mu of the link is held in all calls.
type role interface {
	// receiveHeaders handles a head or trailers. An http2.StreamError resets the stream.
	receiveHeaders(frame *http2.MetaHeadersFrame) error
	// unknown returns the error of a frame for a stream that does not exist, or nil to ignore the frame.
	unknown(id uint32) error
	// lateData handles a part of a body for a stream that does not exist.
	lateData(frame *http2.DataFrame) error
	// set handles a setting of the peer that only one side has.
	set(setting http2.Setting)
	// ponged handles the answer to a ping.
	ponged(data [8]byte)
	// receiveEnd handles the announcement that the peer closes the connection.
	receiveEnd(frame *http2.GoAwayFrame)
	// broken handles a frame that is malformed for its stream, which may not exist.
	broken(err http2.StreamError)
	// failed handles an error after which the connection is closed.
	failed(err error)
	// closing ends the streams, because the connection is closed for the error.
	closing(err error)
	// vacant handles the end of the last stream.
	vacant()
}

// link is what both sides of a connection have in common: frames, flow control, streams. One goroutine reads frames, another one writes: frames
// are collected while it does.
type link struct {
	net    net.Conn
	role   role
	input  *bufio.Reader
	reader *http2.Framer
	// streamWindow bounds the unread bytes of a stream, connWindow the unread bytes of all streams.
	streamWindow, connWindow int
	// maxPending bounds the bytes of bodies that wait to be written.
	maxPending int
	// memory is what the connection holds of the memory budget for bodies; nil without a limit.
	memory *flow.Arrival
	// writeTimeout is the time in which the peer must accept some bytes that are sent; 0 means no limit.
	writeTimeout time.Duration

	mu sync.Mutex
	// mu guards the fields below, and the fields of streams.
	streams map[uint32]*stream
	// err is set once the connection is closed.
	err error
	// frames counts the frames of the peer.
	frames uint64
	// peerWindow is the first window of streams to the peer. settingsKnown is true once the peer has sent its settings.
	peerWindow    int32
	settingsKnown bool
	// window is the number of bytes of bodies that may be sent. unread are the bytes of bodies by which the connection's own window is smaller
	// than at first, credit the part of them by which it is extended soon.
	window         int64
	unread, credit int
	// blocked has the streams that wait to send a part of a body, and some that do not wait any more. flushing are the streams that wait until
	// frames were written.
	blocked, flushing []*stream

	// pending are the frames to write, which writer appends; nil without any. held is the memory for them. wake, with one element, makes the
	// goroutine write them.
	pending *[]byte
	held    int
	// batch is the number of times that pending was written.
	batch   uint64
	wake    chan struct{}
	writer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
}

// begin sets the fields that are the same for all connections. maxHead bounds the fields of a head, or of trailers, in bytes.
func (l *link) begin(conn net.Conn, role role, maxHead, readBuffer int) {
	l.net, l.role, l.streams, l.peerWindow, l.window, l.wake = conn, role, map[uint32]*stream{}, firstWindow, firstWindow, make(chan struct{}, 1)
	l.encoder = hpack.NewEncoder(&l.block)
	l.writer = http2.NewFramer(pendingWriter{l}, nil)
	l.input = bufio.NewReaderSize(conn, readBuffer)
	l.reader = http2.NewFramer(nil, l.input)
	l.reader.SetReuseFrames()
	l.reader.SetMaxReadFrameSize(maxFrame)
	l.reader.ReadMetaHeaders = hpack.NewDecoder(maxTable, nil)
	l.reader.MaxHeaderListSize = uint32(maxHead)
}

// pendingWriter collects frames. The mu of the link is held.
type pendingWriter struct{ *link }

// Write implements io.Writer.
func (w pendingWriter) Write(frame []byte) (int, error) {
	if w.pending == nil {
		w.pending = buffers.Get().(*[]byte)
	}
	*w.pending = append(*w.pending, frame...)
	return len(frame), nil
}

// buffers are empty buffers of former connections and streams.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// keep keeps a buffer for others.
func keep(buffer *[]byte) {
	if cap(*buffer) <= keptBuffer {
		*buffer = (*buffer)[:0]
		buffers.Put(buffer)
	}
}

// waiting returns the number of bytes that wait to be written. mu is held.
func (l *link) waiting() int {
	if l.pending == nil {
		return 0
	}
	return len(*l.pending)
}

// room returns the number of bytes of bodies that may be added to pending. mu is held.
func (l *link) room() int {
	if l.memory != nil && l.held == 0 {
		if free := freePending - l.waiting(); free > 0 {
			return free
		}
		if more := l.maxPending - freePending; l.memory.Reserve(int64(more)) {
			l.held = more
		} else {
			return 0
		}
	}
	return l.maxPending - l.waiting()
}

// release releases memory of bodies that were read, discarded or written. mu is held.
func (l *link) release(bytes int) {
	if l.memory != nil && bytes > 0 {
		l.memory.Release(int64(bytes))
	}
}

// write wakes the goroutine that writes, after a frame was collected. mu is held.
func (l *link) write(err error) {
	switch {
	case err != nil:
		l.closeLocked(err)
	case l.waiting() > maxControl:
		l.closeLocked(errFlood)
	default:
		l.flush()
	}
}

// flush wakes the goroutine that writes.
func (l *link) flush() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// writeLoop writes frames until the connection is closed, and closes it.
func (l *link) writeLoop() {
	for range l.wake {
		// Others that run now have frames too.
		runtime.Gosched()
		l.mu.Lock()
		frames, held, closed := l.pending, l.held, l.err != nil
		l.pending, l.held = nil, 0
		l.batch++
		l.mu.Unlock()
		if frames == nil && !closed {
			continue
		}
		err := l.writeNow(frames, closed)
		l.mu.Lock()
		l.release(held)
		if err != nil {
			l.role.failed(err)
		}
		l.unblock()
		l.flushed()
		l.mu.Unlock()
		if closed {
			l.net.Close()
			return
		}
	}
}

// writeNow writes frames, which may be nil.
func (l *link) writeNow(frames *[]byte, closed bool) error {
	if frames == nil {
		return nil
	}
	defer keep(frames)
	if l.writeTimeout > 0 && !closed {
		if err := l.net.SetWriteDeadline(time.Now().Add(l.writeTimeout)); err != nil {
			return err
		}
	}
	_, err := l.net.Write(*frames)
	return err
}

// unblock wakes some of the streams that wait to send, in order, if they may send. Each of them sends, which wakes others, or fails, which does too.
// mu is held.
func (l *link) unblock() {
	if len(l.blocked) == 0 || l.window <= 0 || l.err != nil {
		return
	}
	kept := l.blocked[:0]
	continued := 0
	for _, s := range l.blocked {
		switch {
		case !s.blocked:
		case continued < unblocked && s.sendWindow > 0:
			s.blocked = false
			signal(s.writable)
			continued++
		default:
			kept = append(kept, s)
		}
	}
	clear(l.blocked[len(kept):])
	l.blocked = kept
}

// flushed wakes the streams that wait until frames were written. mu is held.
func (l *link) flushed() {
	for _, s := range l.flushing {
		signal(s.writable)
	}
	l.flushing = nil
}

// congested reports whether so much waits to be written that a head has to wait too. mu is held.
func (l *link) congested() bool { return l.err == nil && l.waiting() > l.maxPending }

// appendBlock collects the encoded fields. It returns where their frames begin in pending. mu is held.
func (l *link) appendBlock(id uint32, end bool) (start int, err error) {
	start = l.waiting()
	fields := l.block.Bytes()
	part := fields[:min(len(fields), maxFrame)]
	fields = fields[len(part):]
	err = l.writer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndStream: end, EndHeaders: len(fields) == 0})
	for err == nil && len(fields) > 0 {
		part = fields[:min(len(fields), maxFrame)]
		fields = fields[len(part):]
		err = l.writer.WriteContinuation(id, len(fields) == 0, part)
	}
	l.block.Reset()
	return start, err
}

// writeBlock writes the encoded fields. mu is held.
func (l *link) writeBlock(id uint32, end bool) {
	_, err := l.appendBlock(id, end)
	l.write(err)
}

// encode encodes a field. Secrets are not kept in the table of the connection, which several clients share (RFC 7541 7.1.3), nor is what differs in
// each message. mu is held.
func (l *link) encode(name, value string) {
	passing := name == "authorization" || name == "cookie" || name == "set-cookie" || name == "traceparent"
	l.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: passing}) //nolint:errcheck // a bytes.Buffer never fails
}

// closeLocked ends the streams with an error, and closes the connection. mu is held.
func (l *link) closeLocked(err error) {
	if l.err != nil {
		return
	}
	l.err = err
	l.role.closing(err)
	clear(l.streams)
	l.blocked = nil
	l.flushed()
	l.flush()
}

// end forgets a stream that has ended on both sides. mu is held.
func (l *link) end(s *stream) {
	if l.streams[s.id] != s {
		return
	}
	delete(l.streams, s.id)
	if len(l.streams) == 0 {
		l.role.vacant()
	}
}

// readLoop handles frames until the connection is closed.
func (l *link) readLoop() {
	for {
		frame, err := l.reader.ReadFrame()
		l.mu.Lock()
		if err == nil && l.err == nil {
			err = l.receive(frame)
		}
		if err != nil {
			l.receiveError(err)
		}
		closed := l.err != nil
		l.mu.Unlock()
		if closed {
			return
		}
	}
}

// receiveError handles the error of a frame.
func (l *link) receiveError(err error) {
	var broken http2.StreamError
	if errors.As(err, &broken) && l.settingsKnown {
		l.role.broken(broken)
		return
	}
	l.role.failed(err)
}

// receive handles a frame. mu is held.
func (l *link) receive(frame http2.Frame) error {
	l.frames++
	if _, settings := frame.(*http2.SettingsFrame); !settings && !l.settingsKnown {
		// RFC 9113 3.4
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	switch frame := frame.(type) {
	case *http2.MetaHeadersFrame:
		return l.role.receiveHeaders(frame)
	case *http2.DataFrame:
		return l.receiveData(frame)
	case *http2.SettingsFrame:
		return l.receiveSettings(frame)
	case *http2.WindowUpdateFrame:
		return l.receiveWindow(frame)
	case *http2.RSTStreamFrame:
		if s := l.streams[frame.StreamID]; s != nil {
			s.owner.wasReset(frame.ErrCode)
			return nil
		}
		return l.role.unknown(frame.StreamID)
	case *http2.PingFrame:
		if frame.IsAck() {
			l.role.ponged(frame.Data)
		} else {
			l.write(l.writer.WritePing(true, frame.Data))
		}
	case *http2.PriorityFrame:
		if frame.StreamDep == frame.StreamID {
			// RFC 7540 5.3.1
			return http2.StreamError{StreamID: frame.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.GoAwayFrame:
		l.role.receiveEnd(frame)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (l *link) receiveData(frame *http2.DataFrame) error {
	// With padding.
	length := int(frame.Length)
	if l.unread += length; l.unread > l.connWindow {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	s := l.streams[frame.StreamID]
	if s == nil {
		l.extend(length)
		return l.role.lateData(frame)
	}
	if err := s.receiveData(frame.Data(), length, frame.StreamEnded()); err != nil {
		code := http2.ErrCodeProtocol
		switch {
		case errors.Is(err, errWindow):
			code = http2.ErrCodeFlowControl
		case errors.Is(err, errEnded):
			code = http2.ErrCodeStreamClosed
		case errors.Is(err, errMemory):
			code = http2.ErrCodeEnhanceYourCalm
		}
		l.resetStream(s, code, err)
	}
	return nil
}

// extend extends the connection's own window, after bytes of bodies were read, or discarded. mu is held.
func (l *link) extend(bytes int) {
	if l.credit += bytes; l.credit >= creditSize && l.err == nil {
		l.write(l.writer.WriteWindowUpdate(0, uint32(l.credit)))
		l.unread -= l.credit
		l.credit = 0
	}
}

func (l *link) receiveSettings(frame *http2.SettingsFrame) error {
	if frame.IsAck() {
		return nil
	}
	l.settingsKnown = true
	err := frame.ForeachSetting(func(setting http2.Setting) error {
		if err := setting.Valid(); err != nil {
			return err
		}
		switch setting.ID {
		case http2.SettingHeaderTableSize:
			l.encoder.SetMaxDynamicTableSizeLimit(min(setting.Val, maxTable))
		case http2.SettingInitialWindowSize:
			return l.setPeerWindow(int32(setting.Val))
		default:
			l.role.set(setting)
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.write(l.writer.WriteSettingsAck())
	return nil
}

// setPeerWindow sets the window of new streams, and changes the windows of the others by the same (RFC 9113 6.9.2).
func (l *link) setPeerWindow(size int32) error {
	difference := int64(size) - int64(l.peerWindow)
	l.peerWindow = size
	for _, s := range l.streams {
		if s.sendWindow += difference; s.sendWindow > maxStreamID {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	}
	l.unblock()
	return nil
}

func (l *link) receiveWindow(frame *http2.WindowUpdateFrame) error {
	if frame.StreamID == 0 {
		if l.window += int64(frame.Increment); l.window > maxStreamID {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		l.unblock()
		return nil
	}
	s := l.streams[frame.StreamID]
	if s == nil {
		return l.role.unknown(frame.StreamID)
	}
	if s.sendWindow += int64(frame.Increment); s.sendWindow > maxStreamID {
		l.resetStream(s, http2.ErrCodeFlowControl, errWindow)
		return nil
	}
	signal(s.writable)
	return nil
}

// resetStream ends a stream with an error. mu is held.
func (l *link) resetStream(s *stream, code http2.ErrCode, err error) {
	s.fail(err)
	l.write(l.writer.WriteRSTStream(s.id, code))
	l.end(s)
}
