package gateway

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// forwarders are the options that select the forwarder of plain requests.
var forwarders = []struct {
	name         string
	standardOnly bool
}{{name: "fast"}, {name: "standard", standardOnly: true}}

// TestStandardOnly checks that the fast path declines all requests if it is disabled.
func TestStandardOnly(t *testing.T) {
	if (listenerHandler{chain: New(Options{StandardOnly: true}).chain}).ServeHTTP1(nil) {
		t.Error("the fast path serves a request")
	}
}

// BenchmarkForwarders compares the forwarders with the same client, gateway and backend in one process. The client and the backend
// read and write raw bytes, so that only the gateway allocates.
func BenchmarkForwarders(b *testing.B) {
	const request = "GET / HTTP/1.1\r\nHost: app\r\nUser-Agent: a\r\nAccept: */*\r\n\r\n"
	const response = "HTTP/1.1 200 OK\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi"
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { backend.Close() })
	go func() {
		for {
			conn, err := backend.Accept()
			if err != nil {
				return
			}
			go answerRaw(conn, response)
		}
	}()
	for _, forwarder := range forwarders {
		b.Run(forwarder.name, func(b *testing.B) {
			g := serve(b, Options{StandardOnly: forwarder.standardOnly}, &routing.Revision{Key: key("r"), Timeout: time.Minute}, nil)
			g.SetInstances(key("r"), []workload.Instance{{Name: "i", Address: backend.Addr().String()}})
			var mu sync.Mutex
			var all []time.Duration
			b.ReportAllocs()
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				conn, err := net.Dial("tcp", g.address)
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				out, in, end := []byte(request), make([]byte, 4096), []byte("\r\n\r\nhi")
				took := make([]time.Duration, 0, b.N/4)
				for pb.Next() {
					start := time.Now()
					if _, err := conn.Write(out); err != nil {
						b.Error(err)
						return
					}
					for n, ended := 0, false; !ended; ended = bytes.HasSuffix(in[:n], end) {
						more, err := conn.Read(in[n:])
						if err != nil {
							b.Error(err)
							return
						}
						n += more
					}
					took = append(took, time.Since(start))
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, took...)
			})
			slices.Sort(all)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// answerRaw answers each request without body with the same bytes.
func answerRaw(conn net.Conn, response string) {
	defer conn.Close()
	out, reader := []byte(response), bufio.NewReader(conn)
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return
		}
		if len(line) > len("\r\n") {
			continue
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}
