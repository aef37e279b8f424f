package gateway

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxMethod, maxHost and maxPath bound the parts of a request's description, in bytes.
	maxMethod, maxHost, maxPath = 32, 253, 200
)

// describe returns the method, host and path of a request, such as "GET hello.default.example.com/orders", for users who may read it. The
// query is left out, because it often has credentials.
func (in *inbound) describe() string {
	method := ""
	if in.head != nil {
		method = string(in.head.Method)
	} else {
		method = in.request.Method
	}
	path, _, _ := strings.Cut(in.target(), "?")
	return printable(method, maxMethod) + " " + printable(in.host(), maxHost) + printable(path, maxPath)
}

// printable returns text of at most limit bytes, without the characters that cannot be printed. Text that was longer ends with "...".
func printable(text string, limit int) string {
	const more = "..."
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text[:min(len(text), 4*limit)])
	if len(text) <= limit {
		return text
	}
	end := limit - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}
