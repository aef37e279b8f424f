package http2

import "sync"

// body is a queue of bytes, in parts of at most maxFrame bytes.
type body struct {
	// parts from head on have bytes, the first of them without the first begun ones. size is the number of all bytes.
	parts             []*[]byte
	head, begun, size int
}

// parts are empty parts of former bodies.
var parts = sync.Pool{New: func() any { return new([]byte) }}

// keepPart keeps a part for another body.
func keepPart(part *[]byte) {
	*part = (*part)[:0]
	parts.Put(part)
}

// append appends at most maxFrame bytes.
func (b *body) append(data []byte) {
	if len(data) == 0 {
		return
	}
	b.size += len(data)
	if n := len(b.parts); n == 0 || len(*b.parts[n-1])+len(data) > maxFrame {
		if b.head > n/2 {
			b.parts, b.head = b.parts[:copy(b.parts, b.parts[b.head:])], 0
		}
		b.parts = append(b.parts, parts.Get().(*[]byte))
	}
	last := b.parts[len(b.parts)-1]
	*last = append(*last, data...)
}

// read reads bytes.
func (b *body) read(p []byte) (n int) {
	for n < len(p) && b.size > 0 {
		part := *b.parts[b.head]
		read := copy(p[n:], part[b.begun:])
		n += read
		b.begun += read
		b.size -= read
		if b.begun == len(part) {
			keepPart(b.next())
		}
	}
	return n
}

// next returns the first part, which the caller must keep, or nil without bytes. It may not follow a read of a part of it.
func (b *body) next() *[]byte {
	if len(b.parts) == 0 {
		return nil
	}
	part := b.parts[b.head]
	b.parts[b.head] = nil
	b.size -= len(*part) - b.begun
	b.begun = 0
	if b.head++; b.head == len(b.parts) {
		b.parts, b.head = b.parts[:0], 0
	}
	return part
}

// discard discards all bytes, and returns their number.
func (b *body) discard() int {
	n := b.size
	for part := b.next(); part != nil; part = b.next() {
		keepPart(part)
	}
	return n
}
