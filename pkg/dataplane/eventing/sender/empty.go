package sender

import (
	"bytes"
	"net/http"
	"strings"
)

// emptyAnswer recognizes an answer that accepts an event and has no body, as most have: its head is complete in b and has no field that
// changes what it means. It returns the status code and the size of the head, or 0: then b may be any answer, which http.ReadResponse reads.
// It takes a tenth of the time (BenchmarkEmptyAnswer).
func emptyAnswer(b []byte) (code, size int) {
	const status = "HTTP/1.1 2xx"
	if len(b) < len(status) || string(b[:len(status)-2]) != status[:len(status)-2] || !digit(b[10]) || !digit(b[11]) {
		return 0, 0
	}
	code = 200 + 10*int(b[10]-'0') + int(b[11]-'0')
	empty := code == http.StatusNoContent
	for rest := b; ; {
		end := bytes.IndexByte(rest, '\n')
		if end < 1 || rest[end-1] != '\r' {
			return 0, 0
		}
		line := rest[:end-1]
		size += end + 1
		rest = rest[end+1:]
		switch {
		case size == end+1:
			if len(line) > len(status) && line[len(status)] != ' ' {
				return 0, 0
			}
		case len(line) == 0:
			if !empty {
				return 0, 0
			}
			return code, size
		default:
			ignored, none := emptyField(line)
			if !ignored && (!none || empty) {
				return 0, 0
			}
			empty = empty || none
		}
	}
}

// emptyField reports whether a field of an answer without a body can be ignored, and whether it announces that there is no body.
func emptyField(line []byte) (ignored, none bool) {
	colon := bytes.IndexByte(line, ':')
	if colon < 1 {
		return false, false
	}
	name := line[:colon]
	for _, c := range name {
		if !digit(c) && c != '-' && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false, false
		}
	}
	for _, c := range line[colon:] {
		if c < ' ' || c == 0x7f {
			return false, false
		}
	}
	value := bytes.Trim(line[colon+1:], " ")
	switch {
	case is(name, "Content-Length"):
		return false, string(value) == "0"
	case is(name, "Connection"):
		return is(value, "keep-alive"), false
	case is(name, "Transfer-Encoding"), is(name, "Trailer"), is(name, "Upgrade"), len(name) > 2 && is(name[:3], "Ce-"):
		return false, false
	}
	return true, false
}

// is compares without regard to case.
func is(text []byte, want string) bool {
	return len(text) == len(want) && strings.EqualFold(string(text), want)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }
