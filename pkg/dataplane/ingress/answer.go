package ingress

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// Refusal is an error that says how a request is answered.
type Refusal struct {
	// Status is an HTTP status code.
	Status int
	// RetryAfter is when to send the request again, rounded up to seconds. Zero stands for a second with status 503 and
	// 429, and for nothing said with others.
	RetryAfter time.Duration
	// Message is the answer's text, and the error's.
	Message string
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// answer answers a request that failed, and returns the status code.
func answer(w http.ResponseWriter, err error) (code int) {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		refusal = &Refusal{Status: http.StatusInternalServerError, Message: err.Error()}
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			refusal.Status = http.StatusServiceUnavailable
		}
	}
	after := refusal.RetryAfter
	if refusal.Status == http.StatusServiceUnavailable || refusal.Status == http.StatusTooManyRequests {
		after = max(after, time.Second)
	}
	if after > 0 {
		seconds := (after + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
	http.Error(w, refusal.Message, refusal.Status)
	return refusal.Status
}
