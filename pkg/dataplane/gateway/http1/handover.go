package http1

import (
	"net"
	"time"
)

// handedOver is a connection with the bytes that were read from it before.
type handedOver struct {
	net.Conn
	read []byte
}

// Read returns the bytes read before, then those that come.
func (c *handedOver) Read(b []byte) (int, error) {
	if len(c.read) == 0 || len(b) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.read)
	if c.read = c.read[n:]; len(c.read) == 0 {
		c.read = nil
	}
	return n, nil
}

// CloseWrite ends what is written to the connection: net/http does so to have its last answer read.
func (c *handedOver) CloseWrite() error {
	if conn, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return nil
}

// handOver gives a connection to the standard path, with the bytes read from it so far.
func (s *Server) handOver(conn net.Conn, read []byte) {
	if err := conn.SetDeadline(time.Time{}); err != nil {
		conn.Close()
		return
	}
	s.Standard(&handedOver{Conn: conn, read: read})
}
