package routetable

import (
	"slices"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// paths are the paths of a host, the longest first.
type paths []routing.Path

func newPaths(of []routing.Path) paths {
	sorted := slices.Clone(of)
	slices.SortFunc(sorted, func(a, b routing.Path) int { return len(b.Prefix) - len(a.Prefix) })
	return sorted
}

// Aliased reports whether a host stands for hosts of other routes. It has no Revisions then.
func (h *Host[B]) Aliased() bool { return h.Alias != nil || len(h.paths) > 0 }

// AliasOf returns the host that an aliased host stands for in a request with a target, or nil if it stands for none. A target that does not
// begin with a slash has no path.
//
// ok is false if the host has paths and the request's path is ambiguous: another party that decodes or cleans it might find another path.
// Then the request must be rejected, because the host of the intended path may restrict its callers.
func AliasOf[B any, S string | []byte](h *Host[B], target S) (alias *routing.Alias, ok bool) {
	if len(h.paths) == 0 || len(target) == 0 || target[0] != '/' {
		return h.Alias, true
	}
	end, plain := pathLength(target)
	if !plain {
		return nil, false
	}
	for i := range h.paths {
		if below(target[:end], h.paths[i].Prefix) {
			return h.paths[i].Alias, true
		}
	}
	return h.Alias, true
}

// below reports whether a path is the prefix, or the prefix and further segments.
func below[S string | []byte](path S, prefix string) bool {
	return len(path) >= len(prefix) && string(path[:len(prefix)]) == prefix && (len(path) == len(prefix) || path[len(prefix)] == '/')
}

// pathLength returns the length of the path at the start of a target. plain is true if all parties agree on its segments: none is empty,
// except for the last, or ".", or "..", none has a backslash or a parameter, and no character that may be part of a prefix or separates
// segments is percent-encoded.
func pathLength[S string | []byte](target S) (length int, plain bool) {
	// start is the index after the last slash.
	start := 0
	for i := 0; ; i++ {
		if i == len(target) || target[i] == '?' || target[i] == '/' {
			segment, last := target[start:i], i == len(target) || target[i] == '?'
			switch {
			case len(segment) == 0 && !last && i > 0, len(segment) == 1 && segment[0] == '.', len(segment) == 2 && segment[0] == '.' && segment[1] == '.':
				return 0, false
			case last:
				return i, true
			}
			start = i + 1
			continue
		}
		switch c := target[i]; {
		case c == '\\' || c == ';':
			return 0, false
		case c == '%':
			if i+2 >= len(target) || !encodable(target[i+1], target[i+2]) {
				return 0, false
			}
			i += 2
		}
	}
}

// encodable reports whether a character may be percent-encoded in a path, with two hexadecimal digits.
func encodable(high, low byte) bool {
	h, l := hex(high), hex(low)
	if h > 15 || l > 15 {
		return false
	}
	switch c := h<<4 | l; {
	case c < ' ', c == 0x7f, 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return false
	default:
		switch c {
		case '-', '.', '_', '~', '/', '\\', ';':
			return false
		}
	}
	return true
}

// hex returns the value of a hexadecimal digit, or 16.
func hex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 16
}
