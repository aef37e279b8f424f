package flow

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// The default limit of connections per port is the limit of open files divided by fileShare, at most maxConnections.
const (
	fileShare      = 8
	maxConnections = 16 << 10
)

// MaxConnections returns the default limit of connections per port, except the ports of the gateway, which uses up to half of
// the files of the process: an eighth of the limit of open files, at most 16,384.
func MaxConnections() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return maxConnections
	}
	return int(min(limit.Cur/fileShare, maxConnections))
}

// LimitListener returns a listener that closes new connections while limit connections are open, or a quarter of limit from the
// same address, so that one client cannot use all of them.
func LimitListener(listener net.Listener, limit int) net.Listener {
	return &limitedListener{Listener: listener, limit: limit, limitOfOne: max(limit/4, 1), byClient: map[netip.Addr]int{}}
}

// limitedListener implements LimitListener.
type limitedListener struct {
	net.Listener
	limit, limitOfOne int

	// mu guards the numbers of open connections, in total and by client.
	mu       sync.Mutex
	open     int
	byClient map[netip.Addr]int
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := ClientOf(conn.RemoteAddr())
		if l.acquire(client) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(client) })}, nil
		}
		conn.Close()
	}
}

// acquire counts a connection of a client, unless a limit is reached.
func (l *limitedListener) acquire(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limit || l.byClient[client] >= l.limitOfOne {
		return false
	}
	l.open++
	l.byClient[client]++
	return true
}

// release ends a connection of a client.
func (l *limitedListener) release(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.byClient[client]--; l.byClient[client] == 0 {
		delete(l.byClient, client)
	}
}

// limitedConn is a connection of a limitedListener.
type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
