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
	return microseconds(cpu) / (rate * duration.Seconds())
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
	once(b, func() {
		secure := deploySecure(b, "https")
		var https, plain, ratios, httpsCosts, plainCosts, httpsClients, plainClients []float64
		measure := func(address string, rates, costs, clients *[]float64) (rate float64) {
			before := server.CPUTime(b)
			l := runWrk(b, address, secure.Hostname(), 64, httpsTime)
			*rates = append(*rates, l.rate)
			*costs = append(*costs, each(server.CPUTime(b)-before, l.rate, httpsTime))
			*clients = append(*clients, each(l.cpu, l.rate, httpsTime))
			return l.rate
		}
		for range httpsRounds {
			with := measure(secure.String(), &https, &httpsCosts, &httpsClients)
			without := measure(gateway(b), &plain, &plainCosts, &plainClients)
			ratios = append(ratios, 100*with/without)
		}
		b.ReportMetric(median(https), "https-req/s")
		b.ReportMetric(median(plain), "plain-req/s")
		b.ReportMetric(median(ratios), "https-%-of-plain")
		b.ReportMetric(median(httpsCosts), "https-server-cpu-µs/req")
		b.ReportMetric(median(plainCosts), "plain-server-cpu-µs/req")
		b.ReportMetric(median(httpsClients), "https-client-cpu-µs/req")
		b.ReportMetric(median(plainClients), "plain-client-cpu-µs/req")
	})
}

// BenchmarkHandshakes measures full TLS handshakes per second with the gateway and with a server of crypto/tls alone, in another process and
// with a certificate of the same kind. On a machine with other load, the handshakes per CPU time of the server vary less than the ones per second.
func BenchmarkHandshakes(b *testing.B) {
	once(b, func() {
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
		measure := func(server *harness.Process, address string, rates, costs *[]float64) (rate float64) {
			before := server.CPUTime(b)
			rate = handshakes(b, address, secure.Hostname())
			*rates, *costs = append(*rates, rate), append(*costs, each(server.CPUTime(b)-before, rate, handshakeTime))
			return rate
		}
		var ours, bare, ratios, costs, bareCosts []float64
		for range handshakeRounds {
			through := measure(server.Process, net.JoinHostPort("127.0.0.1", secure.Port()), &ours, &costs)
			straight := measure(process, match[1], &bare, &bareCosts)
			ratios = append(ratios, 100*through/straight)
		}
		b.ReportMetric(median(ours), "gateway-handshakes/s")
		b.ReportMetric(median(bare), "bare-handshakes/s")
		b.ReportMetric(median(ratios), "gateway-%-of-bare")
		b.ReportMetric(100*median(bareCosts)/median(costs), "gateway-%-of-bare-per-cpu")
		b.ReportMetric(median(costs), "gateway-server-cpu-µs/handshake")
		b.ReportMetric(median(bareCosts), "bare-server-cpu-µs/handshake")
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
