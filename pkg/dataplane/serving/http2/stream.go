package http2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxInterim bounds the number of interim responses before a response. All their heads together are at most maxHead bytes.
const maxInterim = 100

// ErrMalformed is wrapped by errors of requests whose response violates the protocol.
var ErrMalformed = errors.New("the response is not valid HTTP/2")

var errCanceled = errors.New("the request was canceled")

// Head is the head of a response, final or interim.
type Head struct {
	Status int
	// Fields are the fields of the header. Names are in lower case.
	Fields []hpack.HeaderField
	// Ended is true if the response has neither a body nor trailers.
	Ended bool
}

// Stream is a request and its response. One goroutine reads the response, and one may send the body meanwhile.
type Stream struct {
	conn *conn
	id   uint32
	// batch is the batch of frames that its head is in.
	batch uint64
	// readable and writable have an element when something has changed for the reader, or for the sender.
	readable, writable chan struct{}

	// The mu of conn guards the fields below.

	// heads are the heads that were not read yet. answered is true once the final one was received.
	heads    []Head
	answered bool
	// interim is the number of interim responses, interimBytes the size of their heads.
	interim, interimBytes int
	// body are the received bytes that were not read yet, trailer the fields after them.
	body    *[]byte
	trailer []hpack.HeaderField
	// unread are the bytes by which the window is smaller than at first: unread bytes, and read ones that the window was not extended by yet.
	unread int
	// received is true once the response has ended, sent once the request has.
	received, sent bool
	// sendWindow is the number of bytes of the body that may be sent, blocked is true if the stream is in conn.blocked.
	sendWindow int64
	blocked    bool
	// err is why the stream ended early.
	err error
}

// buffers are of at most window bytes.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func newStream(c *conn, id uint32) *Stream {
	return &Stream{conn: c, id: id, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1)}
}

// signal tells the reader that something has changed.
func (s *Stream) signal() {
	select {
	case s.readable <- struct{}{}:
	default:
	}
}

func (s *Stream) signalWritable() {
	select {
	case s.writable <- struct{}{}:
	default:
	}
}

// fail ends the stream with an error. conn.mu is held.
func (s *Stream) fail(err error) {
	if s.err == nil && !(s.received && s.sent) {
		s.err = err
		s.signal()
		s.signalWritable()
	}
}

// wasReset ends the stream, which the backend has reset. A backend need not read the rest of a request that it has answered (RFC 9113 8.1).
func (s *Stream) wasReset(code http2.ErrCode) {
	switch {
	case code == http2.ErrCodeRefusedStream:
		s.fail(fmt.Errorf("%w: it refused the stream", ErrUnprocessed))
	case !s.received:
		s.fail(fmt.Errorf("the instance reset the request: %s", code))
	default:
		s.sent = true
		s.signalWritable()
	}
	s.conn.end(s)
}

// receiveFields handles a head or trailers.
func (s *Stream) receiveFields(frame *http2.MetaHeadersFrame) error {
	if frame.Truncated {
		return fmt.Errorf("%w: the header is larger than %d bytes", ErrMalformed, maxHead)
	}
	if s.received {
		return fmt.Errorf("%w: a frame after the end", ErrMalformed)
	}
	fields := frame.RegularFields()
	if s.answered {
		if !frame.StreamEnded() || len(frame.PseudoFields()) > 0 {
			return fmt.Errorf("%w: trailers that are not at the end", ErrMalformed)
		}
		s.trailer = fields
		s.end()
		return nil
	}
	status := frame.PseudoValue("status")
	code, err := strconv.Atoi(status)
	if err != nil || len(status) != 3 || code < 100 || code == http.StatusSwitchingProtocols {
		return fmt.Errorf("%w: status %q", ErrMalformed, status)
	}
	if code < http.StatusOK {
		for i := range fields {
			s.interimBytes += int(fields[i].Size())
		}
		if s.interim++; s.interim > maxInterim || s.interimBytes > maxHead || frame.StreamEnded() {
			return fmt.Errorf("%w: interim responses without a response", ErrMalformed)
		}
	} else {
		s.answered = true
	}
	s.heads = append(s.heads, Head{Status: code, Fields: fields, Ended: frame.StreamEnded()})
	if frame.StreamEnded() {
		s.end()
	}
	s.signal()
	return nil
}

// receiveData handles a part of the body, with length bytes of the window.
func (s *Stream) receiveData(data []byte, length int, ended bool) error {
	if !s.answered || s.received {
		return fmt.Errorf("%w: a body without a header", ErrMalformed)
	}
	if s.unread += length; s.unread > window {
		return fmt.Errorf("%w: %w", ErrMalformed, errWindow)
	}
	// Padding is never read.
	s.unread -= s.grant(length - len(data))
	if len(data) > 0 {
		if s.body == nil {
			s.body = buffers.Get().(*[]byte)
		}
		*s.body = append(*s.body, data...)
	}
	if ended {
		s.end()
	}
	s.signal()
	return nil
}

