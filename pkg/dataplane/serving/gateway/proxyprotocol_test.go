package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/pires/go-proxyproto"
)

// proxyV2 returns a header of version 2 with a length that may be invalid.
func proxyV2(command, family byte, length int, body string) string {
	return string(proxyproto.SIGV2) + string([]byte{command, family, byte(length >> 8), byte(length)}) + body
}

const (
	fromV4 = "\xc0\x00\x02\x01\x0a\x00\x00\x01\x00\x50\x01\xbb"
	toV6   = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02"
	fromV6 = "\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" + toV6 + "\x00\x50\x01\xbb"
)

// TestReadProxyHeader covers the client of a header, in one piece and byte by byte, and that nothing after the header is read.
func TestReadProxyHeader(t *testing.T) {
	longV1 := "PROXY UNKNOWN " + strings.Repeat("x", proxyV1Max-16)
	for name, test := range map[string]struct {
		header string
		// want is the client; empty if the peer is the client, "-" if the header is invalid.
		want string
	}{
		"version 1, IPv4":             {"PROXY TCP4 192.0.2.1 10.0.0.1 80 443\r\n", "192.0.2.1:80"},
		"version 1, IPv6":             {"PROXY TCP6 2001:db8::1 2001:db8::2 80 443\r\n", "[2001:db8::1]:80"},
		"version 1, unknown":          {"PROXY UNKNOWN\r\n", "unknown"},
		"version 1, longest":          {longV1 + "\r\n", "unknown"},
		"version 1, too long":         {longV1 + "x\r\n", "-"},
		"version 1, without end":      {strings.Repeat("PROXY TCP4 ", 20), "-"},
		"version 1, only LF":          {"PROXY TCP4 192.0.2.1 10.0.0.1 80 443\n", "-"},
		"version 1, wrong family":     {"PROXY TCP4 2001:db8::1 2001:db8::2 80 443\r\n", "-"},
		"version 1, zone":             {"PROXY TCP6 fe80::1%eth0 2001:db8::2 80 443\r\n", "-"},
		"version 1, port":             {"PROXY TCP4 192.0.2.1 10.0.0.1 80 65536\r\n", "-"},
		"version 1, other name":       {"PROXYING TCP4 192.0.2.1 10.0.0.1 80 443\r\n", "-"},
		"version 1, short line":       {"PROXY TCP4\r\nGET / HTTP/1.1\r\n", "-"},
		"version 2, IPv4":             {proxyV2(0x21, 0x11, 12, fromV4), "192.0.2.1:80"},
		"version 2, IPv6":             {proxyV2(0x21, 0x21, 36, fromV6), "[2001:db8::1]:80"},
		"version 2, extensions":       {proxyV2(0x21, 0x11, 17, fromV4+"\x04\x00\x02ab"), "192.0.2.1:80"},
		"version 2, longest":          {proxyV2(0x20, 0x00, proxyV2Max, strings.Repeat("x", proxyV2Max)), ""},
		"version 2, too long":         {proxyV2(0x20, 0x00, proxyV2Max+1, strings.Repeat("x", proxyV2Max+1)), "-"},
		"version 2, local":            {proxyV2(0x20, 0x00, 0, ""), ""},
		"version 2, local, addresses": {proxyV2(0x20, 0x11, 12, fromV4), ""},
		"version 2, UDP":              {proxyV2(0x21, 0x12, 12, fromV4), "unknown"},
		"version 2, Unix":             {proxyV2(0x21, 0x31, 216, strings.Repeat("\x00", 216)), "unknown"},
		"version 2, family unknown":   {proxyV2(0x21, 0x00, 0, ""), "-"},
		"version 2, protocol unknown": {proxyV2(0x21, 0x13, 12, fromV4), "-"},
		"version 2, command unknown":  {proxyV2(0x22, 0x11, 12, fromV4), "-"},
		"version 2, too short":        {proxyV2(0x21, 0x11, 11, fromV4), "-"},
		"version 3":                   {proxyV2(0x31, 0x11, 12, fromV4), "-"},
		"none, HTTP":                  {"GET / HTTP/1.1\r\nHost: app\r\n\r\n", "-"},
		"none, HTTP/2":                {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "-"},
		"none, TLS":                   {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 500), "-"},
		"zeros":                       {strings.Repeat("\x00", 5000), "-"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, slow := range []bool{false, true} {
				const after = "GET / HTTP/1.1\r\n"
				all := strings.NewReader(test.header + after)
				var reader io.Reader = all
				if slow {
					reader = iotest.OneByteReader(all)
				}
				client, err := readProxyHeader(reader)
				if test.want == "-" {
					if err == nil {
						t.Errorf("client %v, want an error", client)
					}
					if read := int(all.Size()) - all.Len(); read > max(proxyV1Max, proxyV2Fixed) {
						t.Errorf("read %d bytes", read)
					}
					continue
				}
				got := ""
				if client != nil {
					got = client.String()
				}
				rest, reading := io.ReadAll(reader)
				if err != nil || reading != nil || got != test.want || string(rest) != after {
					t.Errorf("client %q, rest %q, %v, %v", got, rest, err, reading)
				}
				for n := range len(test.header) {
					if client, err := readProxyHeader(strings.NewReader(test.header[:n])); err == nil {
						t.Fatalf("the first %d bytes name the client %v", n, client)
					}
				}
			}
		})
	}
}

