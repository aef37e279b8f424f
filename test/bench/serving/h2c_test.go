package serving

import (
	"fmt"
	"net/url"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

const (
	// h2cConnections and h2cStreams are the connections of h2load and the concurrent requests of each.
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

// BenchmarkH2C measures requests per second by HTTP/2 without TLS, as gRPC uses it, over 8 connections with 8 streams each.
func BenchmarkH2C(b *testing.B) {
	if _, err := exec.LookPath("h2load"); err != nil {
		b.Skip("h2load is not installed: apt-get install nghttp2-client")
	}
	figures.Once(b, func() {
		s := service(b, "h2c", 1)
		container := &s.Spec.Template.Spec.Containers[0]
		container.Ports = []corev1.ContainerPort{{Name: "h2c", ContainerPort: 8080}}
		container.Env = []corev1.EnvVar{{Name: "PROTOCOL", Value: "h2c"}}
		host := deploy(b, s)
		direct, stop := startApp(b, "PROTOCOL=h2c")
		defer stop()
		c := newContenders(b, direct, true)
		c.measure(func(address string) load { return runH2load(b, address, host) })
		c.reportRates(b, "req/s")
	})
}
