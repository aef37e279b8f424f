package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// body is the body of a request to a backend. It stays open when an attempt ends, so that the next one may send
// it: net/http closes the client's.
type body struct {
	io.Reader
	request *Request
	// received has the trailers of the client once the body has ended; trailer has the announced trailers of the request to the backend.
	// The transport may still read the body after the request has ended.
	received, trailer http.Header
	// begun is true if a part of the body may have been sent, ended if it was read completely, malformed if reading it failed.
	begun, ended, malformed atomic.Bool
}

// Read reads from the client.
func (b *body) Read(p []byte) (int, error) {
	b.begun.Store(true)
	n, err := b.Reader.Read(p)
	b.request.sent.Add(int64(n))
	b.request.touch()
	if errors.Is(err, io.EOF) {
		for name := range b.trailer {
			b.trailer[name] = b.received[name]
		}
		b.ended.Store(true)
	} else if err != nil {
		b.malformed.Store(true)
	}
	return n, err
}

// Close does nothing.
func (b *body) Close() error { return nil }

// responseBody is the body of a response to the client.
type responseBody struct {
	io.ReadCloser
	request *Request
}

// Read reads from the backend. The client has been sent the bytes of earlier calls.
func (b *responseBody) Read(p []byte) (int, error) {
	b.request.touch()
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.request.finished.Store(true)
	}
	b.request.received.Add(int64(n))
	b.request.touch()
	return n, err
}

// emptyBody is an empty body that net/http does not recognize as empty. net/http retries requests without a body when their connection
// breaks, although the backend may have processed them.
type emptyBody struct{}

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyBody) Close() error             { return nil }
