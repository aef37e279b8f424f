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

// maxResponseHead bounds the head of an answer, in bytes; maxInterim the interim answers before it.
const (
	maxResponseHead = 128 << 10
	maxInterim      = 16
)

// What may be wrong with an answer.
var (
	errStatusLine = errors.New("malformed status line")
	errField      = errors.New("malformed header field in the response")
	errFraming    = errors.New("ambiguous length of the response")
	errHeadSize   = errors.New("response header too large")
	errOverBudget = errors.New("no memory for the response header")
	errInterim    = errors.New("unexpected interim response")
)

// framing is how the end of a body is known.
type framing int

const (
	noBody framing = iota
	byLength
	byChunks
	byClose
)

// response is the parsed head of an answer.
type response struct {
	status int
	reason []byte
	// fields have their names as sent.
	fields  []Field
	framing framing
	// length is the Content-Length, -1 without.
	length int64
	// close tells that the connection ends with the answer.
	close   bool
	dated   bool
	options [][]byte
}

// parse parses a whole head, up to the empty line. head tells whether the answer is to a HEAD request.
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
	// HTTP/1.0, which closes its connections, has no chunks.
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

// IsEventStream reports whether a Content-Type is that of server-sent events.
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

// parseField parses a line of the head, and keeps it if it is not for this hop.
func (r *response) parseField(line []byte, chunked *bool) error {
	name, value, ok := bytes.Cut(line, []byte{':'})
	value = trim(value)
	if !ok || !isToken(name) || !all(value, &fieldByte) {
		return errField
	}
	switch len(name) {
	case len("date"):
		r.dated = r.dated || equalFold(name, "date")
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

// appendTo appends the head as it goes to the client. close tells whether the client's connection ends with it.
func (r *response) appendTo(b []byte, close bool) []byte {
	b = appendStatus(b, r.status, r.reason)
	for i := range r.fields {
		f := &r.fields[i]
		// Trailers that pass are announced, others are not.
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
	if !r.dated {
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

// appendDate appends the Date that answers which go on have (RFC 9110 6.6.1).
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
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(len(r.Body)), 10)
	b = append(b, "\r\n"...)
	b = appendHeadEnd(b, close)
	if head {
		return b
	}
	return append(b, r.Body...)
}
