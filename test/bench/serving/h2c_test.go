package serving

import (
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

const (
	// h2cConnections and h2cStreams are the connections of a load generator and the concurrent requests of each.
	h2cConnections, h2cStreams = 8, 8
	h2cSeconds                 = 3
)

var (
	h2loadRate   = regexp.MustCompile(`finished in [0-9.]+m?s, ([0-9.]+) req/s`)
	h2loadFaults = regexp.MustCompile(`requests: .*, ([0-9]+) failed, ([0-9]+) errored`)
	h2loadCodes  = regexp.MustCompile(`status codes: [0-9]+ 2xx, 0 3xx, 0 4xx, 0 5xx`)
)

// runH2load sends requests by HTTP/2 without TLS to an address, for a host.
func runH2load(b *testing.B, address, host string) load {
	b.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	out, err := exec.CommandContext(b.Context(), "h2load", "-t", "1", "-c", strconv.Itoa(h2cConnections), "-m", strconv.Itoa(h2cStreams),
		"-D", strconv.Itoa(h2cSeconds), "--connect-to="+u.Host, "http://"+host+"/").CombinedOutput()
	if err != nil {
		b.Fatalf("h2load: %v\n%s", err, out)
	}
	faults := h2loadFaults.FindSubmatch(out)
	found := h2loadRate.FindSubmatch(out)
	if faults == nil || found == nil || string(faults[1]) != "0" || string(faults[2]) != "0" || !h2loadCodes.Match(out) {
		b.Fatalf("requests failed: %s", out)
	}
	rate, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		b.Fatal(fmt.Errorf("rate of h2load: %w", err))
	}
	return load{rate: rate}
}

// BenchmarkH2C measures requests per second by HTTP/2 without TLS over 8 connections with 8 streams each.
func BenchmarkH2C(b *testing.B) {
	if _, err := exec.LookPath("h2load"); err != nil {
		b.Skip("h2load is not installed: apt-get install nghttp2-client")
	}
	figures.Once(b, func() { compareH2C(b, "h2c", "req/s", runH2load) })
}

// runGRPC calls a method of gRPC, which answers with one message, at an address, for a host.
func runGRPC(b *testing.B, address, host string) load {
	b.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	var calls atomic.Int64
	var running errgroup.Group
	end := time.Now().Add(h2cSeconds * time.Second)
	for range h2cConnections {
		conn, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(host))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		client := healthv1.NewHealthClient(conn)
		for range h2cStreams {
			running.Go(func() error {
				for time.Now().Before(end) {
					if _, err := client.Check(b.Context(), &healthv1.HealthCheckRequest{}); err != nil {
						return err
					}
					calls.Add(1)
				}
				return nil
			})
		}
	}
	if err := running.Wait(); err != nil {
		b.Fatalf("gRPC at %s: %v", address, err)
	}
	return load{rate: float64(calls.Load()) / h2cSeconds}
}

// BenchmarkGRPC measures calls per second of a gRPC client over 8 connections with 8 concurrent calls each.
func BenchmarkGRPC(b *testing.B) {
	figures.Once(b, func() { compareH2C(b, "grpc", "calls/s", runGRPC) })
}

// compareH2C measures an application that speaks HTTP/2 without TLS directly, behind peers, and behind the gateway, alternating.
func compareH2C(b *testing.B, name, unit string, run func(b *testing.B, address, host string) load) {
	b.Helper()
	s := service(b, name, 1)
	container := &s.Spec.Template.Spec.Containers[0]
	container.Ports = []corev1.ContainerPort{{Name: "h2c", ContainerPort: 8080}}
	container.Env = []corev1.EnvVar{{Name: "PROTOCOL", Value: "h2c"}}
	host := deploy(b, s)
	direct, stop := startApp(b, "PROTOCOL=h2c")
	defer stop()
	c := newContenders(b, direct, true)
	c.measure(func(address string) load { return run(b, address, host) })
	c.reportRates(b, unit)
}