// FuzzReadProxyHeader expects that a header names a valid client or none, is bounded, and is independent of how it arrives.
func FuzzReadProxyHeader(f *testing.F) {
	for _, seed := range []string{
		"PROXY TCP4 192.0.2.1 10.0.0.1 80 443\r\nGET", "PROXY TCP6 2001:db8::1 2001:db8::2 80 443\r\n", "PROXY UNKNOWN\r\n",
		proxyV2(0x21, 0x11, 12, fromV4), proxyV2(0x21, 0x21, 36, fromV6), proxyV2(0x20, 0x00, 3, "abcd"), proxyV2(0x21, 0x31, 216, strings.Repeat("a", 216)),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		whole := bytes.NewReader(b)
		client, err := readProxyHeader(whole)
		if read := len(b) - whole.Len(); read > proxyV2Fixed+proxyV2Max {
			t.Fatalf("read %d bytes", read)
		}
		split := bytes.NewReader(b)
		repeated, errSplit := readProxyHeader(iotest.OneByteReader(split))
		if fmt.Sprint(client) != fmt.Sprint(repeated) || (err == nil) != (errSplit == nil) || split.Len() != whole.Len() {
			t.Fatalf("%v, %v at once; %v, %v byte by byte", client, err, repeated, errSplit)
		}
		if err != nil || client == nil || client == (unknownClient{}) {
			return
		}
		if _, err := netip.ParseAddrPort(client.String()); err != nil {
			t.Fatal(err)
		}
	})
}

// tcpPipe is a connection in memory with the addresses of TCP.
type tcpPipe struct{ net.Conn }

// RemoteAddr implements net.Conn.
func (tcpPipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }

// TestSlowProxyHeader expects that a header has the time of a request's head in total, and that a stopping server does not wait for it.
func TestSlowProxyHeader(t *testing.T) {
	const header = "PROXY TCP4 192.0.2.1 10.0.0.1 80 443\r\n"
	for name, test := range map[string]struct {
		// pause is the time between two bytes, stop when the server stops.
		pause, stop, took time.Duration
		want              bool
	}{
		"in time":    {100 * time.Millisecond, time.Hour, time.Duration(len(header)) * 100 * time.Millisecond, true},
		"too slow":   {time.Second, time.Hour, headerTimeout, false},
		"nothing":    {time.Hour, time.Hour * 2, headerTimeout, false},
		"while stop": {time.Second, 1500 * time.Millisecond, 1500 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.stop)
				defer cancel()
				server, client := net.Pipe()
				defer client.Close()
				var sending sync.WaitGroup
				defer sending.Wait()
				sending.Go(func() {
					for i := range len(header) {
						time.Sleep(test.pause) //nolint:forbidigo // the clock is synctest's
						if _, err := io.WriteString(client, header[i:i+1]); err != nil {
							return
						}
					}
				})
				s := &listening{trusts: func(netip.Addr) bool { return true }}
				c := &clientConn{Conn: tcpPipe{server}}
				began := time.Now()
				if got := s.identifyClient(ctx, c, headerTimeout); got != test.want || time.Since(began) != test.took {
					t.Errorf("identified: %v after %v", got, time.Since(began))
				}
				if test.want && c.RemoteAddr().String() != "192.0.2.1:80" {
					t.Errorf("the client is %v", c.RemoteAddr())
				}
				server.Close()
			})
		})
	}
}

