package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// The sizes of headers of the PROXY protocol, in bytes.
const (
	// proxySignature is less than any header and covers the signatures of both versions.
	proxySignature = 12
	// proxyV1Max is the maximum of version 1. Version 2 has a fixed part, followed by at most proxyV2Max of addresses and extensions.
	proxyV1Max, proxyV2Fixed, proxyV2Max = 107, 16, 4096
)

// errProxyHeader is the error of bytes that are not a header of the PROXY protocol.
var errProxyHeader = errors.New("not a header of the PROXY protocol")

// unknownClient is the address of a client that a proxy does not report.
type unknownClient struct{}

// Network implements net.Addr.
func (unknownClient) Network() string { return "tcp" }

// String implements net.Addr.
func (unknownClient) String() string { return "unknown" }

// identifyClient reads the header of the PROXY protocol if the peer of a new connection is a trusted proxy, and reports whether the
// connection may be served. All other peers connect without a header. It does not read beyond the header.
func (s *listening) identifyClient(ctx context.Context, c *clientConn, within time.Duration) bool {
	peer, ok := c.Conn.RemoteAddr().(*net.TCPAddr)
	if !ok || !s.trusts(peer.AddrPort().Addr().Unmap()) {
		return true
	}
	if c.SetReadDeadline(time.Now().Add(within)) != nil {
		return false
	}
	stop := context.AfterFunc(ctx, func() {
		c.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // fails on closed connections only, as does the read
	})
	client, err := readProxyHeader(c.Conn)
	if stopped := stop(); err != nil || !stopped {
		return false
	}
	if client != nil {
		c.client = client
	}
	return c.SetReadDeadline(time.Time{}) == nil
}

// readProxyHeader reads a header of the PROXY protocol and nothing after it. It returns the address of the client, or nil if the peer
// itself is the client.
func readProxyHeader(r io.Reader) (net.Addr, error) {
	b := make([]byte, proxySignature, proxyV1Max)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read PROXY header: %w", err)
	}
	var err error
	switch {
	case bytes.Equal(b, proxyproto.SIGV2):
		b, err = readProxyV2(r, b)
	case bytes.HasPrefix(b, proxyproto.SIGV1) && bytes.IndexByte(b, '\n') < 0:
		b, err = readProxyV1(r, b)
	default:
		err = errProxyHeader
	}
	if err != nil {
		return nil, err
	}
	header, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(b), len(b)))
	if err != nil {
		return nil, fmt.Errorf("parse PROXY header: %w", err)
	}
	if header.Version == 2 && header.Command.IsLocal() {
		// For example, a health check.
		return nil, nil
	}
	if source, _, ok := header.TCPAddrs(); ok && !header.Command.IsLocal() {
		if _, ok := netip.AddrFromSlice(source.IP); ok {
			return source, nil
		}
	}
	return unknownClient{}, nil
}

// readProxyV1 appends the rest of a header of version 1, which is a line. The length of the line is known only at its end, so bytes are
// read one by one.
func readProxyV1(r io.Reader, b []byte) ([]byte, error) {
	for len(b) < proxyV1Max {
		n := len(b)
		if _, err := io.ReadFull(r, b[n:n+1]); err != nil {
			return nil, fmt.Errorf("read PROXY header: %w", err)
		}
		if b = b[:n+1]; b[n] == '\n' {
			return b, nil
		}
	}
	return nil, errProxyHeader
}

// readProxyV2 appends the rest of a header of version 2.
func readProxyV2(r io.Reader, b []byte) ([]byte, error) {
	if _, err := io.ReadFull(r, b[len(b):proxyV2Fixed]); err != nil {
		return nil, fmt.Errorf("read PROXY header: %w", err)
	}
	b = b[:proxyV2Fixed]
	length := int(binary.BigEndian.Uint16(b[proxyV2Fixed-2:]))
	if length > proxyV2Max {
		return nil, errProxyHeader
	}
	all := append(make([]byte, 0, proxyV2Fixed+length), b...)[:proxyV2Fixed+length]
	if _, err := io.ReadFull(r, all[proxyV2Fixed:]); err != nil {
		return nil, fmt.Errorf("read PROXY header: %w", err)
	}
	return all, nil
}
