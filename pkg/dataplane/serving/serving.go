// Package serving defines the types that the steps of a request's chain share: rejections, time limits and results. The chain
// itself is in package gateway.
package serving

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
)

// Rejection is the gateway's own response to a request that it does not or could not forward. It is also the error of such a
// request.
type Rejection struct {
	// Status is an HTTP status code, Body a line of plain text.
	Status int
	Body   string
	// RetryAfter is sent as a header if it is not 0, in whole seconds.
	RetryAfter time.Duration
	// Location is the URL of a redirect, sent as a header if it is not empty.
	Location string
	// Challenge is sent as the header WWW-Authenticate if it is not empty.
	Challenge string
}

// Error implements error.
func (r *Rejection) Error() string { return r.Body }

// UserHeader has the verified caller of a request. Clients cannot send it.
const UserHeader = "Knative-Serving-User"

// IsUserField reports whether a field name, in lower case, is UserHeader. Applications may not distinguish '_' from '-'.
func IsUserField[T string | []byte](name T) bool {
	const user = "knative-serving-user"
	if len(name) != len(user) {
		return false
	}
	for i := range len(user) {
		if c := name[i]; c != user[i] && !(c == '_' && user[i] == '-') {
			return false
		}
	}
	return true
}

// AppendUser appends the value of UserHeader: a user name, in which '%' and all characters but the visible ones of ASCII are
// percent-encoded.
func AppendUser(dst []byte, name string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == '%' {
			dst = append(dst, '%', digits[c>>4], digits[c&0xf])
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// The rejections that more than one package sends.
var (
	// OverBudget rejects a request that exceeds the memory budget.
	OverBudget = &Rejection{Status: http.StatusServiceUnavailable, Body: "the namespace holds too much memory for requests", RetryAfter: time.Second}
	// TimedOut rejects a request whose response did not start in time.
	TimedOut = &Rejection{Status: http.StatusGatewayTimeout, Body: "request timeout"}
	// BrokenOff rejects a request whose backend closed the connection.
	BrokenOff = &Rejection{Status: http.StatusBadGateway, Body: "the instance closed the connection without an answer"}
	// BadResponse rejects a request whose response is malformed.
	BadResponse = &Rejection{Status: http.StatusBadGateway, Body: "the instance's answer is not valid HTTP"}
)

// ErrTimeout is the error of a request that exceeded one of its Timeouts.
var ErrTimeout = fmt.Errorf("request timeout: %w", context.DeadlineExceeded)

// Timeouts limit the parts of a request. 0 is no limit. The response starts with its complete head: interim responses
// are not its start.
type Timeouts struct {
	// Start limits the time from the arrival of the request until the response starts, ResponseStart the time from when
	// the request is sent.
	Start, ResponseStart time.Duration
	// Idle limits the time without a byte in either direction before the response starts, Stall after that.
	Idle, Stall time.Duration
}

// Observer is a forwarder's view of the request: it provides limits and receives progress.
type Observer interface {
	// Timeouts returns the limits of the request.
	Timeouts() Timeouts
	// Hold reserves more memory until the request ends, and reports whether the budget allows it.
	Hold(bytes int) bool
	// ResponseStarted reports the first byte of the response.
	ResponseStarted()
	// Streaming reports that the response takes a while; endless is true if responses of its media type do not end by themselves.
	Streaming(endless bool)
	// Abandon reports that the request ends although its backend may still work on it. It returns the request's place there, nil if
	// the Revision has no containerConcurrency.
	Abandon() *linger.Place
}

// Outcome is the outcome of an attempt to forward a request.
type Outcome int

const (
	// Responded means that the client got the response, or its beginning if Result.Err is set.
	Responded Outcome = iota
	// Unreached means that the backend accepted no connection: nothing was sent, and there may be another attempt.
	Unreached
	// Rejected means that the client got nothing yet, and must get Result.Rejection.
	Rejected
	// Canceled means that the client closed its connection.
	Canceled
	// Declined means that the forwarder cannot forward the request; nothing was sent.
	Declined
)

// Result is the result of an attempt to forward a request and, after the last attempt, of the request.
type Result struct {
	Outcome   Outcome
	Rejection *Rejection
	// Status is the status code that the client got, 0 if it got none.
	Status int
	// RequestBytes and ResponseBytes count the bodies.
	RequestBytes, ResponseBytes int64
	// Err is the reason why the request ended early, or nil.
	Err error
}
