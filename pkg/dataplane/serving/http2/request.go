package http2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/klog/v2"
)

var (
	errLength = fmt.Errorf("%w: the body does not have the announced length", ErrMalformed)
	errReset  = errors.New("the client reset the request")
)

// serverStream is a request of a client and its response. It implements http.ResponseWriter, and what http.ResponseController uses.
type serverStream struct {
	stream
	conn    *serverConn
	request *http.Request
	cancel  context.CancelFunc
	// tooLarge is true if the head is, which is answered without Handler.
	tooLarge bool

	// The mu of conn guards the fields below.

	// expects is true if the client waits for 100 (Continue).
	expects bool
	// length is the announced length of the body, or -1; arrived is the number of its bytes that were received.
	length, arrived int64
	// readErr ends reads of the body, once it is set; readLimit sets it.
	readErr   error
	readLimit *time.Timer

	response
}

// blank is an empty request.
var blank http.Request

// newRequest returns a request without a head.
func (c *serverConn) newRequest(ctx context.Context) *http.Request {
	r := blank.WithContext(ctx)
	r.Proto, r.ProtoMajor, r.RemoteAddr, r.TLS, r.Body = "HTTP/2.0", 2, c.remote, c.tls, http.NoBody
	return r
}

// newStream returns the stream of a new request. mu is held.
func (c *serverConn) newStream(frame *http2.MetaHeadersFrame) (*serverStream, error) {
	ctx, cancel := context.WithCancel(c.base)
	s := &serverStream{conn: c, request: c.newRequest(ctx), cancel: cancel, length: -1}
	if err := s.receiveHead(frame); err != nil {
		cancel()
		c.rejected(s.request, http.StatusBadRequest)
		return nil, err
	}
	c.add(&s.stream, frame.StreamID, s)
	s.received = frame.StreamEnded()
	return s, nil
}

// malformed is the error of a request that violates the protocol (RFC 9113 8.1.1).
func malformed(frame *http2.MetaHeadersFrame, reason string) error {
	return http2.StreamError{StreamID: frame.StreamID, Code: http2.ErrCodeProtocol, Cause: errors.New(reason)}
}

// receiveHead sets the request to the one of a frame. The frame may be reused after that.
func (s *serverStream) receiveHead(frame *http2.MetaHeadersFrame) error {
	r := s.request
	r.Method, r.Host, r.RequestURI = frame.PseudoValue("method"), frame.PseudoValue("authority"), frame.PseudoValue("path")
	scheme := frame.PseudoValue("scheme")
	switch {
	case frame.Truncated || len(frame.Fields) > maxFields:
		s.tooLarge = true
	case frame.HasPriority() && frame.Priority.StreamDep == frame.StreamID:
		return malformed(frame, "the stream depends on itself")
	case !httpguts.ValidHeaderFieldName(r.Method):
		// A method is a token, as the name of a field is (RFC 9110 9.1).
		return malformed(frame, "the method is not valid")
	case frame.PseudoValue("protocol") != "":
		return malformed(frame, "the protocol was not enabled")
	case r.Method == http.MethodConnect:
		if r.RequestURI != "" || scheme != "" || r.Host == "" {
			return malformed(frame, "CONNECT with a path")
		}
		r.RequestURI, r.URL = r.Host, &url.URL{Host: r.Host}
	case scheme != "http" && scheme != "https":
		return malformed(frame, "the scheme is neither http nor https")
	default:
		if !strings.HasPrefix(r.RequestURI, "/") && r.RequestURI != "*" {
			return malformed(frame, "the path is not absolute")
		}
		var err error
		if r.URL, err = url.ParseRequestURI(r.RequestURI); err != nil {
			return malformed(frame, "the path is not valid")
		}
	}
	if name := s.receiveFields(frame.RegularFields()); name != "" {
		return malformed(frame, "the field "+name+" is for one connection of HTTP/1.1")
	}
	if err := s.receiveLength(frame); err != nil {
		return err
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host")
	}
	if s.expects = httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue"); s.expects {
		delete(r.Header, "Expect")
	}
	return nil
}

// receiveFields sets the header of the request. It returns the name of a field that makes the request malformed, if any.
func (s *serverStream) receiveFields(fields []hpack.HeaderField) (misplaced string) {
	header, values := make(http.Header, len(fields)), make([]string, len(fields))
	for i := range fields {
		f := &fields[i]
		if ofConnection(f.Name, f.Value) {
			return f.Name
		}
		name := CanonicalName(f.Name)
		values[i] = f.Value
		switch former := header[name]; {
		case former == nil:
			header[name] = values[i : i+1 : i+1]
		case name == "Cookie":
			// RFC 9113 8.2.3
			former[0] += "; " + f.Value
		default:
			header[name] = append(former, f.Value)
		}
	}
	for _, names := range header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			switch name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)); name {
			case "", "Transfer-Encoding", "Trailer", "Content-Length":
			default:
				if s.request.Trailer == nil {
					s.request.Trailer = http.Header{}
				}
				s.request.Trailer[name] = nil
			}
		}
	}
	delete(header, "Trailer")
	s.request.Header = header
	return ""
}

// ofConnection reports whether a message with a field is malformed because the field is for one connection of HTTP/1.1 (RFC 9113 8.2.2).
func ofConnection(name, value string) bool {
	switch name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return true
	case "te":
		return value != "trailers"
	}
	return false
}

