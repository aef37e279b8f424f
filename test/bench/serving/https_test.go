package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// handshakers is the number of clients that perform handshakes, handshakeTime the duration of each of handshakeRounds alternating rounds.
	handshakers     = 16
	handshakeTime   = time.Second
	handshakeRounds = 15
	// httpsRounds is the number of alternating rounds of requests.
	httpsRounds = 9
	// bareTLSVariable is the environment variable that makes the test binary a server of crypto/tls.
	bareTLSVariable = "SERVING_BENCH_BARE_TLS"
)

// each returns the CPU time of an operation in microseconds. rate is the number of operations per second.
func each(cpu time.Duration, rate float64, duration time.Duration) float64 {
	return figures.Microseconds(cpu) / (rate * duration.Seconds())
}

// deploySecure deploys a Service with HTTPS and returns the URL of its status.
func deploySecure(b *testing.B, name string) *url.URL {
	b.Helper()
	s := service(b, name, 1)
	delete(s.Annotations, disableTLS)
	return &url.URL{Scheme: "https", Host: deploy(b, s)}
}

// BenchmarkHTTPS measures requests per second over 64 keep-alive connections by HTTPS and without TLS, to one application. The load generator
// encrypts on the same cores; the CPU times show the part of the server.
func BenchmarkHTTPS(b *testing.B) {
	figures.Once(b, func() {
		secure := deploySecure(b, "https")
		var https, plain, httpsCosts, plainCosts, httpsClients, plainClients []float64
		measure := func(address string, rates, costs, clients *[]float64) {
			before := server.CPUTime(b)
			l := runWrk(b, address, secure.Hostname(), 64, httpsTime)
			*rates = append(*rates, l.rate)
			*costs = append(*costs, each(server.CPUTime(b)-before, l.rate, httpsTime))
			*clients = append(*clients, each(l.cpu, l.rate, httpsTime))
		}
		figures.Alternate(httpsRounds,
			func() { measure(secure.String(), &https, &httpsCosts, &httpsClients) },
			func() { measure(gateway(b), &plain, &plainCosts, &plainClients) })
		b.ReportMetric(figures.Median(https), "https-req/s")
		b.ReportMetric(figures.Median(plain), "plain-req/s")
		b.ReportMetric(figures.Percent(https, plain), "https-%-of-plain")
		b.ReportMetric(figures.Median(httpsCosts), "https-server-cpu-µs/req")
		b.ReportMetric(figures.Median(plainCosts), "plain-server-cpu-µs/req")
		b.ReportMetric(figures.Median(httpsClients), "https-client-cpu-µs/req")
		b.ReportMetric(figures.Median(plainClients), "plain-client-cpu-µs/req")
	})
}

// BenchmarkHandshakes measures full TLS handshakes per second with the gateway and with a server of crypto/tls alone, in another process and
// with a certificate of the same kind. On a machine with other load, the handshakes per CPU time of the server vary less than the ones per second.
func BenchmarkHandshakes(b *testing.B) {
	figures.Once(b, func() {
		secure := deploySecure(b, "handshakes")
		process, err := harness.StartProcess([]string{bareTLSVariable + "=" + secure.Hostname()}, os.Args[0])
		if err != nil {
			b.Fatal(err)
		}
		defer process.Kill()
		match, err := process.WaitForOutput(regexp.MustCompile(`listening on (\S+)`))
		if err != nil {
			b.Fatal(err)
		}
		measure := func(server *harness.Process, address string, rates, costs *[]float64) {
			before := server.CPUTime(b)
			rate := handshakes(b, address, secure.Hostname())
			*rates, *costs = append(*rates, rate), append(*costs, each(server.CPUTime(b)-before, rate, handshakeTime))
		}
		var ours, bare, costs, bareCosts []float64
		figures.Alternate(handshakeRounds,
			func() { measure(server.Process, net.JoinHostPort("127.0.0.1", secure.Port()), &ours, &costs) },
			func() { measure(process, match[1], &bare, &bareCosts) })
		b.ReportMetric(figures.Median(ours), "gateway-handshakes/s")
		b.ReportMetric(figures.Median(bare), "bare-handshakes/s")
		b.ReportMetric(figures.Percent(ours, bare), "gateway-%-of-bare")
		b.ReportMetric(100*figures.Median(bareCosts)/figures.Median(costs), "gateway-%-of-bare-per-cpu")
		b.ReportMetric(figures.Median(costs), "gateway-server-cpu-µs/handshake")
		b.ReportMetric(figures.Median(bareCosts), "bare-server-cpu-µs/handshake")
	})
}

// handshakes returns the number of full handshakes per second.
func handshakes(b *testing.B, address, name string) float64 {
	b.Helper()
	var count atomic.Int64
	var clients sync.WaitGroup
	begin := time.Now()
	for range handshakers {
		clients.Go(func() {
			dialer := tls.Dialer{Config: &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
			for time.Since(begin) < handshakeTime {
				conn, err := dialer.DialContext(b.Context(), "tcp", address)
				if err != nil {
					b.Error(err)
					return
				}
				count.Add(1)
				// Without the alert, which would be part of the measurement.
				conn.(*tls.Conn).NetConn().Close()
			}
		})
	}
	clients.Wait()
	return float64(count.Load()) / time.Since(begin).Seconds()
}

// serveBareTLS performs handshakes with a certificate as the gateway's until the process is killed.
func serveBareTLS() error {
	dir, err := os.MkdirTemp("", "serving-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	authority := certs.NewHostAuthority(certs.HostOptions{Dir: dir, Logger: klog.Background()})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { authority.Run(ctx) })
	authority.Await(ctx)
	issued, err := authority.Issue(os.Getenv(bareTLSVariable))
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{*issued.TLS}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		return err
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	for {
		conn, err := listener.Accept()
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		go func() {
			defer conn.Close()
			conn.Read(make([]byte, 1)) //nolint:errcheck // it performs the handshake, and ends with the connection
		}()
	}
}
