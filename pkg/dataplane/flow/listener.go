package flow

import (
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// fileShare is the part of the files of the process that one port may take for connections, and maxConnections its most.
const (
	fileShare      = 8
	maxConnections = 16 << 10
)

// MaxConnections returns the default limit of the connections of a port besides those of the gateway, which takes up to
// half of the files of the process: an eighth of them, at most 16,384.
func MaxConnections() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return maxConnections
	}
	return int(min(limit.Cur/fileShare, maxConnections))
}

// LimitListener returns a listener that closes new connections while as many as limit are open, or a quarter of that by
// the same address, so that one client leaves places for others.
func LimitListener(listener net.Listener, limit int) net.Listener {
	return &limitedListener{Listener: listener, limit: limit, limitOfOne: max(limit/4, 1), byClient: map[string]int{}}
}

type limitedListener struct {
	net.Listener
	limit, limitOfOne int

	// mu guards the number of open connections, and that of each client.
	mu       sync.Mutex
	open     int
	byClient map[string]int
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := conn.RemoteAddr().String()
		if host, _, err := net.SplitHostPort(client); err == nil {
			client = host
		}
		if l.take(client) {
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(client) })}, nil
		}
		conn.Close()
	}
}

func (l *limitedListener) take(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.limit || l.byClient[client] >= l.limitOfOne {
		return false
	}
	l.open++
	l.byClient[client]++
	return true
}

func (l *limitedListener) release(client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.byClient[client]--; l.byClient[client] == 0 {
		delete(l.byClient, client)
	}
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
