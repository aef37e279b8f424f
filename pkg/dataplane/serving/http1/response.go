package http1

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// maxResponseHead bounds the head of a response, in bytes; maxInterim the number of interim responses before it.
const (
	maxResponseHead = 128 << 10
	maxInterim      = 16
)

// The errors of malformed or excessive responses.
var (
	errStatusLine = errors.New("malformed status line")
	errField      = errors.New("malformed response header field")
	errFraming    = errors.New("ambiguous response length")
	errHeadSize   = errors.New("response header too large")
	errOverBudget = errors.New("response header exceeds the memory budget")
	errInterim    = errors.New("unexpected interim response")
)

// framing is the kind of delimiter of a body.
type framing int

const (
	noBody framing = iota
	byLength
	byChunks
	byClose
)

// response is the parsed head of a response.
type response struct {
	status int
	reason []byte
	// fields are all header fields except hop-by-hop fields, with their names as sent.
	fields  []Field
	framing framing
	// length is the Content-Length, or -1.
	length int64
	// close is true if the connection ends after the response, hasDate if it has a Date field.
	close, hasDate bool
	// options are the field names that the Connection header lists.
	options [][]byte
}

// parse parses a complete head, including the empty line. head is true if the request is a HEAD request.
func (r *response) parse(b []byte, head bool) error {
	*r = response{fields: r.fields[:0], options: r.options[:0], length: -1}
	line, rest, ok := cutLine(b, bytes.IndexByte(b, '\n'))
	if !ok || !r.parseLine(line) {
		return errStatusLine
	}
	chunked := false
	for {
		line, rest, ok = cutLine(rest, bytes.IndexByte(rest, '\n'))
		if !ok {
			return errField
		}
		if len(line) == 0 {
			break
		}
		if err := r.parseField(line, &chunked); err != nil {
			return err
		}
	}
	// HTTP/1.0 has no chunked bodies.
	if chunked && (r.length >= 0 || string(b[:8]) == "HTTP/1.0") {
		return errFraming
	}
	switch {
	case r.status < 200 || r.status == http.StatusNoContent:
		if chunked {
			return errFraming
		}
		r.length = -1
	case head || r.status == http.StatusNotModified:
	case chunked:
		r.framing = byChunks
	case r.length >= 0:
		r.framing = byLength
	default:
		r.framing, r.close = byClose, true
	}
	return nil
}

// eventStream reports whether the body is an event stream.
func (r *response) eventStream() bool {
	for i := range r.fields {
		if f := &r.fields[i]; len(f.Name) == len("content-type") && equalFold(f.Name, "content-type") {
			return IsEventStream(string(f.Value))
		}
	}
	return false
}

// IsEventStream reports whether a Content-Type denotes server-sent events.
func IsEventStream(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "text/event-stream")
}

// parseLine parses the status line.
func (r *response) parseLine(line []byte) bool {
	if len(line) < len("HTTP/1.1 200") || string(line[:7]) != "HTTP/1." || line[7] != '1' && line[7] != '0' || line[8] != ' ' {
		return false
	}
	r.close = line[7] == '0'
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return false
		}
		r.status = r.status*10 + int(c-'0')
	}
	if r.status < 100 {
		return false
	}
	if line = line[12:]; len(line) == 0 {
		return true
	}
	r.reason = line[1:]
	return line[0] == ' ' && all(r.reason, &fieldByte)
}

