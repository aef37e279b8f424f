package http1

import (
	"errors"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// maxChunkLine bounds each chunk size line and each trailer field line, maxTrailers all trailer lines together, in bytes.
const (
	maxChunkLine = 4 << 10
	maxTrailers  = 64 << 10
)

var errChunk = errors.New("malformed chunk")

// chunks parses the framing of a chunked body (RFC 9112 7.1), which is forwarded unchanged, and finds its end.
type chunks struct {
	state chunkState
	// remaining is the number of unread data bytes of the current chunk, digits the number of digits of its size so far.
	remaining int64
	digits    int
	// line is the length of the current line, trailers the length of all trailer lines.
	line, trailers int
	// name is the part of a trailer field's name that was parsed so far, in lower case.
	name []byte
	// data counts the bytes of the body without framing.
	data int64
}

type chunkState int

const (
	chunkSize chunkState = iota
	chunkExtension
	chunkSizeLF
	chunkData
	chunkCR
	chunkLF
	trailerStart
	trailerName
	trailerValue
	trailerLF
	lastLF
	chunksDone
)

// feed parses the next bytes and returns how many of them belong to the body, and whether the body ends there.
func (c *chunks) feed(b []byte) (n int, done bool, err error) {
	for n < len(b) {
		if c.state == chunkData {
			size := int(min(c.remaining, int64(len(b)-n)))
			n += size
			c.remaining -= int64(size)
			c.data += int64(size)
			if c.remaining == 0 {
				c.state = chunkCR
			}
			continue
		}
		if !c.step(b[n]) {
			return n, false, errChunk
		}
		n++
		if c.state == chunksDone {
			return n, true, nil
		}
	}
	return n, false, nil
}

// step parses a byte of framing and reports whether it is valid there.
func (c *chunks) step(b byte) bool {
	if c.line++; c.line > maxChunkLine {
		return false
	}
	switch c.state {
	case chunkSize:
		return c.sizeByte(b)
	case chunkExtension:
		if b == '\r' {
			c.state = chunkSizeLF
			return true
		}
		return fieldByte[b] != 0
	case chunkSizeLF:
		if c.state, c.line, c.digits = chunkData, 0, 0; c.remaining == 0 {
			c.state = trailerStart
		}
		return b == '\n'
	case chunkCR:
		c.state = chunkLF
		return b == '\r'
	case chunkLF:
		c.state, c.line = chunkSize, 0
		return b == '\n'
	case lastLF:
		c.state = chunksDone
		return b == '\n'
	}
	return c.trailerByte(b)
}

func (c *chunks) sizeByte(b byte) bool {
	switch {
	case isHex(b):
		c.digits++
		c.remaining = c.remaining<<4 | int64(unhex(b))
		return c.digits <= 15
	case c.digits == 0:
		return false
	case b == '\r':
		c.state = chunkSizeLF
	case b == ';':
		c.state = chunkExtension
	default:
		return false
	}
	return true
}

func (c *chunks) trailerByte(b byte) bool {
	if c.trailers++; c.trailers > maxTrailers {
		return false
	}
	switch c.state {
	case trailerStart:
		if b == '\r' {
			c.state = lastLF
			return true
		}
		c.state, c.name = trailerName, append(c.name[:0], lowerToken[b])
		return lowerToken[b] != 0
	case trailerName:
		if b == ':' {
			c.state = trailerValue
			return !framingField(c.name) && !serving.IsUserField(c.name)
		}
		c.name = append(c.name, lowerToken[b])
		return lowerToken[b] != 0
	case trailerValue:
		if b == '\r' {
			c.state = trailerLF
			return true
		}
		return fieldByte[b] != 0
	case trailerLF:
		c.state, c.line = trailerStart, 0
		return b == '\n'
	}
	return false
}

// framingField reports whether a field, given by its name in lower case, may not be a trailer because it determines the
// framing or routing of messages (RFC 9110 6.5.1).
func framingField(name []byte) bool {
	switch string(name) {
	case "connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade":
		return true
	}
	return false
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}

// The last chunk of a body, and the maximum length of a chunk size line for a read of 32 KiB.
const (
	lastChunk     = "0\r\n\r\n"
	chunkHeadRoom = len("8000\r\n")
)

// frame adds the framing of a chunk to the data at b[chunkHeadRoom:chunkHeadRoom+n], n > 0, in place, and returns the
// chunk. b has at least two bytes after the data.
func frame(b []byte, n int) []byte {
	const digits = "0123456789abcdef"
	end := chunkHeadRoom + n
	b[end], b[end+1] = '\r', '\n'
	start := chunkHeadRoom - 2
	b[start], b[start+1] = '\r', '\n'
	for ; n > 0; n >>= 4 {
		start--
		b[start] = digits[n&15]
	}
	return b[start : end+2]
}
