package http2

import (
	"io"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
)

// corked is the number of bytes up to which frames of a response wait for its end, or for Flush.
const corked = 4 << 10

// response is the response of a serverStream. The goroutine of Handler uses it.
type response struct {
	header http.Header
	// status is 0 until the head is written.
	status int
	// trailers are the names of announced trailers.
	trailers []string

	// The mu of conn guards the fields below.

	// last is where the last frame of the response begins in pending, in lastBatch.
	last      int
	lastBatch uint64
	// writeLimit resets the stream.
	writeLimit *time.Timer
}

// Header implements http.ResponseWriter.
func (s *serverStream) Header() http.Header {
	if s.header == nil {
		s.header = headers.Get().(http.Header)
	}
	return s.header
}

// headers are empty headers of former responses.
var headers = sync.Pool{New: func() any { return http.Header{} }}

// releaseHeader keeps the header for another response. Handler has returned.
func (s *serverStream) releaseHeader() {
	const keptFields = 64
	if s.header != nil && len(s.header) <= keptFields {
		clear(s.header)
		headers.Put(s.header)
	}
	s.header = nil
}

// WriteHeader implements http.ResponseWriter. Interim responses are sent at once. It waits while the client does not read.
func (s *serverStream) WriteHeader(status int) {
	if s.status != 0 {
		return
	}
	if status < 100 || status > 999 || status == http.StatusSwitchingProtocols {
		panic("invalid status code " + strconv.Itoa(status))
	}
	for changed := s.writeHead(status); changed != nil; changed = s.writeHead(status) {
		<-changed
	}
}

// writeHead collects a head, or returns a channel that is signaled when frames were written if too much waits to be.
func (s *serverStream) writeHead(status int) (changed chan struct{}) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.err == nil && c.congested() {
		return s.awaitFlush()
	}
	interim := status < http.StatusOK
	if !interim {
		s.status = status
		s.announceTrailers()
	}
	if s.err != nil {
		return nil
	}
	c.encode(":status", statusText(status))
	s.encodeHeader(interim)
	start, err := c.appendBlock(s.id, false)
	s.last, s.lastBatch = start, c.batch
	if interim || err != nil || c.waiting() > corked {
		c.write(err)
	}
	if strings.EqualFold(s.header.Get("Connection"), "close") {
		c.drain()
	}
	return nil
}

// awaitFlush returns a channel that is signaled when frames were written, or the stream has failed. mu is held.
func (s *serverStream) awaitFlush() chan struct{} {
	s.conn.flushing = append(s.conn.flushing, &s.stream)
	s.conn.flush()
	return watched(&s.writable)
}

// statusText returns a status code in digits.
func statusText(status int) string {
	if status == http.StatusOK {
		return "200"
	}
	return strconv.Itoa(status)
}

// announceTrailers notes the names of the trailers that the header announces.
func (s *serverStream) announceTrailers() {
	for _, names := range s.header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			if name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)); httpguts.ValidTrailerHeader(name) {
				s.trailers = append(s.trailers, name)
			}
		}
	}
}

// encodeHeader encodes the fields of a header. mu is held.
func (s *serverStream) encodeHeader(interim bool) {
	for name, values := range s.header {
		if strings.HasPrefix(name, http.TrailerPrefix) || interim && name == "Content-Length" {
			continue
		}
		s.encodeField(name, values)
	}
	if s.header["Date"] == nil && !interim {
		s.conn.encode("date", time.Now().UTC().Format(http.TimeFormat))
	}
}

// encodeField encodes the values of a field, unless it cannot be sent by HTTP/2. mu is held.
func (s *serverStream) encodeField(name string, values []string) {
	name = LowerName(name)
	for _, value := range values {
		if httpguts.ValidHeaderFieldName(name) && httpguts.ValidHeaderFieldValue(value) && !ofConnection(name, value) {
			s.conn.encode(name, value)
		}
	}
}

// Write implements http.ResponseWriter. It waits while the client does not read.
func (s *serverStream) Write(p []byte) (int, error) {
	if s.status == 0 {
		s.WriteHeader(http.StatusOK)
	}
	switch {
	case s.status == http.StatusNoContent || s.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	case s.request.Method == http.MethodHead:
		return len(p), nil
	}
	for written := 0; ; <-s.writable {
		n, err := s.append(p[written:])
		if written += n; err != nil || written == len(p) {
			return written, err
		}
	}
}

// append appends bytes of the body until the client takes no more.
func (s *serverStream) append(p []byte) (written int, err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for written < len(p) {
		if s.err != nil {
			return written, s.err
		}
		n, start, err := s.appendData(p[written:])
		if err != nil || n == 0 {
			c.write(err)
			return written, err
		}
		s.last, s.lastBatch = start, c.batch
		written += n
	}
	if c.waiting() > corked || len(c.blocked) > 0 {
		c.write(nil)
	}
	return written, nil
}

// WriteString implements io.StringWriter.
func (s *serverStream) WriteString(p string) (int, error) { return s.Write([]byte(p)) }

// Flush implements http.Flusher.
func (s *serverStream) Flush() {
	if s.status == 0 {
		s.WriteHeader(http.StatusOK)
	}
	s.conn.flush()
}

// EnableFullDuplex is for http.ResponseController. Requests and responses are always sent at the same time.
func (s *serverStream) EnableFullDuplex() error { return nil }

// SetWriteDeadline resets the stream after a time.
func (s *serverStream) SetWriteDeadline(deadline time.Time) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	stopTimer(s.writeLimit)
	if deadline.IsZero() {
		return nil
	}
	s.writeLimit = s.after(deadline, func() {
		if s.err == nil && !s.sent {
			s.conn.reset(s.id, http2.ErrCodeInternal, os.ErrDeadlineExceeded)
		}
	})
	return nil
}

// proceed sends 100 (Continue). mu is held.
func (s *serverStream) proceed() {
	if s.status != 0 {
		return
	}
	s.conn.encode(":status", statusText(http.StatusContinue))
	s.conn.writeBlock(s.id, false)
}

// finishResponse ends the response.
func (s *serverStream) finishResponse() {
	if s.status == 0 {
		s.WriteHeader(http.StatusOK)
	}
	for changed := s.end(); changed != nil; changed = s.end() {
		<-changed
	}
}

// end ends the response, or returns a channel like writeHead.
func (s *serverStream) end() (changed chan struct{}) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.err != nil:
		return nil
	case c.congested():
		return s.awaitFlush()
	case s.encodeTrailer():
		c.writeBlock(s.id, true)
	case s.lastBatch == c.batch && c.waiting() > 0:
		// The last frame was not written yet.
		const flags = 4
		(*c.pending)[s.last+flags] |= byte(http2.FlagDataEndStream)
		c.write(nil)
	default:
		c.write(c.writer.WriteData(s.id, true, nil))
	}
	s.endSent()
	return nil
}

// encodeTrailer encodes the trailers, and reports whether there are any. mu is held.
func (s *serverStream) encodeTrailer() bool {
	for _, name := range s.trailers {
		s.encodeField(name, s.header[name])
	}
	for name, values := range s.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			s.encodeField(name, values)
		}
	}
	return s.conn.block.Len() > 0
}

var (
	_ http.Flusher    = &serverStream{}
	_ io.StringWriter = &serverStream{}
)
