package http1

// Tables of the bytes that HTTP/1.1 allows (RFC 9110 5.5 and 5.6.2, RFC 3986 3.2.2).
var (
	// lowerToken maps the bytes of a token to lower case, all others to 0.
	lowerToken = table(func(c byte) byte {
		switch {
		case 'A' <= c && c <= 'Z':
			return c + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		}
		return listed(c, "!#$%&'*+-.^_`|~")
	})
	// fieldByte is not 0 for the bytes of a field value.
	fieldByte = table(func(c byte) byte { return when(c == '\t' || c >= ' ' && c != 0x7f) })
	// targetByte is not 0 for the bytes of a request target: no controls, no space, no fragment.
	targetByte = table(func(c byte) byte { return when(c > ' ' && c != 0x7f && c != '#') })
	// hostByte is not 0 for the bytes of a registered name or an IPv4 address.
	hostByte = table(func(c byte) byte {
		if lowerToken[c] >= 'a' && lowerToken[c] <= 'z' || '0' <= c && c <= '9' {
			return 1
		}
		return listed(c, "-._~%!$&'()*+,;=")
	})
)

func table(of func(c byte) byte) (t [256]byte) {
	for c := range t {
		t[c] = of(byte(c))
	}
	return t
}

func listed(c byte, list string) byte {
	for i := range len(list) {
		if list[i] == c {
			return c
		}
	}
	return 0
}

func when(is bool) byte {
	if is {
		return 1
	}
	return 0
}

// all reports whether a table has every byte of b.
func all(b []byte, table *[256]byte) bool {
	for _, c := range b {
		if table[c] == 0 {
			return false
		}
	}
	return true
}

// isToken reports whether b is a token.
func isToken(b []byte) bool { return len(b) > 0 && all(b, &lowerToken) }

// equalFold compares b with a name in lower case, ignoring the case of b.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if lowerToken[c] != lower[i] {
			return false
		}
	}
	return true
}

// trim returns b without surrounding white space.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// cutLine returns the line that b starts with, and the bytes after its CRLF. lf is the index of the first LF. ok is false
// if the line does not end with CRLF.
func cutLine(b []byte, lf int) (line, rest []byte, ok bool) {
	if lf < 1 || b[lf-1] != '\r' {
		return nil, nil, false
	}
	return b[:lf-1], b[lf+1:], true
}

// ValidHost reports whether the host of a request that this package has not parsed is a host name or address, optionally with a port.
func ValidHost(host string) bool { return validHost([]byte(host)) }

// validHost reports whether b is a host name or address, optionally with a port.
func validHost(b []byte) bool {
	if len(b) > 0 && b[0] == '[' {
		for i, c := range b[1:] {
			if c == ']' {
				return i > 0 && validPort(b[i+2:])
			}
			if c != ':' && c != '.' && !isHex(c) {
				return false
			}
		}
		return false
	}
	for i, c := range b {
		if c == ':' {
			return i > 0 && validPort(b[i:])
		}
		if hostByte[c] == 0 {
			return false
		}
	}
	return len(b) > 0
}

// validPort reports whether b is empty or a colon and digits.
func validPort(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	for _, c := range b[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return b[0] == ':' && len(b) <= len(":65535")
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// parseLength parses a Content-Length: digits only.
func parseLength(b []byte) (length int64, ok bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		length = length*10 + int64(c-'0')
	}
	return length, true
}
