// Package http1 forwards plain HTTP/1.1 requests: those that arrived whole, to instances that speak HTTP/1.1.
// Requests that need more (upgrades, bodies that are still arriving, HTTP/1.0) it has served by others, on the same
// connection.
package http1

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// Router decides about the requests of a Server. Its methods are called concurrently.
type Router interface {
	// Begin says what becomes of a request. The head is valid until the exchange is done. A nil exchange
	// without an error means that the request is not for this package: it is handed over.
	Begin(head *Head, peer netip.AddrPort) (Exchange, *Refusal)
}

// Exchange is one request and its answer.
type Exchange interface {
	// TryAcquire returns an upstream that may take the request now, or nil.
	TryAcquire() *Upstream
	// Acquire waits for such an upstream. ctx ends when the client goes away.
	Acquire(ctx context.Context) (*Upstream, *Refusal)
	// Unreachable gives back an upstream that took no connection; nothing was sent to it. Acquire may be
	// called again.
	Unreachable(*Upstream)
	// Timeouts returns the limits of the exchange.
	Timeouts() Timeouts
	// Hold reserves more memory for the exchange until Done, and reports whether there is so much.
	Hold(bytes int) bool
	// Passes tells whether a request header field goes on to the instance. name is in lower case. Hop-by-hop
	// fields are not asked for: they never do.
	Passes(name []byte) bool
	// AppendFields appends the header lines that the request gets besides, each ended by CRLF.
	AppendFields(dst []byte) []byte
	// Answered tells that the answer begins to come from the instance.
	Answered()
	// Streaming notes that the response takes a while; endless reports whether its media type has no end by nature.
	Streaming(endless bool)
	// Done ends the exchange, and gives back its upstream if it has one. The exchange may not be used after.
	Done(Result)
}

// Timeouts limit the parts of an exchange. 0 is no limit. The response starts with its complete head: interim responses
// are not its start.
type Timeouts struct {
	// Start limits the time from Begin, ResponseStart that from when the request is sent, until the response starts.
	Start, ResponseStart time.Duration
	// Idle limits the time without a byte in either direction before the response starts, Stall after that.
	Idle, Stall time.Duration
}

// Refusal is an answer that the gateway gives itself.
type Refusal struct {
	// Status is an HTTP status code, Body a line of plain text.
	Status int
	Body   string
	// RetryAfter is sent as a header where it is not 0, in whole seconds.
	RetryAfter time.Duration
}

// OverBudget is the answer to a request for which there is no memory now.
var OverBudget = &Refusal{Status: http.StatusServiceUnavailable, Body: "the namespace holds too much memory for requests", RetryAfter: time.Second}

// HandOver is what Acquire says of a request that has turned out to be not for this package, while nothing was sent:
// the exchange is done with the zero Result then, and the request is handed over.
var HandOver = &Refusal{}

// Result is what an exchange came to.
type Result struct {
	// Status is the code that the client got, 0 if it got none.
	Status int
	// RequestBytes and ResponseBytes count the bodies.
	RequestBytes, ResponseBytes int64
	// Err is why the exchange ended early, or nil: the client went away, the instance broke off, a timeout.
	Err error
}
