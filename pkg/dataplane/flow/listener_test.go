package flow

import (
	"net"
	"testing"
)

// fakeConn is a connection of a client.
type fakeConn struct {
	net.Conn
	client string
	closed *[]string
}

func (c fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.client), Port: 1} }

func (c fakeConn) Close() error {
	*c.closed = append(*c.closed, c.client)
	return nil
}

// accepting accepts connections of clients.
type accepting struct {
	net.Listener
	clients <-chan string
	closed  *[]string
}

func (a accepting) Accept() (net.Conn, error) {
	client, ok := <-a.clients
	if !ok {
		return nil, net.ErrClosed
	}
	return fakeConn{client: client, closed: a.closed}, nil
}

// TestLimitListener checks the limits of one client and of all clients.
func TestLimitListener(t *testing.T) {
	var closed []string
	clients := make(chan string, 100)
	l := LimitListener(accepting{clients: clients, closed: &closed}, 8)
	accept := func(client string) net.Conn {
		t.Helper()
		clients <- client
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var greedy []net.Conn
	for range 2 {
		greedy = append(greedy, accept("10.0.0.1"))
	}
	clients <- "10.0.0.1"
	if conn := accept("10.0.0.2"); conn.RemoteAddr().String() != "10.0.0.2:1" || len(closed) != 1 || closed[0] != "10.0.0.1" {
		t.Errorf("beyond a quarter by one client, a connection of %v is accepted, and %v are closed", conn.RemoteAddr(), closed)
	}
	for _, conn := range greedy {
		conn.Close()
		conn.Close()
	}
	var all []net.Conn
	for _, client := range []string{"10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.3", "10.0.0.4", "10.0.0.4"} {
		all = append(all, accept(client))
	}
	closed = nil
	clients <- "10.0.0.5"
	close(clients)
	if _, err := l.Accept(); err == nil || len(closed) != 1 {
		t.Errorf("beyond the limit, a connection is accepted; %v are closed", closed)
	}
	for _, conn := range all {
		conn.Close()
	}
	if limited := l.(*limitedListener); limited.open != 1 || len(limited.byClient) != 1 {
		t.Errorf("%d connections of %v are open, want one", limited.open, limited.byClient)
	}
	if n := MaxConnections(); n < 1 || n > maxConnections {
		t.Errorf("the default is %d", n)
	}
}
