package http2

import (
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
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

// lower has common names in lower case by their canonical form.
var lower = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Cache-Control", "Content-Type", "Cookie", "Forwarded", "Grpc-Accept-Encoding",
		"Grpc-Encoding", "Grpc-Timeout", "If-Modified-Since", "If-None-Match", "Origin", "Referer", "Te", "Traceparent", "Tracestate", "User-Agent",
		"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Request-Id",
	} {
		names[name] = strings.ToLower(name)
	}
	return names
}()

func lowerName(name string) string {
	if known, ok := lower[name]; ok {
		return known
	}
	return strings.ToLower(name)
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
			names = append(names, lowerName(name))
		}
		c.encode("trailer", strings.Join(names, ","))
	}
}

func (c *conn) encodeFields(header http.Header) {
	for name, values := range header {
		switch name = lowerName(name); name {
		case "content-length", "host", "trailer":
			continue
		}
		for _, value := range values {
			c.encode(name, value)
		}
	}
}

// encode encodes a field. Secrets are not kept in the table of the connection, which the requests of several clients share (RFC 7541 7.1.3), nor
// is what differs in each request.
func (c *conn) encode(name, value string) {
	passing := name == "authorization" || name == "cookie" || name == "traceparent"
	c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: passing}) //nolint:errcheck // a bytes.Buffer never fails
}
