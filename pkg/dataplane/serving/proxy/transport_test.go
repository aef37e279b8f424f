package proxy

import (
	"errors"
	"io"
	"net"
	"testing"
)

// TestEndedConnection checks that nothing is written to a connection that the instance has closed, when a request
// begins on it.
func TestEndedConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	conn, err := dial(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	counted := conn.(*countedConn)
	counted.doubted.Store(true)
	if n, err := conn.Write([]byte("one")); n != 3 || err != nil {
		t.Fatalf("writing to an open connection: %d, %v", n, err)
	}
	if _, err := io.ReadFull(peer, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	// The end has arrived when it can be read.
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection has not ended")
	}
	counted.doubted.Store(true)
	if n, err := conn.Write([]byte("two")); n != 0 || !errors.Is(err, net.ErrClosed) || counted.written.Load() != 3 {
		t.Errorf("writing to an ended connection: %d, %v, and %d bytes in all, want none more", n, err, counted.written.Load())
	}
}
