package serving

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

const (
	// pace is the rate of requests per second, independent of earlier responses.
	pace = 2600
	// pacedConnections share the requests.
	pacedConnections = 32
	// pacedTime is the duration of the load.
	pacedTime = 5 * time.Second
)

// BenchmarkPacedLatency measures the 99th percentile of latency at a steady rate.
func BenchmarkPacedLatency(b *testing.B) {
	figures.Once(b, func() {
		host := deploy(b, service(b, "paced", 1))
		direct, stop := startApp(b)
		defer stop()
		through := gateway(b)
		var added, directs []time.Duration
		for range rounds {
			without := p99(paced(b, direct, host, ""))
			with := p99(paced(b, through, host, ""))
			directs = append(directs, without)
			added = append(added, with-without)
		}
		b.ReportMetric(figures.Milliseconds(figures.Median(directs)), "direct-p99-ms")
		b.ReportMetric(figures.Milliseconds(figures.Median(added)), "gateway-added-p99-ms")
	})
}

func p50(sorted []time.Duration) time.Duration { return sorted[len(sorted)/2] }
func p99(sorted []time.Duration) time.Duration { return sorted[len(sorted)*99/100] }

// paced returns the times from the scheduled time of a request to its response, sorted. fields are lines of the request's header.
func paced(b *testing.B, address, host, fields string) []time.Duration {
	b.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(b.Context())
	defer cancel(nil)
	begin := time.Now()
	interval := time.Second * pacedConnections / pace
	var mu sync.Mutex
	var latencies []time.Duration
	var running sync.WaitGroup
	for i := range pacedConnections {
		running.Go(func() {
			mine, err := sender(ctx, u.Host, "GET / HTTP/1.1\r\nHost: "+host+"\r\n"+fields+"\r\n", begin.Add(interval*time.Duration(i)/pacedConnections), interval)
			if err != nil {
				cancel(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, mine...)
		})
	}
	running.Wait()
	if err := context.Cause(ctx); err != nil {
		b.Fatal(err)
	}
	slices.Sort(latencies)
	return latencies
}

// sender sends a request over one connection at each of its times and returns the response times.
func sender(ctx context.Context, address, request string, first time.Time, interval time.Duration) ([]time.Duration, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	count := int(pacedTime / interval)
	latencies := make([]time.Duration, 0, count)
	for i := range count {
		due := first.Add(time.Duration(i) * interval)
		//nolint:forbidigo // The load generator's clock.
		time.Sleep(time.Until(due))
		if _, err := io.WriteString(conn, request); err != nil {
			return nil, err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the answer is %s", response.Status)
		}
		latencies = append(latencies, time.Since(due))
	}
	return latencies, nil
}
