package http2

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// Request is the head of a request to a backend.
type Request struct {
	Method, Authority, Path string
	// Header must not have fields of a connection, such as Connection. Names are written in lower case.
	Header http.Header
	// HasBody is true if the request continues by Stream.Write and Stream.CloseWrite. Length is its content-length, or -1.
	HasBody bool
	Length  int64
	// Trailer has the names of the trailers.
	Trailer http.Header
}

// lower has common names in lower case by their canonical form, canonical the reverse.
var lower, canonical = func() (lower, canonical map[string]string) {
	lower, canonical = map[string]string{}, map[string]string{}
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Access-Control-Allow-Origin", "Authorization", "Cache-Control", "Content-Encoding", "Content-Length",
		"Content-Type", "Cookie", "Date", "Etag", "Expires", "Forwarded", "Grpc-Accept-Encoding", "Grpc-Encoding", "Grpc-Message", "Grpc-Status", "Grpc-Timeout",
		"If-Modified-Since", "If-None-Match", "K-Kubelet-Probe", "K-Network-Probe", "K-Original-Host", "Knative-Serving-Tag", "Last-Modified", "Location", "Origin", "Referer", "Server", "Set-Cookie", "Te", "Traceparent", "Tracestate",
		"Trailer", "User-Agent", "Vary", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Request-Id",
	} {
		lower[name] = strings.ToLower(name)
		canonical[lower[name]] = name
	}
	return lower, canonical
}()

// LowerName returns a name of a field in lower case.
func LowerName(name string) string {
	if known, ok := lower[name]; ok {
		return known
	}
	return strings.ToLower(name)
}

// CanonicalName returns the canonical form of the name of a field, as http.Header has it.
func CanonicalName(name string) string {
	if known, ok := canonical[name]; ok {
		return known
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// encodeHead encodes the head of a request. mu is held.
func (c *conn) encodeHead(r *Request) {
	c.encode(":method", r.Method)
	c.encode(":scheme", "http")
	c.encode(":authority", r.Authority)
	c.encode(":path", r.Path)
	c.encodeFields(r.Header)
	if r.Length > 0 || r.Length == 0 && (r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch) {
		c.encode("content-length", strconv.FormatInt(r.Length, 10))
	}
	if len(r.Trailer) > 0 {
		names := make([]string, 0, len(r.Trailer))
		for name := range r.Trailer {
			names = append(names, LowerName(name))
		}
		c.encode("trailer", strings.Join(names, ","))
	}
}

func (c *conn) encodeFields(header http.Header) {
	for name, values := range header {
		switch name = LowerName(name); name {
		case "content-length", "host", "trailer":
			continue
		}
		for _, value := range values {
			c.encode(name, value)
		}
	}
}
