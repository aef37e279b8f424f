package serving

import (
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// rounds is the number of alternating rounds: other load on the machine affects all subjects.
const rounds = 5

// wrkTime is the duration of one run of wrk, httpsTime of one run that compares HTTPS: it begins with handshakes, which are a small part of it.
const wrkTime, httpsTime = 3 * time.Second, 6 * time.Second

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

// runWrk sends requests over keep-alive connections. It always connects to this machine. The host of an https URL is the server name of the
// handshake.
func runWrk(b *testing.B, url, host string, connections int, duration time.Duration) load {
	b.Helper()
	threads := min(2, connections)
	cmd := exec.CommandContext(b.Context(), wrk, "-t", strconv.Itoa(threads), "-c", strconv.Itoa(connections), "-d", duration.String(), "--latency",
		"-s", "loopback.lua", "-H", "Host: "+host, url)
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

// contenders are ways to the same application.
type contenders struct{ direct, bare, gateway []load }

// compare measures the application directly, behind a bare proxy, and behind the gateway, alternating.
func compare(b *testing.B, name string, connections int) contenders {
	b.Helper()
	host := deploy(b, service(b, name, 1))
	direct, stop := startApp(b)
	defer stop()
	bare := bareProxy(b, direct)
	through := gateway(b)
	var c contenders
	for range rounds {
		c.direct = append(c.direct, runWrk(b, direct, host, connections, wrkTime))
		c.gateway = append(c.gateway, runWrk(b, through, host, connections, wrkTime))
		c.bare = append(c.bare, runWrk(b, bare, host, connections, wrkTime))
	}
	return c
}

func medianOf[T int64 | float64 | time.Duration](loads []load, of func(load) T) T {
	values := make([]T, len(loads))
	for i, l := range loads {
		values[i] = of(l)
	}
	return median(values)
}

// BenchmarkThroughput measures requests per second over 64 keep-alive connections.
func BenchmarkThroughput(b *testing.B) {
	once(b, func() {
		c := compare(b, "throughput", 64)
		rate := func(l load) float64 { return l.rate }
		direct, bare, through := medianOf(c.direct, rate), medianOf(c.bare, rate), medianOf(c.gateway, rate)
		b.ReportMetric(direct, "direct-req/s")
		b.ReportMetric(through, "gateway-req/s")
		b.ReportMetric(100*through/direct, "gateway-%-of-direct")
		b.ReportMetric(100*bare/direct, "bare-ReverseProxy-%-of-direct")
	})
}

// BenchmarkLatency measures the latency that the gateway adds to one connection.
func BenchmarkLatency(b *testing.B) {
	once(b, func() {
		c := compare(b, "latency", 1)
		p50 := func(l load) time.Duration { return l.p50 }
		direct := medianOf(c.direct, p50)
		b.ReportMetric(microseconds(direct), "direct-p50-µs")
		b.ReportMetric(microseconds(medianOf(c.gateway, p50)-direct), "gateway-added-p50-µs")
		b.ReportMetric(microseconds(medianOf(c.bare, p50)-direct), "bare-ReverseProxy-added-p50-µs")
	})
}
