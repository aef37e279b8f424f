// Package linger keeps the place of a request at its backend after the gateway has abandoned the request, because its client
// disconnected or it timed out: until the backend has ended it, at most for Bound. So no backend has more requests at a time than
// containerConcurrency allows (serving 8-7).
package linger

import (
	"net"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// Bound is the maximum time that an abandoned request keeps its place.
	Bound = 10 * time.Second
	// size is the number of bytes that waiting for a backend takes from the memory budget.
	size = 16 << 10
	// maxDiscarded bounds the bytes of a response that are read after its request was abandoned.
	maxDiscarded = 4 << 20
)

// Place is the place of an abandoned request at its backend. The holder calls one of its methods, once. A nil Place is a place at a
// backend without a limit.
type Place struct {
	budget    *flow.Budget
	namespace string
	release   func()
}

// NewPlace returns a place at a backend of a namespace that ends with release.
func NewPlace(budget *flow.Budget, namespace string, release func()) *Place {
	return &Place{budget: budget, namespace: namespace, release: release}
}

// Release ends the place at once, because the backend has ended the request.
func (p *Place) Release() {
	if p != nil {
		p.release()
	}
}

// Expire ends the place after Bound, if nothing shows when the backend ends the request.
func (p *Place) Expire() {
	if p != nil {
		time.AfterFunc(Bound, p.release)
	}
}

// Await ends the place when the backend closes conn, which is the connection of the request alone, and closes it. The backend sees the
// end of the stream at once, and can cancel the request. Without memory to wait for the backend, and for a backend that sends too much,
// the connection is closed before, and the place ends after Bound.
func (p *Place) Await(conn net.Conn) {
	if p == nil {
		conn.Close()
		return
	}
	if half, ok := conn.(interface{ CloseWrite() error }); !ok || half.CloseWrite() != nil {
		// The backend has reset the connection.
		conn.Close()
		p.release()
		return
	}
	if !p.budget.Reserve(p.namespace, size) {
		conn.Close()
		p.Expire()
		return
	}
	go p.await(conn)
}

func (p *Place) await(conn net.Conn) {
	began := time.Now()
	ended := discard(conn, began.Add(Bound))
	conn.Close()
	p.budget.Release(p.namespace, size)
	if ended {
		p.release()
		return
	}
	time.AfterFunc(time.Until(began.Add(Bound)), p.release)
}

// discard reads until the backend closes the connection or the deadline passes. It returns false before that if the backend sends too
// much.
func discard(conn net.Conn, deadline time.Time) (ended bool) {
	if conn.SetReadDeadline(deadline) != nil {
		return true
	}
	buffer := make([]byte, 4<<10)
	for discarded := 0; discarded < maxDiscarded; {
		n, err := conn.Read(buffer)
		if err != nil {
			return true
		}
		discarded += n
	}
	return false
}
