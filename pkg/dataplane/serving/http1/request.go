package http1

import (
	"bytes"
	"net/http"
	"strconv"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

const (
	// maxFields and maxOptions bound the work for one head.
	maxFields  = 1000
	maxOptions = 32
)

// The rejections of requests that do not conform to RFC 9112.
var (
	badLine     = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed line end"}
	badRequest  = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed request line"}
	badMethod   = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed method"}
	badTarget   = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed request target"}
	badField    = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed header field"}
	badHost     = &serving.Rejection{Status: http.StatusBadRequest, Body: "missing or malformed Host header"}
	badLength   = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed Content-Length header"}
	badCoding   = &serving.Rejection{Status: http.StatusBadRequest, Body: "unsupported Transfer-Encoding header"}
	badOptions  = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed Connection header"}
	badExpect   = &serving.Rejection{Status: http.StatusExpectationFailed, Body: "unsupported Expect header"}
	badVersion  = &serving.Rejection{Status: http.StatusHTTPVersionNotSupported, Body: "unsupported HTTP version"}
	tooLarge    = &serving.Rejection{Status: http.StatusRequestHeaderFieldsTooLarge, Body: "request header too large"}
	headTimeout = &serving.Rejection{Status: http.StatusRequestTimeout, Body: "request header did not arrive in time"}
	overloaded  = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "too many requests are arriving", RetryAfter: time.Second}
	crlf        = []byte("\r\n")
	crlfcrlf    = []byte("\r\n\r\n")
)

// request is a parsed request head.
type request struct {
	Head
	// length is the Content-Length, or -1.
	length int64
	// close is true if the connection ends after the response.
	close bool
	// options are the field names that the Connection header lists.
	options [][]byte
	// chunked is true if the body is chunked.
	chunked bool
	// standard is true if the request needs the standard path, http10 if it is HTTP/1.0, preface if it is the start of HTTP/2.
	standard, http10, preface bool
}

// headSize returns the size of the head that b starts with, or 0 if it is incomplete. The first scanned bytes of b were
// scanned before.
func headSize(b []byte, scanned int) (int, *serving.Rejection) {
	if len(b) > 0 && lowerToken[b[0]] == 0 {
		return 0, badRequest
	}
	if i := bytes.Index(b[max(scanned-3, 0):], crlfcrlf); i >= 0 {
		return max(scanned-3, 0) + i + len(crlfcrlf), nil
	}
	// A client that ends lines with LF alone would otherwise wait until its timeout.
	for i := scanned; ; i++ {
		lf := bytes.IndexByte(b[i:], '\n')
		if lf < 0 {
			return 0, nil
		}
		if i += lf; i == 0 || b[i-1] != '\r' {
			return 0, badLine
		}
	}
}

// parse parses a complete head, including the empty line. It changes the field names in b to lower case.
func (r *request) parse(b []byte) *serving.Rejection {
	*r = request{Head: Head{Fields: r.Fields[:0]}, length: -1, options: r.options[:0]}
	line, rest, ok := cutLine(b, bytes.IndexByte(b, '\n'))
	if !ok {
		return badLine
	}
	if rejection := r.parseLine(line); rejection != nil || r.preface {
		return rejection
	}
	for {
		line, rest, ok = cutLine(rest, bytes.IndexByte(rest, '\n'))
		if !ok {
			return badLine
		}
		if len(line) == 0 {
			break
		}
		if rejection := r.parseField(line); rejection != nil {
			return rejection
		}
	}
	if r.Host == nil && !r.http10 {
		return badHost
	}
	if r.chunked && r.http10 {
		return badCoding
	}
	if r.chunked {
		if r.length >= 0 {
			return badLength
		}
		r.standard = true
	}
	return nil
}

// parseLine parses the request line.
func (r *request) parseLine(line []byte) *serving.Rejection {
	sp := bytes.IndexByte(line, ' ')
	if sp < 0 {
		return badRequest
	}
	if r.Method = line[:sp]; !isToken(r.Method) {
		return badMethod
	}
	line = line[sp+1:]
	if sp = bytes.IndexByte(line, ' '); sp < 1 {
		return badRequest
	}
	r.Target = line[:sp]
	switch version := line[sp+1:]; {
	case string(version) == "HTTP/1.1":
		return r.checkTarget()
	case string(version) == "HTTP/1.0":
		r.standard, r.http10 = true, true
		return r.checkTarget()
	case string(line) == "* HTTP/2.0" && string(r.Method) == "PRI":
		r.standard, r.preface = true, true
		return nil
	case len(version) == 8 && string(version[:5]) == "HTTP/" && version[6] == '.' &&
		'0' <= version[5] && version[5] <= '9' && '0' <= version[7] && version[7] <= '9':
		return badVersion
	}
	return badRequest
}

