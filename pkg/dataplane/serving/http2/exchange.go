package http2

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// maxInterim bounds the number of interim responses before a response. All their heads together are at most maxHead bytes.
const maxInterim = 100

// Head is the head of a response, final or interim.
type Head struct {
	Status int
	// Fields are the fields of the header. Names are in lower case.
	Fields []hpack.HeaderField
	// Ended is true if the response has neither a body nor trailers.
	Ended bool
}

// Stream is a request to a backend and its response. One goroutine reads the response, and one may send the body meanwhile.
type Stream struct {
	stream
	conn *conn
	// batch is the batch of frames that its head is in.
	batch uint64

	// The mu of conn guards the fields below.

	// heads are the heads that were not read yet. answered is true once the final one was received.
	heads    []Head
	answered bool
	// interim is the number of interim responses, interimBytes the size of their heads.
	interim, interimBytes int
}

// failed implements owner.
func (s *Stream) failed() {}

// wasReset implements owner. A backend need not read the rest of a request that it has answered (RFC 9113 8.1).
func (s *Stream) wasReset(code http2.ErrCode) {
	switch {
	case code == http2.ErrCodeRefusedStream:
		s.fail(fmt.Errorf("%w: it refused the stream", ErrUnprocessed))
	case !s.received:
		s.fail(fmt.Errorf("the instance reset the request: %s", code))
	default:
		s.sent = true
		signal(s.writable)
	}
	s.conn.end(&s.stream)
}

// receiveFields handles a head or trailers.
func (s *Stream) receiveFields(frame *http2.MetaHeadersFrame) error {
	if frame.Truncated {
		return fmt.Errorf("%w: the header is larger than %d bytes", ErrMalformed, maxHead)
	}
	if s.received {
		return errEnded
	}
	fields := frame.RegularFields()
	if s.answered {
		if !frame.StreamEnded() || len(frame.PseudoFields()) > 0 {
			return fmt.Errorf("%w: trailers that are not at the end", ErrMalformed)
		}
		s.trailer = fields
		s.endReceived()
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
		s.endReceived()
	}
	signal(s.readable)
	return nil
}

// receives implements owner.
func (s *Stream) receives(int, bool) error {
	if !s.answered {
		return fmt.Errorf("%w: a body without a header", ErrMalformed)
	}
	return nil
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
		err, changed := s.err, watched(&s.readable)
		s.conn.mu.Unlock()
		if err != nil {
			return Head{}, err
		}
		if err := wait(ctx, changed); err != nil {
			return Head{}, err
		}
	}
}

func wait(ctx context.Context, changed chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Chunk is a part of a body. It is valid until Done.
type Chunk struct {
	Data   []byte
	part   *[]byte
	stream *Stream
}

// Done returns the memory of a chunk.
func (c *Chunk) Done() {
	if c.part == nil {
		return
	}
	size := len(c.Data)
	keepPart(c.part)
	c.stream.conn.mu.Lock()
	defer c.stream.conn.mu.Unlock()
	c.stream.consumed(size)
}

// Body returns the received bytes of the body, after the final head. ended is true if nothing follows them but Trailer. Without any, it calls
// idle once, and waits.
func (s *Stream) Body(ctx context.Context, idle func()) (chunk Chunk, ended bool, err error) {
	for waits := 0; ; waits++ {
		s.conn.mu.Lock()
		if part := s.body.next(); part != nil {
			chunk = Chunk{Data: *part, part: part, stream: s}
		}
		ended, err = s.received && s.body.size == 0, s.err
		changed := watched(&s.readable)
		s.conn.mu.Unlock()
		switch {
		case chunk.part != nil || ended:
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
		if err := wait(ctx, changed); err != nil {
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
		if err := wait(ctx, s.writable); err != nil {
			return err
		}
	}
	return nil
}

// write sends as many bytes as the backend takes now.
func (s *Stream) write(p []byte) (int, error) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	if err := s.sendable(); err != nil {
		return 0, err
	}
	n, _, err := s.appendData(p)
	if n > 0 {
		s.conn.write(err)
	}
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
	if len(trailer) > 0 {
		c.encodeFields(trailer)
		c.writeBlock(s.id, true)
	} else {
		c.write(c.writer.WriteData(s.id, true, nil))
	}
	s.endSent()
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
		s.fail(err)
		c.write(c.writer.WriteRSTStream(s.id, http2.ErrCodeCancel))
	}
	c.end(&s.stream)
	s.discard()
	return ended
}
