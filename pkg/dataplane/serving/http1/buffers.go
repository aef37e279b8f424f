package http1

import "sync"

const (
	// inSize, outSize and respSize are the initial sizes of buffers, in bytes.
	inSize, outSize, respSize = 4 << 10, 4 << 10, 8 << 10
	// addedSize is the estimated size of the header fields that the gateway adds to a request, in bytes.
	addedSize = 512
	// maxKept bounds the grown buffers that are kept for reuse, in bytes.
	maxKept = 32 << 10
	// maxBody bounds the requests with a body that are buffered completely, in bytes.
	maxBody = 32 << 10
	// watchRoom is the least number of bytes that a client can send while its request is served before the watch of its
	// connection ends.
	watchRoom = 64
	// streamSize is the size of buffers for longer bodies, in bytes.
	streamSize = 32 << 10
)

// input buffers the bytes that a client sent. Connections that wait for a request have none.
type input struct {
	// buf[start:end] is unread input.
	buf        []byte
	start, end int
	req        request
}

// output has the buffers for sending a request and its response. Requests that wait for a backend have none.
type output struct {
	// out is written first to the backend, then to the client.
	out []byte
	// resp is the buffer for bytes from the backend.
	resp []byte
	res  response
	body chunks
}

var (
	inputPool  = sync.Pool{New: func() any { return &input{buf: make([]byte, inSize)} }}
	outputPool = sync.Pool{New: func() any {
		return &output{out: make([]byte, 0, outSize), resp: make([]byte, respSize)}
	}}
	streamPool = sync.Pool{New: func() any { return new([streamSize]byte) }}
)

// unread returns the unread input.
func (in *input) unread() []byte { return in.buf[in.start:in.end] }

// skip marks the first n unread bytes as read.
func (in *input) skip(n int) {
	if in.start += n; in.start == in.end {
		in.start, in.end = 0, 0
	}
}

// room returns the free space for reads. The last few bytes are reserved for the watch of the client.
func (in *input) room() []byte {
	limit := len(in.buf) - watchRoom
	return in.buf[min(in.end, limit):limit]
}

// makeRoom makes room to read more. Unread input may move.
func (in *input) makeRoom() {
	if len(in.room()) == 0 {
		in.grow(in.end - in.start + 1)
	}
}

// sizeFor returns the size of buf after grow.
func (in *input) sizeFor(size int) int {
	if size <= len(in.buf)-watchRoom {
		return len(in.buf)
	}
	return max(size+watchRoom, 2*len(in.buf))
}

// sizeWithRoom returns the size of buf after makeRoom.
func (in *input) sizeWithRoom() int {
	if len(in.room()) > 0 {
		return len(in.buf)
	}
	return in.sizeFor(in.end - in.start + 1)
}

// extra returns the memory that a request of size bytes needs beyond buffers of the initial sizes: for itself, and for
// its forwarded form with added fields.
func (in *input) extra(size int) int {
	return len(in.buf) - inSize + max(size+addedSize-outSize, 0)
}

// grow makes room for size bytes from start on. Unread input may move.
func (in *input) grow(size int) {
	if in.start+size <= len(in.buf)-watchRoom {
		return
	}
	unread := in.unread()
	if grown := in.sizeFor(size); grown > len(in.buf) {
		in.buf = make([]byte, grown)
	}
	in.start, in.end = 0, copy(in.buf, unread)
}

// release returns in to its pool, without grown buffers.
func (in *input) release() {
	in.start, in.end = 0, 0
	if len(in.buf) > inSize {
		in.buf = make([]byte, inSize)
	}
	if cap(in.req.Fields) > maxFields/10 {
		in.req.Fields = nil
	}
	inputPool.Put(in)
}

// release returns o to its pool, without grown buffers.
func (o *output) release() {
	if cap(o.out) > maxKept {
		o.out = make([]byte, 0, outSize)
	}
	if len(o.resp) > maxKept {
		o.resp = make([]byte, respSize)
	}
	if cap(o.res.fields) > maxFields/10 {
		o.res.fields = nil
	}
	outputPool.Put(o)
}