// TestProxyProtocol covers the client that applications see, on both paths and listeners: the one of the header, whose own headers are
// not trusted. Other peers connect without a header, and a header from them is a malformed request. The internal listener accepts none.
func TestProxyProtocol(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-For")) })
	const v1, forged = "PROXY TCP4 192.0.2.1 10.0.0.1 80 443\r\n", "X-Forwarded-For: 192.0.2.66\r\n"
	loopback, other := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")
	for _, standardOnly := range []bool{false, true} {
		for name, test := range map[string]struct {
			off     bool
			trusted netip.Prefix
			header  string
			// want is the X-Forwarded-For of the application; empty if the connection is closed without a response.
			want   string
			status int
		}{
			"version 1":            {trusted: loopback, header: v1, want: "192.0.2.1", status: http.StatusOK},
			"version 2":            {trusted: loopback, header: proxyV2(0x21, 0x21, 36, fromV6), want: "2001:db8::1", status: http.StatusOK},
			"a client unknown":     {trusted: loopback, header: "PROXY UNKNOWN\r\n", want: "unknown", status: http.StatusOK},
			"the proxy itself":     {trusted: loopback, header: proxyV2(0x20, 0, 0, ""), want: "192.0.2.66, 127.0.0.1", status: http.StatusOK},
			"no header":            {trusted: loopback},
			"garbage":              {trusted: loopback, header: "PROXY TCP4 nonsense\r\n"},
			"an additional header": {trusted: loopback, header: v1 + v1, status: http.StatusBadRequest},
			"another peer":         {trusted: other, want: "127.0.0.1", status: http.StatusOK},
			"header from another":  {trusted: other, header: v1, status: http.StatusBadRequest},
			"off":                  {off: true, trusted: loopback, want: "192.0.2.66, 127.0.0.1", status: http.StatusOK},
			"header, but off":      {off: true, trusted: loopback, header: v1, status: http.StatusBadRequest},
		} {
			t.Run(fmt.Sprintf("%s, standard path %v", name, standardOnly), func(t *testing.T) {
				options := Options{StandardOnly: standardOnly, TrustedProxies: []netip.Prefix{test.trusted}, ProxyProtocol: !test.off, Listeners: 3}
				b, _ := serveTLS(t, options, app)
				const request = "GET / HTTP/1.1\r\nHost: b.test\r\n" + forged + "\r\n"
				for listener, address := range map[string]string{"public": servePublic(t, b.Gateway), "TLS": b.address} {
					conn := dialTo(t, address)
					if _, err := io.WriteString(conn, test.header); err != nil {
						t.Fatal(err)
					}
					if listener == "TLS" {
						secure := tls.Client(conn, &tls.Config{ServerName: "b.test", InsecureSkipVerify: true})
						if err := secure.HandshakeContext(t.Context()); (err == nil) != (test.status == http.StatusOK) {
							t.Errorf("%s: handshake: %v", listener, err)
						} else if err != nil {
							continue
						}
						conn = secure
					}
					// Twice, to cover connections that return from the standard path.
					for range 2 {
						_, err := io.WriteString(conn, request)
						if err != nil {
							break
						}
						res, err := http.ReadResponse(bufio.NewReader(conn), nil)
						if test.status == 0 {
							if err == nil {
								t.Errorf("%s: %s, want no response", listener, res.Status)
							}
							break
						}
						if err != nil {
							t.Fatal(listener, err)
						}
						body, err := io.ReadAll(res.Body)
						res.Body.Close()
						if err != nil || res.StatusCode != test.status || res.StatusCode == http.StatusOK && string(body) != test.want {
							t.Errorf("%s: %s %q, %v", listener, res.Status, body, err)
						}
						if test.status != http.StatusOK {
							break
						}
					}
				}
			})
		}
	}
}

// TestProxyProtocolInside expects that the listener for Pods accepts no header.
func TestProxyProtocolInside(t *testing.T) {
	options := Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, ProxyProtocol: true}
	b := serve(t, options, revision(0), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if res, _ := b.do(t, b.request(t, http.MethodGet, nil)); res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
}

// servePublic serves a listener for requests from outside the cluster until the test ends, and returns its address.
func servePublic(t testing.TB, g *Gateway) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- g.ServePublic(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// dialTo connects for at most a minute.
func dialTo(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn
}
