package sender

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow/idleconn"
)

// conn is a connection to a recipient at an address. One request uses it at a time.
type conn struct {
	net.Conn
	transport *plain
	address   string
	reader    *bufio.Reader
	// room is the number of bytes of the answer that may still be read.
	room int64
	// answered is true if any byte of an answer to the current request arrived.
	answered bool
	// since is the time since which the connection is idle.
	since time.Time
	idle  *idleconn.Checker
}

func newConn(made net.Conn, t *plain, address string) *conn {
	c := &conn{Conn: made, transport: t, address: address, idle: idleconn.NewChecker(made)}
	c.reader = bufio.NewReader(c)
	return c
}

// writers buffer requests.
var writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 8<<10) }}

// exchange sends a request and returns its answer, without interim ones.
func (c *conn) exchange(r *http.Request) (*http.Response, error) {
	c.answered = false
	w := writers.Get().(*bufio.Writer)
	w.Reset(c.Conn)
	unwritten := r.Write(w)
	if unwritten == nil {
		unwritten = w.Flush()
	}
	w.Reset(nil)
	writers.Put(w)

	// A recipient that does not read the request may have answered it.
	interim := 0
	for range maxInterim {
		c.room = maxHeader
		res, err := c.read(r)
		switch {
		case err != nil && unwritten != nil:
			return nil, unwritten
		case err != nil && interim != 0:
			return nil, &interimError{code: interim, err: err}
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("the recipient closed the connection without an answer: %w", err)
		case err != nil:
			return nil, err
		case res.StatusCode/100 != 1 || res.StatusCode == http.StatusSwitchingProtocols:
			c.room = math.MaxInt64
			res.Close = res.Close || unwritten != nil
			return res, nil
		}
		interim = res.StatusCode
	}
	return nil, &interimError{code: interim, err: errInterim}
}

var errHeader = errors.New("the header of the answer exceeds the limit")

// Read reads as long as there is room.
func (c *conn) Read(p []byte) (int, error) {
	if c.room <= 0 {
		return 0, errHeader
	}
	n, err := c.Conn.Read(p)
	c.room -= int64(n)
	c.answered = c.answered || n > 0
	return n, err
}

// read reads the head of an answer to a request.
func (c *conn) read(r *http.Request) (*http.Response, error) {
	// The reader forgets an error, so http.ReadResponse would read once more.
	if _, err := c.reader.Peek(1); errors.Is(err, io.EOF) {
		return nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return nil, err
	}
	arrived, err := c.reader.Peek(c.reader.Buffered())
	if err != nil {
		return nil, err
	}
	code, size := emptyAnswer(arrived)
	if code == 0 {
		return http.ReadResponse(c.reader, r)
	}
	if _, err := c.reader.Discard(size); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Body: http.NoBody, Request: r}, nil
}

// interrupt ends reads and writes.
func (c *conn) interrupt() {
	c.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // fails on closed connections only
}

// body is the body of an answer.
type body struct {
	io.ReadCloser
	conn *conn
	// stop keeps the end of the request's context from interrupting the connection.
	stop func() bool
	// keep is true if the connection can be reused after the end of the body, ended if that end was read.
	keep, ended bool
	closed      bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || errors.Is(err, io.EOF)
	return n, err
}

// Close keeps the connection for reuse if the body was read to its end, and closes it otherwise.
func (b *body) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	if b.stop() && b.keep && b.ended && b.conn.reader.Buffered() == 0 {
		b.conn.transport.put(b.conn)
		return nil
	}
	return b.conn.Close()
}
