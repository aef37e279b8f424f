package gateway

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

const (
	// benchConns is the number of connections that clients of benchmarks keep.
	benchConns = 64
	// benchRounds is the number of alternating parts of two subjects, so that other load on the machine affects both.
	benchRounds = 10
)

// benchServer answers raw requests, and returns its address.
func benchServer(b *testing.B, response string) string {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerRaw(conn, response)
		}
	}()
	return listener.Addr().String()
}

// inTurns performs about n operations of two subjects each by concurrent workers, in alternating parts. It returns the operations per second of both,
// and the first ones as percentage of the second ones: the medians of the parts, because other load on the machine changes from part to part.
func inTurns(b *testing.B, n int, first, second func(worker int) error) (rates [2]float64, percentage float64) {
	b.Helper()
	n = max(n/benchRounds, benchConns)
	var all [2][]float64
	var percentages []float64
	for range benchRounds {
		for i, do := range []func(int) error{first, second} {
			var next atomic.Int64
			var workers sync.WaitGroup
			start := time.Now()
			for worker := range benchConns {
				workers.Go(func() {
					for next.Add(1) <= int64(n) {
						if err := do(worker); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			workers.Wait()
			all[i] = append(all[i], float64(n)/time.Since(start).Seconds())
		}
		percentages = append(percentages, 100*all[0][len(all[0])-1]/all[1][len(all[1])-1])
	}
	median := func(values []float64) float64 {
		slices.Sort(values)
		return values[len(values)/2]
	}
	percentage = median(percentages)
	return [2]float64{median(all[0]), median(all[1])}, percentage
}

// BenchmarkHTTPS compares requests by HTTPS with requests without TLS in one run, on 64 connections that are kept.
func BenchmarkHTTPS(b *testing.B) {
	const request = "GET / HTTP/1.1\r\nHost: b.test\r\n\r\n"
	const response = "HTTP/1.1 200 OK\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi"
	g, _ := serveTLS(b, Options{Listeners: 2}, nil)
	g.SetInstances(key("r"), []workload.Instance{{Name: "i", Address: benchServer(b, response)}})
	secure, plain := make([]net.Conn, benchConns), make([]net.Conn, benchConns)
	public := servePublic(b, g.Gateway)
	for i := range benchConns {
		secure[i] = g.mustDialTLS(b, "b.test", nil)
		conn, err := net.Dial("tcp", public)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		if err := secure[i].SetDeadline(time.Time{}); err != nil {
			b.Fatal(err)
		}
		plain[i] = conn
	}
	send := func(conns []net.Conn) func(worker int) error {
		buffers := make([][4096]byte, benchConns)
		return func(worker int) error {
			if _, err := io.WriteString(conns[worker], request); err != nil {
				return err
			}
			in := buffers[worker][:]
			for n := 0; !bytes.HasSuffix(in[:n], []byte("\r\n\r\nhi")); {
				more, err := conns[worker].Read(in[n:])
				if err != nil {
					return err
				}
				n += more
			}
			return nil
		}
	}
	b.ResetTimer()
	rates, percentage := inTurns(b, b.N, send(secure), send(plain))
	b.ReportMetric(rates[0], "https-requests/s")
	b.ReportMetric(rates[1], "plain-requests/s")
	b.ReportMetric(percentage, "%-of-plain")
}

// BenchmarkHandshakes compares full TLS handshakes with the gateway and with a server of crypto/tls alone in one run.
func BenchmarkHandshakes(b *testing.B) {
	g, store := serveTLS(b, Options{Listeners: 2}, nil)
	certificate, err := store.GetCertificate(&tls.ClientHelloInfo{ServerName: "b.test"})
	if err != nil {
		b.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*certificate}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				conn.Read(make([]byte, 1)) //nolint:errcheck // it performs the handshake, and ends with the connection
			}()
		}
	}()
	shake := func(address string) func(int) error {
		return func(int) error {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			config := &tls.Config{ServerName: "b.test", InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}
			return tls.Client(conn, config).HandshakeContext(b.Context())
		}
	}
	b.ResetTimer()
	rates, percentage := inTurns(b, b.N, shake(g.address), shake(listener.Addr().String()))
	b.ReportMetric(rates[0], "handshakes/s")
	b.ReportMetric(rates[1], "bare-handshakes/s")
	b.ReportMetric(percentage, "%-of-bare")
}