// checkTarget rejects malformed targets, and assigns targets that are not in origin form to the standard path.
func (r *request) checkTarget() *serving.Rejection {
	t := r.Target
	if !all(t, &targetByte) {
		return badTarget
	}
	switch {
	case string(r.Method) == "CONNECT":
		r.standard = true
	case t[0] == '/':
		path := t
		if query := bytes.IndexByte(t, '?'); query >= 0 {
			path = t[:query]
		}
		return checkEscapes(path)
	case string(t) == "*" && string(r.Method) == "OPTIONS":
	default:
		r.standard = true
		return checkAbsolute(t)
	}
	return nil
}

// checkAbsolute rejects a target that is not a URL with a host: net/http would use the Host header instead.
func checkAbsolute(target []byte) *serving.Rejection {
	_, rest, ok := bytes.Cut(target, []byte("://"))
	if end := bytes.IndexAny(rest, "/?"); end >= 0 {
		rest = rest[:end]
	}
	if !ok || !validHost(rest) {
		return badTarget
	}
	return nil
}

// checkEscapes rejects a path with a percent sign that is not followed by two hexadecimal digits.
func checkEscapes(path []byte) *serving.Rejection {
	for {
		i := bytes.IndexByte(path, '%')
		if i < 0 {
			return nil
		}
		if path = path[i+1:]; len(path) < 2 || !isHex(path[0]) || !isHex(path[1]) {
			return badTarget
		}
	}
}

// parseField parses a line of the head.
func (r *request) parseField(line []byte) *serving.Rejection {
	colon := 0
	for colon < len(line) {
		c := lowerToken[line[colon]]
		if c == 0 {
			break
		}
		line[colon] = c
		colon++
	}
	// White space before the colon or at the start of the line is not part of a token and is rejected here.
	if colon == 0 || colon == len(line) || line[colon] != ':' {
		return badField
	}
	f := Field{Name: line[:colon], Value: trim(line[colon+1:])}
	if !all(f.Value, &fieldByte) {
		return badField
	}
	if len(r.Fields) == maxFields {
		return tooLarge
	}
	r.Fields = append(r.Fields, f)
	switch string(f.Name) {
	case "host":
		if r.Host != nil || !validHost(f.Value) {
			return badHost
		}
		r.Host = f.Value
	case "content-length":
		length, ok := parseLength(f.Value)
		if !ok || r.length >= 0 {
			return badLength
		}
		r.length = length
	case "transfer-encoding":
		if r.chunked || !equalFold(f.Value, "chunked") {
			return badCoding
		}
		r.chunked = true
	case "connection":
		return r.parseConnection(f.Value)
	case "expect":
		if !equalFold(f.Value, "100-continue") {
			return badExpect
		}
		r.standard = true
	case "upgrade":
		r.standard = true
	}
	return nil
}

func (r *request) parseConnection(value []byte) *serving.Rejection {
	options, closing, ok := appendOptions(r.options, value)
	if !ok {
		return badOptions
	}
	r.options, r.close = options, r.close || closing
	return nil
}

// appendOptions appends the field names that a Connection header lists. closing is true if it has the option close.
func appendOptions(options [][]byte, value []byte) (all [][]byte, closing, ok bool) {
	for more := true; more; {
		var option []byte
		option, value, more = bytes.Cut(value, []byte{','})
		option = trim(option)
		switch {
		case len(option) == 0 || equalFold(option, "keep-alive"):
		case equalFold(option, "close"):
			closing = true
		case !isToken(option) || len(options) == maxOptions:
			return nil, false, false
		default:
			options = append(options, option)
		}
	}
	return options, closing, true
}

// named reports whether options contain a field name.
func named(options [][]byte, name []byte) bool {
	for _, option := range options {
		if bytes.EqualFold(option, name) {
			return true
		}
	}
	return false
}

// appendTo appends the request for a backend, without its body. The head is serialized from its parsed form, so that a
// backend cannot parse it differently.
func (r *request) appendTo(b []byte, o Observer) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = o.AppendHost(b, r.Host)
	b = append(b, "\r\n"...)
	for i := range r.Fields {
		f := &r.Fields[i]
		switch string(f.Name) {
		case "host", "content-length", "connection", "keep-alive", "proxy-connection", "proxy-authenticate",
			"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade":
			continue
		}
		if named(r.options, f.Name) || !o.Passes(f.Name) {
			continue
		}
		b = appendCanonical(b, f.Name)
		b = append(b, ": "...)
		b = append(b, f.Value...)
		b = append(b, "\r\n"...)
	}
	b = o.AppendFields(b)
	if r.length >= 0 {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.length, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// appendCanonical appends a field name in canonical form, for example Content-Type.
func appendCanonical(b, name []byte) []byte {
	start := true
	for _, c := range name {
		if start && 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		start = c == '-'
		b = append(b, c)
	}
	return b
}
