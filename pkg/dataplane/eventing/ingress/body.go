package ingress

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// defaultMaxBody is the default of Options.MaxBody.
	defaultMaxBody = 1 << 20
	// smallBody is the size of pooled buffers.
	smallBody = 16 << 10
	// maxDrained bounds the bytes that are read and discarded of a body that is too large: clients that read the response only
	// after sending the body receive it instead of a connection error.
	maxDrained = 32 << 20
)

// bodies reads request bodies within limits of size, memory and time.
type bodies struct {
	max                       int64
	stallTimeout, readTimeout time.Duration
	// memory counts the capacity of the buffers in use.
	memory *flow.Budget
	// small pools *body with buffers of smallBody bytes.
	small sync.Pool
}

// body is a request body in memory.
type body struct {
	// data is the content, nil if empty.
	data   []byte
	buffer []byte
	// namespace is the namespace of the request's stream.
	namespace string
	// reserved is the memory for the parsed body in bytes.
	reserved int64
}

// read returns the body of a request for a stream of a namespace, which the caller must release. It fails with status 408, 413
// or 503, or with 400 if the client closed the connection.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, namespace string) (*body, error) {
	in := &patientReader{from: r.Body, controller: http.NewResponseController(w), stall: b.stallTimeout, end: time.Now().Add(b.readTimeout)}
	if r.ContentLength == 0 {
		in.done()
		return &body{}, nil
	}
	if r.ContentLength-b.max > maxDrained {
		if r.ProtoMajor == 1 {
			// The rest is too long to read.
			w.Header().Set("Connection", "close")
		}
		return nil, b.refusal()
	}
	if r.ContentLength > b.max {
		return nil, b.tooLarge(r, in)
	}
	read := b.get(namespace)
	if read == nil {
		return nil, errMemory
	}
	if err := b.fill(read, r, in); err != nil {
		b.release(read)
		return nil, err
	}
	in.done()
	return read, nil
}

var errMemory = &Refusal{Status: http.StatusServiceUnavailable, Message: "the memory budget for requests is exhausted"}

// fill reads the body into the buffer, which grows as data arrives.
func (b *bodies) fill(read *body, r *http.Request, in *patientReader) error {
	n := 0
	for {
		if n == len(read.buffer) {
			if !b.grow(read, r.ContentLength) {
				return errMemory
			}
		}
		more, err := in.Read(read.buffer[n:])
		n += more
		if int64(n) > b.max {
			return b.tooLarge(r, in)
		}
		if r.ContentLength > 0 && int64(n) == r.ContentLength || errors.Is(err, io.EOF) {
			if n > 0 {
				read.data = read.buffer[:n]
			}
			return nil
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return &Refusal{Status: http.StatusRequestTimeout, Message: fmt.Sprintf(
				"the body must arrive within %s and may not pause for %s", b.readTimeout, b.stallTimeout)}
		case err != nil:
			return &Refusal{Status: http.StatusBadRequest, Message: "read body: " + err.Error()}
		}
	}
}

// tooLarge discards the rest of a body, unless the client waits for 100 Continue, and returns the refusal.
func (b *bodies) tooLarge(r *http.Request, in *patientReader) error {
	if r.Header.Get("Expect") == "" {
		// Errors do not change the response.
		io.CopyN(io.Discard, in, maxDrained) //nolint:errcheck // see above
	}
	return b.refusal()
}

// refusal returns the refusal of a body that is too large.
func (b *bodies) refusal() error {
	return &Refusal{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the body may have at most %d bytes", b.max)}
}

// reserve reserves times the size of the body for the parsed body, until release. It reports whether memory is available.
func (b *bodies) reserve(read *body, times int64) bool {
	bytes := times * int64(len(read.data))
	if !b.memory.Reserve(read.namespace, bytes) {
		return false
	}
	read.reserved += bytes
	return true
}

// get returns an empty body with a small buffer, or nil if memory is short.
func (b *bodies) get(namespace string) *body {
	if !b.memory.Reserve(namespace, smallBody) {
		return nil
	}
	if read, ok := b.small.Get().(*body); ok {
		read.namespace = namespace
		return read
	}
	return &body{buffer: make([]byte, smallBody), namespace: namespace}
}

// grow doubles the buffer, up to length if that is known. It reports whether memory is available.
func (b *bodies) grow(read *body, length int64) bool {
	size := min(2*int64(len(read.buffer)), b.max+1)
	if length > 0 {
		size = min(size, length)
	}
	// Both buffers are in use while the content is copied.
	if !b.memory.Reserve(read.namespace, size) {
		return false
	}
	grown := make([]byte, size)
	copy(grown, read.buffer)
	b.memory.Release(read.namespace, int64(len(read.buffer)))
	read.buffer = grown
	return true
}

// release releases the memory of a body. The body must not be used afterwards.
func (b *bodies) release(read *body) {
	if read.buffer == nil {
		return
	}
	b.memory.Release(read.namespace, int64(len(read.buffer))+read.reserved)
	if len(read.buffer) == smallBody {
		read.data, read.reserved = nil, 0
		b.small.Put(read)
	}
}

// patientReader reads from a client until end, and fails if the client pauses for stall.
type patientReader struct {
	from       io.Reader
	controller *http.ResponseController
	stall      time.Duration
	end        time.Time
}

// Read reads from the client. It fails with os.ErrDeadlineExceeded if the client is too slow.
func (p *patientReader) Read(into []byte) (int, error) {
	deadline := time.Now().Add(p.stall)
	if deadline.After(p.end) {
		deadline = p.end
	}
	// Without support for deadlines, or on a closed connection, Read returns whatever the connection returns.
	p.controller.SetReadDeadline(deadline) //nolint:errcheck // see above
	return p.from.Read(into)
}

// done removes the deadline of a body that was read completely, which would otherwise cancel the request while it is handled.
// Other bodies keep it, because the server reads the rest before it responds.
func (p *patientReader) done() {
	p.controller.SetReadDeadline(time.Time{}) //nolint:errcheck // as in Read
}
