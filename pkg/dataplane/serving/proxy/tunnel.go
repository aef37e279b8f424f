package proxy

import (
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// The close frames (RFC 6455 5.5.1) that end a WebSocket without traffic, with the status code 1001, to the client and to the
// backend, which needs a mask.
const (
	closeClient  = "\x88\x02\x03\xe9"
	closeBackend = "\x88\x82\x00\x00\x00\x00\x03\xe9"
)

// meteredTunnel is the connection to the backend after an upgrade.
type meteredTunnel struct {
	io.ReadWriteCloser
	request   *Request
	webSocket bool
	// silent is true once the tunnel ends because of silence; closed, which only Read uses, once the client got its close frame.
	silent atomic.Bool
	closed bool
	// received parses the bytes from the backend. Only Read uses it.
	received frames

	// mu guards writes to the backend and sent, which parses the written bytes.
	mu   sync.Mutex
	sent frames
}

func newMeteredTunnel(f *Request, tunnel io.ReadWriteCloser, protocol string) *meteredTunnel {
	return &meteredTunnel{ReadWriteCloser: tunnel, request: f, webSocket: strings.EqualFold(protocol, "websocket")}
}

// Read reads from the backend. A WebSocket that ends because of silence ends with a close frame, unless it would become a part of another frame.
func (t *meteredTunnel) Read(p []byte) (int, error) {
	n, err := t.ReadWriteCloser.Read(p)
	if errors.Is(err, io.EOF) {
		t.request.finished.Store(true)
	}
	t.request.received.Add(int64(n))
	if n == 0 && err != nil && t.silent.Load() {
		if t.webSocket && !t.closed && t.received.between() {
			t.closed = true
			return copy(p, closeClient), nil
		}
		return 0, serving.ErrTimeout
	}
	t.request.touch()
	if t.webSocket {
		t.received.feed(p[:n])
	}
	return n, err
}

// Write writes to the backend.
func (t *meteredTunnel) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.ReadWriteCloser.Write(p)
	t.request.sent.Add(int64(n))
	t.request.touch()
	if t.webSocket {
		t.sent.feed(p[:n])
	}
	return n, err
}

// CloseWrite ends the stream to the backend, if that is possible.
func (t *meteredTunnel) CloseWrite() error {
	if half, ok := t.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// end ends a tunnel because of silence: the backend gets a close frame, and Read sends one to the client.
func (t *meteredTunnel) end() {
	t.silent.Store(true)
	// If the backend reads nothing, the write fails when the connection is closed.
	timer := time.AfterFunc(unblockAfter, func() { t.Close() })
	defer timer.Stop()
	if t.webSocket && t.mu.TryLock() {
		if t.sent.between() {
			io.WriteString(t.ReadWriteCloser, closeBackend) //nolint:errcheck // it ends anyway
		}
		t.mu.Unlock()
	}
	t.Close()
}

// frames parses the frames of a WebSocket in one direction (RFC 6455 5.2).
type frames struct {
	// have is the number of read bytes of a frame's header, need its size, extended the size of the long form of its length.
	have, need, extended int
	// length is the length of the payload as far as it was parsed, left the number of unread bytes of the payload.
	length, left uint64
}

// between reports whether no frame is incomplete.
func (f *frames) between() bool { return f.have == 0 && f.left == 0 }

// feed parses the next bytes.
func (f *frames) feed(b []byte) {
	for len(b) > 0 {
		if n := min(f.left, uint64(len(b))); n > 0 {
			f.left -= n
			b = b[n:]
			continue
		}
		f.header(b[0])
		b = b[1:]
	}
}

// header parses the next byte of a header.
func (f *frames) header(c byte) {
	f.have++
	switch {
	case f.have == 1:
		return
	case f.have == 2:
		f.length, f.extended = uint64(c&0x7f), 0
		switch f.length {
		case 126:
			f.length, f.extended = 0, 2
		case 127:
			f.length, f.extended = 0, 8
		}
		f.need = 2 + f.extended
		if c&0x80 != 0 {
			f.need += 4
		}
	case f.have <= 2+f.extended:
		f.length = f.length<<8 | uint64(c)
	}
	if f.have == f.need {
		f.left, f.have = f.length, 0
	}
}
