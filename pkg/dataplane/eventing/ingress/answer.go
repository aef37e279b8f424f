package ingress

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/senders"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Refusal is an error with the HTTP response to return.
type Refusal struct {
	// Status is an HTTP status code.
	Status int
	// RetryAfter is the value of the Retry-After header, rounded up to seconds. Zero means one second with status 503 and 429,
	// and no header otherwise.
	RetryAfter time.Duration
	// Challenge is the value of the WWW-Authenticate header, or empty.
	Challenge string
	// Message is the text of the response and of the error.
	Message string
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// fullRetryAfter is the Retry-After while the event log stores nothing.
const fullRetryAfter = 5 * time.Second

// responses are the responses to the errors of package eventing.
var responses = []struct {
	reason     error
	status     int
	retryAfter time.Duration
}{
	{eventing.ErrNotFound, http.StatusNotFound, 0},
	{eventing.ErrLoop, http.StatusBadRequest, 0},
	{eventing.ErrTooLarge, http.StatusRequestEntityTooLarge, 0},
	{eventing.ErrFull, http.StatusServiceUnavailable, fullRetryAfter},
	{eventing.ErrUnavailable, http.StatusServiceUnavailable, fullRetryAfter},
	{eventing.ErrNotReady, http.StatusServiceUnavailable, 0},
	{context.Canceled, http.StatusServiceUnavailable, 0},
	{context.DeadlineExceeded, http.StatusServiceUnavailable, 0},
}

// RefusalOf returns the response to a request that failed with err: err itself if it is a Refusal, and status 500 for an
// unknown error.
func RefusalOf(err error) *Refusal {
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		return refusal
	}
	if rejection := (*senders.Rejection)(nil); errors.As(err, &rejection) {
		return &Refusal{Status: rejection.Status, Challenge: rejection.Challenge, Message: rejection.Message}
	}
	for _, r := range responses {
		if errors.Is(err, r.reason) {
			return &Refusal{Status: r.status, RetryAfter: r.retryAfter, Message: err.Error()}
		}
	}
	return &Refusal{Status: http.StatusInternalServerError, Message: err.Error()}
}

// answer answers a request that failed, and returns the status code.
func answer(w http.ResponseWriter, err error) (code int) {
	refusal := RefusalOf(err)
	after := refusal.RetryAfter
	if refusal.Status == http.StatusServiceUnavailable || refusal.Status == http.StatusTooManyRequests {
		after = max(after, time.Second)
	}
	if after > 0 {
		seconds := (after + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	if refusal.Challenge != "" {
		w.Header().Set("WWW-Authenticate", refusal.Challenge)
	}
	http.Error(w, refusal.Message, refusal.Status)
	return refusal.Status
}