// receiveLength sets the body of the request, and its length.
func (s *serverStream) receiveLength(frame *http2.MetaHeadersFrame) error {
	if announced := s.request.Header["Content-Length"]; len(announced) > 0 {
		length, err := strconv.ParseUint(announced[0], 10, 63)
		if err != nil || len(announced) > 1 {
			return malformed(frame, "the length is not valid")
		}
		s.length = int64(length)
	}
	if frame.StreamEnded() {
		if s.length > 0 {
			return malformed(frame, "a length without a body")
		}
		return nil
	}
	s.request.ContentLength, s.request.Body = s.length, s
	return nil
}

// receiveTrailer handles trailers. mu is held.
func (s *serverStream) receiveTrailer(frame *http2.MetaHeadersFrame) error {
	switch {
	case s.received:
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	case !frame.StreamEnded() || len(frame.PseudoFields()) > 0:
		return malformed(frame, "trailers that are not at the end")
	}
	if err := s.receives(0, true); err != nil {
		return malformed(frame, err.Error())
	}
	if !frame.Truncated {
		s.trailer = frame.RegularFields()
	}
	s.endReceived()
	return nil
}

// receives implements owner.
func (s *serverStream) receives(bytes int, ended bool) error {
	s.arrived += int64(bytes)
	if s.length >= 0 && (s.arrived > s.length || ended && s.arrived < s.length) {
		return errLength
	}
	return nil
}

// wasReset implements owner.
func (s *serverStream) wasReset(http2.ErrCode) {
	s.fail(errReset)
	s.conn.end(&s.stream)
	s.discard()
}

// failed implements owner.
func (s *serverStream) failed() { s.cancel() }

// run handles the request.
func (s *serverStream) run() {
	defer s.finish()
	if s.tooLarge {
		s.conn.rejected(s.request, http.StatusRequestHeaderFieldsTooLarge)
		http.Error(s, "the header is too large", http.StatusRequestHeaderFieldsTooLarge)
		return
	}
	s.conn.server.Handler.ServeHTTP(s, s.request)
}

// finish ends the stream after Handler has returned, or panicked.
func (s *serverStream) finish() {
	fault := recover()
	if fault != nil && fault != http.ErrAbortHandler { //nolint:errorlint // the value that net/http documents
		klog.Background().Error(nil, "Recovered from a panic while handling a request", "panic", fault, "stack", string(debug.Stack()))
	}
	if fault == nil {
		s.finishResponse()
	}
	s.cancel()
	s.releaseHeader()
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers--
	s.stopTimers()
	if s.err == nil && !(s.received && s.sent) {
		code := http2.ErrCodeInternal
		if s.sent {
			// The client need not send the rest (RFC 9113 8.1).
			code = http2.ErrCodeNo
		}
		c.reset(s.id, code, errCanceled)
	}
	s.endReads(errCanceled)
	s.discard()
}

// Read reads the body of the request, like net/http's.
func (s *serverStream) Read(p []byte) (int, error) {
	for {
		n, changed, err := s.readNow(p)
		if changed == nil {
			return n, err
		}
		<-changed
	}
}

// readNow reads the body without waiting. Before the next bytes have arrived, it returns a channel that is signaled when they have.
func (s *serverStream) readNow(p []byte) (n int, changed chan struct{}, err error) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	switch {
	case s.readErr != nil:
		return 0, nil, s.readErr
	case s.err != nil:
		return 0, nil, s.err
	case len(p) == 0:
		return 0, nil, nil
	case s.body.size > 0:
		return s.read(p), nil, nil
	case s.received:
		s.copyTrailer()
		return 0, nil, io.EOF
	case s.expects:
		s.expects = false
		s.proceed()
	}
	return 0, watched(&s.readable), nil
}

// copyTrailer sets the announced trailers of the request. mu is held.
func (s *serverStream) copyTrailer() {
	for _, f := range s.trailer {
		name := CanonicalName(f.Name)
		if _, announced := s.request.Trailer[name]; announced {
			s.request.Trailer[name] = append(s.request.Trailer[name], f.Value)
		}
	}
	s.trailer = nil
}

// Close implements io.Closer for the body.
func (s *serverStream) Close() error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.endReads(http.ErrBodyReadAfterClose)
	return nil
}

// endReads makes reads of the body fail. mu is held.
func (s *serverStream) endReads(err error) {
	s.readErr = err
	signal(s.readable)
}

// SetReadDeadline makes reads of the body fail after a time.
func (s *serverStream) SetReadDeadline(deadline time.Time) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	stopTimer(s.readLimit)
	if deadline.IsZero() {
		return nil
	}
	s.readLimit = s.after(deadline, func() { s.endReads(os.ErrDeadlineExceeded) })
	return nil
}

// after calls f at a time, with mu held. mu is held.
func (s *serverStream) after(at time.Time, f func()) *time.Timer {
	left := time.Until(at)
	if left <= 0 {
		f()
		return nil
	}
	return time.AfterFunc(left, func() {
		s.conn.mu.Lock()
		defer s.conn.mu.Unlock()
		f()
	})
}

func stopTimer(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

// stopTimers ends the deadlines. mu is held.
func (s *serverStream) stopTimers() {
	stopTimer(s.readLimit)
	stopTimer(s.writeLimit)
}
