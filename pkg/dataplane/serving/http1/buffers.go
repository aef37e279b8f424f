package http1

import "sync"

const (
	// inSize, outSize and respSize are the sizes of buffers to begin with, in bytes.
	inSize, outSize, respSize = 4 << 10, 4 << 10, 8 << 10
	// addedSize is what the gateway adds to a request, in bytes.
	addedSize = 512
	// maxKept is up to where a buffer that grew is kept.
	maxKept = 32 << 10
	// maxBody bounds the requests with a body that are held as a whole.
	maxBody = 32 << 10
	// watchRoom is what a client can send at least while its request is worked on, before it is no longer watched.
	watchRoom = 64
	// streamSize is the size of buffers for longer bodies.
	streamSize = 32 << 10
)

// input is what a client sent. Connections that wait for a request have none.
type input struct {
	// buf is what was read; start to end is not dealt with yet.
	buf        []byte
	start, end int
	req        request
}

// output is what is sent for a request, and what came back. Requests that wait for an instance have none.
type output struct {
	// out is what is to be written, to the instance first, to the client then.
	out []byte
	// resp is what was read from the instance.
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

// unread is what is not dealt with yet.
func (in *input) unread() []byte { return in.buf[in.start:in.end] }

// skip takes the first n bytes as dealt with.
func (in *input) skip(n int) {
	if in.start += n; in.start == in.end {
		in.start, in.end = 0, 0
	}
}

// room is where to read to. The last few bytes are left for the watch of the client.
func (in *input) room() []byte {
	limit := len(in.buf) - watchRoom
	return in.buf[min(in.end, limit):limit]
}

// makeRoom makes room to read more. What is unread may move.
func (in *input) makeRoom() {
	if len(in.room()) == 0 {
		in.hold(in.end - in.start + 1)
	}
}

// sizeFor returns the size of buf after hold.
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

// beyond returns how much memory a request of size bytes takes beyond buffers of the usual sizes: for itself, and as it
// is sent on, with some more fields.
func (in *input) beyond(size int) int {
	return len(in.buf) - inSize + max(size+addedSize-outSize, 0)
}

// hold makes room for size bytes from start on. What is unread may move.
func (in *input) hold(size int) {
	if in.start+size <= len(in.buf)-watchRoom {
		return
	}
	unread := in.unread()
	if grown := in.sizeFor(size); grown > len(in.buf) {
		in.buf = make([]byte, grown)
	}
	in.start, in.end = 0, copy(in.buf, unread)
}

// release gives in back, without what has grown.
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

// release gives o back, without what has grown.
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
