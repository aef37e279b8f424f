// Package http1 forwards plain HTTP/1.1 requests that have arrived completely to backends that speak HTTP/1.1: the fast path.
// Connections with other requests (upgrades, bodies that are still arriving, HTTP/1.0, HTTP/2) are lent to net/http.
//
// It does not use net/http because net/http needs about nine times as long for each request:
// go test -run '^$' -bench BenchmarkForwarders ./pkg/dataplane/serving/gateway, on two busy processors that run client and backend too:
//
//	fast       30 µs, 34,000 requests/s, p99 10 ms,   0 allocations
//	standard  290 µs,  3,600 requests/s, p99 52 ms, 150 allocations
//
// The package is not split further because server, parser, sender and the lending of connections share the buffers of one
// connection. Its API is Server, Exchange, Upstream and two interfaces.
package http1

import "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"

// Handler handles the requests of a Server.
type Handler interface {
	// ServeHTTP1 answers a request by x.Forward or x.Reject and returns true, or returns false if net/http must serve it. The
	// exchange is valid until ServeHTTP1 returns. It is called concurrently.
	ServeHTTP1(x *Exchange) bool
}

// Observer is the request as Exchange.Forward sees it.
type Observer interface {
	serving.Observer
	// Passes reports whether a request header field is forwarded to the backend. name is in lower case. Hop-by-hop fields
	// are never forwarded.
	Passes(name []byte) bool
	// AppendHost appends the Host of the request to the backend; client is the client's.
	AppendHost(dst, client []byte) []byte
	// AppendFields appends the header lines that the gateway adds to the request, each ended by CRLF.
	AppendFields(dst []byte) []byte
	// AltSvc returns the Alt-Svc field of the response, unless the backend sets one. Empty adds none.
	AltSvc() string
}