// parseField parses a line of the head, and appends it to fields unless it is a hop-by-hop field.
func (r *response) parseField(line []byte, chunked *bool) error {
	name, value, ok := bytes.Cut(line, []byte{':'})
	value = trim(value)
	if !ok || !isToken(name) || !all(value, &fieldByte) {
		return errField
	}
	switch len(name) {
	case len("date"):
		r.hasDate = r.hasDate || equalFold(name, "date")
	case len("upgrade"):
		if equalFold(name, "upgrade") {
			return nil
		}
	case len("connection"):
		if equalFold(name, "keep-alive") {
			return nil
		}
		if equalFold(name, "connection") {
			var closing bool
			if r.options, closing, ok = appendOptions(r.options, value); !ok {
				return errField
			}
			r.close = r.close || closing
			return nil
		}
	case len("content-length"):
		if equalFold(name, "content-length") {
			length, ok := parseLength(value)
			if !ok || r.length >= 0 && r.length != length {
				return errFraming
			}
			r.length = length
			return nil
		}
	case len("proxy-connection"):
		if equalFold(name, "proxy-connection") {
			return nil
		}
	case len("transfer-encoding"):
		if equalFold(name, "transfer-encoding") {
			if *chunked || !equalFold(value, "chunked") {
				return errFraming
			}
			*chunked = true
			return nil
		}
	case len("proxy-authenticate"):
		if equalFold(name, "proxy-authenticate") {
			return nil
		}
	}
	if len(r.fields) == maxFields {
		return errHeadSize
	}
	r.fields = append(r.fields, Field{Name: name, Value: value})
	return nil
}

// setDefault adds a field unless the response has it.
func (r *response) setDefault(name, value string) {
	for i := range r.fields {
		if equalFold(r.fields[i].Name, strings.ToLower(name)) {
			return
		}
	}
	r.fields = append(r.fields, Field{Name: []byte(name), Value: []byte(value)})
}

// appendTo appends the head for the client. close is true if the client's connection is closed after the response.
func (r *response) appendTo(b []byte, close bool) []byte {
	b = appendStatus(b, r.status, r.reason)
	for i := range r.fields {
		f := &r.fields[i]
		// Only a chunked body has trailers to announce.
		if len(f.Name) == len("trailer") && r.framing != byChunks && equalFold(f.Name, "trailer") || named(r.options, f.Name) {
			continue
		}
		b = append(b, f.Name...)
		b = append(b, ": "...)
		b = append(b, f.Value...)
		b = append(b, "\r\n"...)
	}
	if r.status < 200 {
		return append(b, "\r\n"...)
	}
	if !r.hasDate {
		b = appendDate(b)
	}
	switch {
	case r.framing == byChunks || r.framing == byClose:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case r.length >= 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.length, 10)
		b = append(b, "\r\n"...)
	}
	return appendHeadEnd(b, close)
}

func appendStatus(b []byte, status int, reason []byte) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, reason...)
	return append(b, "\r\n"...)
}

// appendDate appends the Date field that forwarded responses must have (RFC 9110 6.6.1).
func appendDate(b []byte) []byte {
	b = append(b, "Date: "...)
	b = time.Now().UTC().AppendFormat(b, http.TimeFormat)
	return append(b, "\r\n"...)
}

func appendHeadEnd(b []byte, close bool) []byte {
	if close {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...)
}

// appendRejection appends a rejection as a response, without body if it answers a HEAD request.
func appendRejection(b []byte, r *serving.Rejection, head, close bool) []byte {
	b = appendStatus(b, r.Status, []byte(http.StatusText(r.Status)))
	b = append(b, "Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"...)
	b = appendDate(b)
	if r.RetryAfter > 0 {
		b = append(b, "Retry-After: "...)
		b = strconv.AppendInt(b, int64((r.RetryAfter+time.Second-1)/time.Second), 10)
		b = append(b, "\r\n"...)
	}
	if r.Location != "" {
		b = append(b, "Location: "...)
		b = append(b, r.Location...)
		b = append(b, "\r\n"...)
	}
	if r.Challenge != "" {
		b = append(b, "Www-Authenticate: "...)
		b = append(b, r.Challenge...)
		b = append(b, "\r\n"...)
	}
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(len(r.Body)), 10)
	b = append(b, "\r\n"...)
	b = appendHeadEnd(b, close)
	if head {
		return b
	}
	return append(b, r.Body...)
}
