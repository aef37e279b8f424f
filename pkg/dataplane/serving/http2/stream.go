package http2

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// ErrMalformed is wrapped by errors of messages that violate the protocol.
var ErrMalformed = errors.New("the message is not valid HTTP/2")

var (
	errCanceled = errors.New("the request was canceled")
	errEnded    = fmt.Errorf("%w: a frame after the end", ErrMalformed)
)

// owner is the part of a stream that differs between the two sides. The mu of the link is held in all calls.
type owner interface {
	// wasReset ends the stream, which the peer has reset.
	wasReset(code http2.ErrCode)
	// receives returns the error of a message of which these bytes of the body were received, and everything if it has ended.
	receives(bytes int, ended bool) error
	// failed is called once the stream has an error.
	failed()
}

// stream is what both sides of a request and its response have in common.
type stream struct {
	link  *link
	id    uint32
	owner owner
	// readable and writable, which a waiting reader or sender creates, have an element when something has changed for it.
	readable, writable chan struct{}

	// The mu of link guards the fields below.

	// body has the received bytes that were not read yet, trailer the fields after them.
	body    body
	trailer []hpack.HeaderField
	// unread are the bytes by which the window is smaller than at first: unread bytes, and read ones that the window was not extended by yet.
	unread int
	// received is true once the message of the peer has ended, sent once the own one has.
	received, sent bool
	// sendWindow is the number of bytes of the body that may be sent, blocked is true if the stream, which is in link.blocked, waits to send.
	sendWindow int64
	blocked    bool
	// err is why the stream ended early.
	err error
}

// add adds a stream to the connection. mu is held.
func (l *link) add(s *stream, id uint32, owner owner) {
	s.link, s.id, s.owner = l, id, owner
	s.sendWindow = int64(l.peerWindow)
	l.streams[id] = s
}

// signal notifies the receiver of a channel, if it has one, that something has changed.
func signal(changed chan struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// watched returns a channel for signal, which it creates at the first call. link.mu is held.
func watched(changed *chan struct{}) chan struct{} {
	if *changed == nil {
		*changed = make(chan struct{}, 1)
	}
	return *changed
}

// fail ends the stream with an error. link.mu is held.
func (s *stream) fail(err error) {
	if s.err == nil && !(s.received && s.sent) {
		s.err = err
		signal(s.readable)
		signal(s.writable)
		s.blocked = false
		s.link.unblock()
		s.owner.failed()
	}
}

// receiveData handles a part of the body, with length bytes of the window.
func (s *stream) receiveData(data []byte, length int, ended bool) error {
	s.unread += length
	switch {
	case s.received:
		s.link.extend(length)
		return errEnded
	case s.unread > s.link.streamWindow:
		s.link.extend(length)
		return errWindow
	}
	err := s.owner.receives(len(data), ended)
	if err == nil && len(data) > 0 && s.link.memory != nil && !s.link.memory.Reserve(int64(len(data))) {
		err = errMemory
	}
	if err != nil {
		s.link.extend(length)
		return err
	}
	// Padding is never read.
	s.link.extend(length - len(data))
	s.unread -= s.grant(length - len(data))
	s.body.append(data)
	if ended {
		s.endReceived()
	}
	signal(s.readable)
	return nil
}

// grant extends the window of the stream by read bytes, and returns them.
func (s *stream) grant(bytes int) int {
	if bytes > 0 && !s.received && s.err == nil && s.link.err == nil {
		s.link.write(s.link.writer.WriteWindowUpdate(s.id, uint32(bytes)))
	}
	return bytes
}

// endReceived notes the end of the peer's message.
func (s *stream) endReceived() {
	s.received = true
	signal(s.readable)
	if s.sent {
		s.link.end(s)
	}
}

// endSent notes the end of the own message.
func (s *stream) endSent() {
	s.sent = true
	if s.received {
		s.link.end(s)
	}
}

// read reads received bytes, without waiting. link.mu is held.
func (s *stream) read(p []byte) int {
	n := s.body.read(p)
	s.link.release(n)
	s.consumed(n)
	return n
}

// consumed extends the windows by read bytes. link.mu is held.
func (s *stream) consumed(bytes int) {
	s.link.extend(bytes)
	if read := s.unread - s.body.size; read >= creditSize {
		s.unread -= s.grant(read)
	}
}

// discard discards the bytes that were received. link.mu is held.
func (s *stream) discard() {
	if n := s.body.discard(); n > 0 {
		s.link.release(n)
		s.link.extend(n)
	}
}

// appendData collects as many bytes as the peer takes now, and returns where their frame begins. If it takes none, writable is signaled when it
// does. link.mu is held.
func (s *stream) appendData(p []byte) (n, start int, err error) {
	l := s.link
	n = int(min(int64(len(p)), s.sendWindow, l.window, maxFrame, int64(l.room())))
	if n <= 0 {
		s.block()
		return 0, 0, nil
	}
	s.blocked = false
	s.sendWindow -= int64(n)
	l.window -= int64(n)
	start = l.waiting()
	return n, start, l.writer.WriteData(s.id, false, p[:n])
}

// block makes the stream wait until more may be sent. link.mu is held.
func (s *stream) block() {
	watched(&s.writable)
	if !s.blocked {
		s.blocked = true
		s.link.blocked = append(s.link.blocked, s)
	}
}
