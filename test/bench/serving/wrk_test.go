package serving

import (
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

// rounds is the number of alternating rounds: other load on the machine affects all subjects. With -short it is fewer.
var rounds = 5

// wrkTime is the duration of one run of wrk, httpsTime of one run that compares HTTPS: it begins with handshakes, which are a small part of it.
const wrkTime, httpsTime = 3 * time.Second, 6 * time.Second

// shortRounds is the number of rounds with -short.
const shortRounds = 3

// load is the result of wrk.
type load struct {
	rate     float64 // requests per second
	p50, p99 time.Duration
	// cpu is the CPU time of wrk.
	cpu time.Duration
}

var (
	wrkRate   = regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	wrkP50    = regexp.MustCompile(`50%\s+([0-9.]+[a-z]+)`)
	wrkP99    = regexp.MustCompile(`99%\s+([0-9.]+[a-z]+)`)
	wrkFaults = regexp.MustCompile(`Non-2xx or 3xx responses: \d+|Socket errors: .*`)
)

// runWrk sends requests over keep-alive connections. The host of an https URL is the server name of the handshake, with this machine.
func runWrk(b *testing.B, url, host string, connections int, duration time.Duration) load {
	b.Helper()
	threads := min(2, connections)
	cmd := exec.CommandContext(b.Context(), wrk, "-t", strconv.Itoa(threads), "-c", strconv.Itoa(connections), "-d", duration.String(), "--latency",
		"-H", "Host: "+host, url)
	if strings.HasPrefix(url, "https:") {
		cmd.Args = append(cmd.Args, "-s", "loopback.lua")
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("wrk: %v\n%s", err, out)
	}
	if fault := wrkFaults.Find(out); fault != nil {
		b.Fatalf("wrk %s: %s", url, fault)
	}
	find := func(pattern *regexp.Regexp) string {
		match := pattern.FindSubmatch(out)
		if match == nil {
			b.Fatalf("wrk printed nothing like %s:\n%s", pattern, out)
		}
		return string(match[1])
	}
	l := load{cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	if l.rate, err = strconv.ParseFloat(find(wrkRate), 64); err != nil {
		b.Fatal(err)
	}
	if l.p50, err = time.ParseDuration(find(wrkP50)); err != nil {
		b.Fatal(err)
	}
	if l.p99, err = time.ParseDuration(find(wrkP99)); err != nil {
		b.Fatal(err)
	}
	return l
}

// contenders are ways to the same application, by name: direct, gateway, bare-ReverseProxy, and the installed peers.
type contenders struct {
	addresses map[string]string
	loads     map[string][]load
}

// newContenders returns the ways to an application that runs besides the server: direct, and through the installed peers, and the gateway, for a
// Service with the same application. Without h2c they speak HTTP/1.1.
func newContenders(b *testing.B, direct string, h2c bool) *contenders {
	b.Helper()
	c := &contenders{addresses: map[string]string{"direct": direct, "gateway": gateway(b)}, loads: map[string][]load{}}
	for _, p := range peers {
		if address := p.start(b, strings.TrimPrefix(direct, "http://"), h2c); address != "" {
			c.addresses[p.name] = "http://" + address
		}
	}
	return c
}

// compare measures the application directly, behind a bare proxy, behind peers, and behind the gateway, alternating.
func compare(b *testing.B, name string, connections int) *contenders {
	b.Helper()
	host := deploy(b, service(b, name, 1))
	direct, stop := startApp(b)
	defer stop()
	c := newContenders(b, direct, false)
	c.addresses["bare-ReverseProxy"] = bareProxy(b, direct)
	c.measure(func(address string) load { return runWrk(b, address, host, connections, wrkTime) })
	return c
}

// measure measures all contenders, alternating.
func (c *contenders) measure(run func(address string) load) {
	for range rounds {
		for _, name := range slices.Sorted(maps.Keys(c.addresses)) {
			c.loads[name] = append(c.loads[name], run(c.addresses[name]))
		}
	}
}

// reportRates reports the rates of direct and gateway, in a unit, and of all others in percent of direct.
func (c *contenders) reportRates(b *testing.B, unit string) {
	b.Helper()
	rate := func(l load) float64 { return l.rate }
	direct := medianOf(c.loads["direct"], rate)
	b.ReportMetric(direct, "direct-"+unit)
	b.ReportMetric(medianOf(c.loads["gateway"], rate), "gateway-"+unit)
	for name, loads := range c.loads {
		if name != "direct" {
			b.ReportMetric(100*medianOf(loads, rate)/direct, name+"-%-of-direct")
		}
	}
}

func medianOf[T int64 | float64 | time.Duration](loads []load, of func(load) T) T {
	values := make([]T, len(loads))
	for i, l := range loads {
		values[i] = of(l)
	}
	return figures.Median(values)
}

// BenchmarkThroughput measures requests per second over 64 keep-alive connections.
func BenchmarkThroughput(b *testing.B) {
	figures.Once(b, func() {
		c := compare(b, "throughput", 64)
		c.reportRates(b, "req/s")
	})
}

// BenchmarkLatency measures the latency that the gateway and others add to one connection.
func BenchmarkLatency(b *testing.B) {
	figures.Once(b, func() {
		c := compare(b, "latency", 1)
		p50 := func(l load) time.Duration { return l.p50 }
		direct := medianOf(c.loads["direct"], p50)
		b.ReportMetric(figures.Microseconds(direct), "direct-p50-µs")
		for name, loads := range c.loads {
			if name != "direct" {
				b.ReportMetric(figures.Microseconds(medianOf(loads, p50)-direct), name+"-added-p50-µs")
			}
		}
	})
}
