package event

import (
	"fmt"
	"net/http"
	"strings"
)

// MaxHeaderBytes bounds the names and values of the headers that travel with an event.
const MaxHeaderBytes = 8 << 10

// ErrHeaders is matched by the errors of requests whose headers are too large to travel with the event.
var ErrHeaders = fmt.Errorf("headers that are passed on (%s) may take up at most %d bytes", carriedHeaders, MaxHeaderBytes)

const carriedHeaders = "x-request-id, b3, x-b3-*, traceparent, tracestate and knative-*"

// carriedPrefix begins the names of headers of Knative, all of which travel with an event.
const carriedPrefix = "Knative-"

// carriedNames are the other headers that travel with an event, with their names in lower case.
var carriedNames = map[string]string{
	"X-Request-Id": "x-request-id", "B3": "b3", "Traceparent": "traceparent", "Tracestate": "tracestate",
	"X-B3-Traceid": "x-b3-traceid", "X-B3-Spanid": "x-b3-spanid", "X-B3-Parentspanid": "x-b3-parentspanid",
	"X-B3-Sampled": "x-b3-sampled", "X-B3-Flags": "x-b3-flags",
}

// carried returns the headers of a request that travel with its event, or nil (behaviour of brokers, delivery). It
// returns ErrHeaders if they exceed MaxHeaderBytes.
func carried(header http.Header) ([]Header, error) {
	var headers []Header
	size := 0
	for key, values := range header {
		name, found := carriedNames[key]
		if !found {
			if !strings.HasPrefix(key, carriedPrefix) {
				continue
			}
			name = strings.ToLower(key)
		}
		for _, value := range values {
			if size += len(name) + len(value); size > MaxHeaderBytes {
				return nil, ErrHeaders
			}
			headers = append(headers, Header{Name: name, Value: value})
		}
	}
	return headers, nil
}

// WriteHeaders sets the headers that travel with the event.
func (e *Event) WriteHeaders(header http.Header) {
	for i := range e.Headers {
		header.Del(e.Headers[i].Name)
	}
	for i := range e.Headers {
		header.Add(e.Headers[i].Name, e.Headers[i].Value)
	}
}

// unescape returns the attribute that the value of a header stands for: unquoted if it is a quoted string, then with
// percent-encoded bytes decoded (CloudEvents HTTP Protocol Binding 1.0.2, 3.1.3.2). A % that begins no encoded byte
// stands for itself, as in older versions of the binding.
func unescape(value string) string {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = unquote(value[1 : len(value)-1])
	}
	if strings.IndexByte(value, '%') < 0 {
		return value
	}
	var b strings.Builder
	b.Grow(len(value))
	for i := 0; i < len(value); i++ {
		if value[i] == '%' && i+2 < len(value) {
			high, ok1 := hex(value[i+1])
			low, ok2 := hex(value[i+2])
			if ok1 && ok2 {
				b.WriteByte(high<<4 | low)
				i += 2
				continue
			}
		}
		b.WriteByte(value[i])
	}
	return b.String()
}

// unquote resolves the backslashes within a quoted string (RFC 7230, 3.2.6).
func unquote(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func hex(c byte) (digit byte, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// escape is the inverse of unescape: space, double quote, percent, and all bytes that are not printable ASCII are
// percent-encoded.
func escape(value string) string {
	escaped := 0
	for i := 0; i < len(value); i++ {
		if mustEscape(value[i]) {
			escaped++
		}
	}
	if escaped == 0 {
		return value
	}
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(value) + 2*escaped)
	for i := 0; i < len(value); i++ {
		if c := value[i]; mustEscape(c) {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func mustEscape(c byte) bool { return c <= ' ' || c == '"' || c == '%' || c >= 0x7f }
