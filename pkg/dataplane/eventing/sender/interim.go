package sender

import (
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
)

// maxInterim bounds the interim answers (1xx) to one request.
const maxInterim = 100

var errInterim = errors.New("too many interim answers")

// interimError is the error of a request that got interim answers only: the status of the last one, and the reason why no other followed.
type interimError struct {
	code int
	err  error
}

// Error implements error.
func (e *interimError) Error() string { return e.err.Error() }

// Unwrap implements errors.Unwrap.
func (e *interimError) Unwrap() error { return e.err }

// watching is a transport that observes interim answers, and returns an interimError like plain.
type watching struct{ *http.Transport }

// RoundTrip implements http.RoundTripper.
func (t watching) RoundTrip(r *http.Request) (*http.Response, error) {
	// The transport may still be reading when it has returned.
	var last, count atomic.Int32
	res, err := t.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			last.Store(int32(code))
			if count.Add(1) > maxInterim {
				return errInterim
			}
			return nil
		},
	})))
	if code := last.Load(); err != nil && code != 0 {
		err = &interimError{code: int(code), err: err}
	}
	return res, err
}
