// Package serving defines the terms in which the steps of a request's chain speak with each other: rejections, time
// limits and results. The chain itself is in package gateway.
package serving

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Rejection is a response of the gateway's own to a request that it does not forward, or could not. It is also the error
// of such a request.
type Rejection struct {
	// Status is an HTTP status code, Body a line of plain text.
	Status int
	Body   string
	// RetryAfter is sent as a header if it is not 0, in whole seconds.
	RetryAfter time.Duration
}

// Error implements error.
func (r *Rejection) Error() string { return r.Body }

// The rejections that more than one package sends.
var (
	// OverBudget rejects a request for which there is no memory.
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

// Observer is the request as forwarders see it: they ask for its limits and report its progress.
type Observer interface {
	// Timeouts returns the limits of the request.
	Timeouts() Timeouts
	// Hold reserves more memory until the request ends, and reports whether the budget allows it.
	Hold(bytes int) bool
	// ResponseStarted reports the first byte of the response.
	ResponseStarted()
	// Streaming reports that the response takes a while; endless is true if its media type has no end by nature.
	Streaming(endless bool)
}

// Outcome is how an attempt to forward a request ended.
type Outcome int

const (
	// Responded means that the client got the response, or its beginning if Result.Err is set.
	Responded Outcome = iota
	// Unreached means that the backend accepted no connection: nothing was sent, and there may be another attempt.
	Unreached
	// Rejected means that the client got nothing and is to be answered with Result.Rejection.
	Rejected
	// Canceled means that the client closed its connection.
	Canceled
	// Declined means that the forwarder cannot forward the request; nothing was sent.
	Declined
)

// Result is the outcome of an attempt to forward a request, and in the end of the request.
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
