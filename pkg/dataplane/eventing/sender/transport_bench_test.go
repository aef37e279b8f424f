package sender

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkTransports compares plain with http.Transport under the same rules: no data is written to a connection that the
// recipient closed, and interim answers are recorded. The recipient costs as little as possible, but is part of the
// figures.
func BenchmarkTransports(b *testing.B) {
	for _, deliveries := range []int{1, 64} {
		name := map[int]string{1: "one", 64: "many"}[deliveries]
		b.Run("plain/"+name, func(b *testing.B) {
			t := newTransports(nil)
			defer t.close()
			benchmarkTransport(b, t.plain, deliveries)
		})
		b.Run("http.Transport/"+name, func(b *testing.B) {
			t := newTransports(nil).secure.Load().standard
			defer t.CloseIdleConnections()
			dial := t.DialContext
			t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				made, err := dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &checkedConn{conn: newConn(made, nil, "")}, nil
			}
			benchmarkTransport(b, checking{t}, deliveries)
		})
	}
}

func benchmarkTransport(b *testing.B, t http.RoundTripper, deliveries int) {
	target, err := url.Parse("http://" + accepting(b))
	if err != nil {
		b.Fatal(err)
	}
	s, e := newSender(b, Options{}), order()
	e.Data = []byte(strings.Repeat("x", 1024))
	used := processorTime(b)
	b.ReportAllocs()
	b.SetParallelism(deliveries)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r, err := s.request(b.Context(), e, target, Attempt{})
			if err != nil {
				b.Error(err)
				return
			}
			ctx, cancel := context.WithTimeout(r.Context(), DefaultTimeout)
			res, err := t.RoundTrip(r.WithContext(ctx))
			if err != nil {
				b.Error(err)
				cancel()
				return
			}
			io.Copy(io.Discard, res.Body) //nolint:errcheck // empty
			res.Body.Close()
			cancel()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
	b.ReportMetric((processorTime(b)-used)*1e6/float64(b.N), "cpu-us/op")
}

// processorTime returns the seconds that the process has used.
func processorTime(b *testing.B) float64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

// accepting returns the address of a recipient that accepts events of 1024 bytes without parsing them.
func accepting(b *testing.B) string {
	return serveConnections(b, func(conn net.Conn) {
		for reader := bufio.NewReader(conn); ; {
			for {
				line, err := reader.ReadSlice('\n')
				if err != nil {
					return
				}
				if len(bytes.TrimSpace(line)) == 0 {
					break
				}
			}
			if _, err := reader.Discard(1024); err != nil {
				return
			}
			io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n") //nolint:errcheck // the sender notices
		}
	})
}

// checkedConn refuses the first write of a request if the recipient closed the connection before.
type checkedConn struct {
	*conn
	reused atomic.Bool
}

func (c *checkedConn) Read(p []byte) (int, error) { return c.conn.Conn.Read(p) }

func (c *checkedConn) Write(p []byte) (int, error) {
	if c.reused.Swap(false) && c.idle.Unusable() {
		return 0, net.ErrClosed
	}
	return c.conn.Conn.Write(p)
}

// checking marks connections that were used before, and records interim answers as watching does.
type checking struct{ transport *http.Transport }

func (t checking) RoundTrip(r *http.Request) (*http.Response, error) {
	var last, count atomic.Int32
	res, err := t.transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { info.Conn.(*checkedConn).reused.Store(info.Reused) },
		Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			last.Store(int32(code))
			if count.Add(1) > maxInterim {
				return errInterim
			}
			return nil
		},
	})))
	if code := last.Load(); err != nil && code != 0 {
		err = &interimError{code: int(code), err: err}
	}
	return res, err
}
