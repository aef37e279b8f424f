package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// meteredRequest is the body of a request on its way to the instance. It stays open when an attempt ends, so
// that the next one may send it: who made it closes it.
type meteredRequest struct {
	io.Reader
	forward *forward
	// received has the trailers of the client once the body has ended; sent are the announced ones of the request
	// to the backend. The transport may still read the body after the exchange has returned to its pool, so nothing
	// here refers to it.
	received, sent http.Header
	// begun tells that some of it may have been sent, ended that it was read to its end.
	begun, ended atomic.Bool
}

// newMeteredRequest returns the body of out, which forwards in, or nil if there is none.
func newMeteredRequest(f *forward, in, out *http.Request) *meteredRequest {
	if out.Body == nil || out.Body == http.NoBody {
		return nil
	}
	return &meteredRequest{Reader: out.Body, forward: f, received: in.Trailer, sent: out.Trailer}
}

// Read reads from the client.
func (b *meteredRequest) Read(p []byte) (int, error) {
	b.begun.Store(true)
	n, err := b.Reader.Read(p)
	b.forward.sent.Add(int64(n))
	b.forward.touch()
	if errors.Is(err, io.EOF) {
		for name := range b.sent {
			b.sent[name] = b.received[name]
		}
		b.ended.Store(true)
	} else if err != nil {
		b.forward.badBody.Store(true)
	}
	return n, err
}

// Close does nothing.
func (b *meteredRequest) Close() error { return nil }

// meteredAnswer is the body of an answer on its way to the client.
type meteredAnswer struct {
	io.ReadCloser
	forward *forward
}

// Read reads from the instance, after the client was sent what was read before.
func (b *meteredAnswer) Read(p []byte) (int, error) {
	b.forward.touch()
	n, err := b.ReadCloser.Read(p)
	b.forward.received.Add(int64(n))
	b.forward.touch()
	return n, err
}

// noBody is empty, as http.NoBody is, but net/http does not know: it repeats requests without a body on another
// connection when the first one breaks off, though the instance may have acted on them.
type noBody struct{}

func (noBody) Read([]byte) (int, error) { return 0, io.EOF }
func (noBody) Close() error             { return nil }