// grant extends the window of the stream by read bytes, and returns them.
func (s *Stream) grant(bytes int) int {
	if bytes > 0 && !s.received && s.err == nil {
		s.conn.write(s.conn.writer.WriteWindowUpdate(s.id, uint32(bytes)))
	}
	return bytes
}

// end notes the end of the response.
func (s *Stream) end() {
	s.received = true
	s.signal()
	if s.sent {
		s.conn.end(s)
	}
}

// Head returns the next head of the response, of which the last one is final.
func (s *Stream) Head(ctx context.Context) (Head, error) {
	for {
		s.conn.mu.Lock()
		if len(s.heads) > 0 {
			head := s.heads[0]
			s.heads = s.heads[1:]
			s.conn.mu.Unlock()
			return head, nil
		}
		err := s.err
		s.conn.mu.Unlock()
		if err != nil {
			return Head{}, err
		}
		if err := s.wait(ctx); err != nil {
			return Head{}, err
		}
	}
}

func (s *Stream) wait(ctx context.Context) error {
	select {
	case <-s.readable:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Chunk is a part of a body. It is valid until Done.
type Chunk struct {
	Data   []byte
	buffer *[]byte
	stream *Stream
}

// Done returns the memory of a chunk.
func (c *Chunk) Done() {
	if c.buffer == nil {
		return
	}
	*c.buffer = (*c.buffer)[:0]
	buffers.Put(c.buffer)
	s := c.stream
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	// Each extension is a frame.
	if s.unread > window/2 {
		unread := 0
		if s.body != nil {
			unread = len(*s.body)
		}
		s.unread -= s.grant(s.unread - unread)
	}
}

// Body returns the received bytes of the body, after the final head. ended is true if nothing follows them but Trailer. Without any, it calls
// idle once, and waits.
func (s *Stream) Body(ctx context.Context, idle func()) (chunk Chunk, ended bool, err error) {
	for waits := 0; ; waits++ {
		s.conn.mu.Lock()
		if s.body != nil {
			chunk = Chunk{Data: *s.body, buffer: s.body, stream: s}
			s.body = nil
		}
		ended, err = s.received, s.err
		s.conn.mu.Unlock()
		switch {
		case chunk.buffer != nil || ended:
			return chunk, ended, nil
		case err != nil:
			return chunk, false, err
		case waits == 0:
			// Often, the goroutine that reads has more in its buffer.
			runtime.Gosched()
			continue
		case waits == 1:
			idle()
		}
		if err := s.wait(ctx); err != nil {
			return chunk, false, err
		}
	}
}

// Trailer returns the trailers, after the end of the body. Names are in lower case.
func (s *Stream) Trailer() []hpack.HeaderField {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.trailer
}

// Write sends a part of the body of the request. It waits while the backend takes no more, until ctx is canceled.
func (s *Stream) Write(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		n, err := s.write(p)
		if err != nil {
			return err
		}
		if p = p[n:]; n > 0 {
			continue
		}
		select {
		case <-s.writable:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// write sends as many bytes as the backend takes now.
func (s *Stream) write(p []byte) (int, error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.sendable(); err != nil {
		return 0, err
	}
	n := int(min(int64(len(p)), s.sendWindow, c.window, maxFrame, int64(maxPending-len(c.pending))))
	if n <= 0 {
		if !s.blocked {
			s.blocked = true
			c.blocked = append(c.blocked, s)
		}
		return 0, nil
	}
	s.sendWindow -= int64(n)
	c.window -= int64(n)
	c.write(c.writer.WriteData(s.id, false, p[:n]))
	return n, nil
}

// sendable returns why nothing can be sent, if so. conn.mu is held.
func (s *Stream) sendable() error {
	switch {
	case s.err != nil:
		return s.err
	case s.sent:
		return errCanceled
	}
	return nil
}

// CloseWrite ends the request, with trailers.
func (s *Stream) CloseWrite(trailer http.Header) error {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.sendable(); err != nil {
		return err
	}
	s.sent = true
	if len(trailer) > 0 {
		c.encodeFields(trailer)
		c.writeBlock(s.id, true)
	} else {
		c.write(c.writer.WriteData(s.id, true, nil))
	}
	if s.received {
		c.end(s)
	}
	return nil
}

// Close ends the stream: one that has not ended is reset. err is the error of a concurrent Write. It reports whether the backend had ended
// its response, completely or not.
func (s *Stream) Close(err error) (ended bool) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	ended = s.received || s.err != nil
	if s.err == nil && !(s.received && s.sent) {
		s.err = err
		s.signal()
		s.signalWritable()
		c.write(c.writer.WriteRSTStream(s.id, http2.ErrCodeCancel))
	}
	c.end(s)
	if s.body != nil {
		*s.body = (*s.body)[:0]
		buffers.Put(s.body)
		s.body = nil
	}
	return ended
}
