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
	// defaultMaxBody is the largest body where Options name none.
	defaultMaxBody = 1 << 20
	// smallBody is the size of the buffers that are used again.
	smallBody = 16 << 10
	// maxDrained is how much of a body that is too large is read all the same, so that clients that send all before
	// they look at the answer see it instead of a connection that breaks.
	maxDrained = 32 << 20
)

// bodies reads the bodies of requests, within bounds of size, memory and time.
type bodies struct {
	max                       int64
	stallTimeout, readTimeout time.Duration
	// memory counts the capacity of the buffers in use.
	memory *flow.Budget
	// small has *body of smallBody bytes.
	small sync.Pool
}

// body is a body in memory.
type body struct {
	// data is what was read, nil if that is nothing.
	data   []byte
	buffer []byte
	// namespace is that of the stream that the request is for.
	namespace string
	// besides counts what is made of the body, in bytes of memory.
	besides int64
}

// read returns the body of a request for a stream of a namespace, to be given back to release. It fails with 408, 413 or 503, or with 400 where
// the client ended.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, namespace string) (*body, error) {
	in := &patientReader{from: r.Body, controller: http.NewResponseController(w), stall: b.stallTimeout, end: time.Now().Add(b.readTimeout)}
	if r.ContentLength == 0 {
		in.done()
		return &body{}, nil
	}
	if r.ContentLength-b.max > maxDrained {
		if r.ProtoMajor == 1 {
			// It would not come to an end that could be waited for.
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

var errMemory = &Refusal{Status: http.StatusServiceUnavailable, Message: "too many requests are being read"}

// fill reads the body into the buffer, which grows with what has arrived.
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
				"the body must arrive within %s, and may not stop for %s", b.readTimeout, b.stallTimeout)}
		case err != nil:
			return &Refusal{Status: http.StatusBadRequest, Message: "reading the body: " + err.Error()}
		}
	}
}

// tooLarge returns the refusal of a body, having read the rest of it unless the client waits for being asked to send.
func (b *bodies) tooLarge(r *http.Request, in *patientReader) error {
	if r.Header.Get("Expect") == "" {
		// Whatever goes wrong here, the answer is the same.
		io.CopyN(io.Discard, in, maxDrained) //nolint:errcheck // see above
	}
	return b.refusal()
}

func (b *bodies) refusal() error {
	return &Refusal{Status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the body may have at most %d bytes", b.max)}
}

// reserve counts times the body's size besides it, until it is released. It tells whether there is memory.
func (b *bodies) reserve(read *body, times int64) bool {
	bytes := times * int64(len(read.data))
	if !b.memory.Reserve(read.namespace, bytes) {
		return false
	}
	read.besides += bytes
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

// grow doubles the buffer, up to the length of the body if that is known. It tells whether there is memory.
func (b *bodies) grow(read *body, length int64) bool {
	size := min(2*int64(len(read.buffer)), b.max+1)
	if length > 0 {
		size = min(size, length)
	}
	// The old buffer stays in use until the new one has its content.
	if !b.memory.Reserve(read.namespace, size) {
		return false
	}
	grown := make([]byte, size)
	copy(grown, read.buffer)
	b.memory.Release(read.namespace, int64(len(read.buffer)))
	read.buffer = grown
	return true
}

// release gives back a body, which nobody may use any more.
func (b *bodies) release(read *body) {
	if read.buffer == nil {
		return
	}
	b.memory.Release(read.namespace, int64(len(read.buffer))+read.besides)
	if len(read.buffer) == smallBody {
		read.data, read.besides = nil, 0
		b.small.Put(read)
	}
}

// patientReader reads from a client that may take until end, and may not stop for as long as stall.
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
	// Where deadlines are not supported, or the connection is gone, reading goes as it goes.
	p.controller.SetReadDeadline(deadline) //nolint:errcheck // see above
	return p.from.Read(into)
}

// done ends the time limit of a body that was read, which would end the request while it is worked on. That of others
// stays, as the server goes on to read before it answers.
func (p *patientReader) done() {
	p.controller.SetReadDeadline(time.Time{}) //nolint:errcheck // as in Read
}
