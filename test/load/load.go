// Package load generates floods of requests in a separate process, and compares the measurements of a client with and without a flood.
package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// variable holds the load, in JSON, that the test binary generates instead of running tests: a separate process does not
// slow down the measuring one.
const variable = "TEST_LOAD"

// timeout bounds the time of a request.
const timeout = time.Minute

// Load is one repeated request by many clients, each of which only waits for its response.
type Load struct {
	Clients int
	// Once is true if each request uses its own connection.
	Once bool
	// Address is the host:port to connect to, if not the URL's.
	Address, Method, URL, Body string
	Header                     map[string]string
	// CA are the authorities for an https URL.
	CA []byte
}

// Generate generates the load of Start and returns true in a process that Start created. TestMain must call it first.
func Generate() bool {
	text := os.Getenv(variable)
	if text == "" {
		return false
	}
	var l Load
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		panic(err)
	}
	l.generate()
	return true
}

// generate generates the load until standard input ends, and then prints the number of responses by code, 0 being none.
func (l *Load) generate() {
	ctx, cancel := context.WithCancel(context.Background())
	var codes [600]atomic.Int64
	var clients sync.WaitGroup
	for range l.Clients {
		clients.Go(func() {
			for client := l.Client(); ctx.Err() == nil; {
				code, _, err := l.send(ctx, client)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					code = 0
				}
				codes[code].Add(1)
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // an error ends it as well
	cancel()
	clients.Wait()
	answers := map[int]int64{}
	for code := range codes {
		if n := codes[code].Load(); n > 0 {
			answers[code] = n
		}
	}
	fmt.Println(answers)
}

// Client returns a client with one connection at a time.
func (l *Load) Client() *http.Client {
	transport := &http.Transport{DisableKeepAlives: l.Once}
	if l.Address != "" {
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, l.Address)
		}
	}
	if len(l.CA) > 0 {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(l.CA)
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport, Timeout: timeout}
}

// send sends one request and returns status code and body of its response.
func (l *Load) send(ctx context.Context, client *http.Client) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, l.Method, l.URL, strings.NewReader(l.Body))
	if err != nil {
		return 0, "", err
	}
	for name, value := range l.Header {
		request.Header.Set(name, value)
	}
	return harness.Exchange(client, request)
}

// Do is send for a request whose response must have one status code.
func (l *Load) Do(ctx context.Context, client *http.Client, want int) error {
	code, body, err := l.send(ctx, client)
	if err == nil && code != want {
		err = fmt.Errorf("code %d: %.500s", code, body)
	}
	return err
}

// Start generates the load in another process until stop, which returns the number of responses by status code. The process has
// the lowest priority: it stands for clients on other machines, which do not use the processors of the server. Its nice value
// only counts among the processes of its session if the kernel groups processes by session (autogroup in sched(7)), so it gets
// its own session, whose group has the same nice value.
func (l *Load) Start(t testing.TB) (stop func() string) {
	t.Helper()
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	const nice = "19"
	cmd := exec.CommandContext(t.Context(), "nice", "-n", nice, os.Args[0])
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "autogroup")
	if err := os.WriteFile(group, []byte(nice), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lower the priority of the flood: %v", err)
	}
	return func() string {
		input.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the flood: %v", err)
		}
		return strings.TrimSpace(out.String())
	}
}

// Latency is a percentile of durations.
type Latency struct{ P50, P95, P99 time.Duration }

// percentiles returns the percentiles of durations.
func percentiles(of []time.Duration) Latency {
	of = slices.Sorted(slices.Values(of))
	at := func(q float64) time.Duration { return of[int(q*float64(len(of)-1))].Round(10 * time.Microsecond) }
	return Latency{P50: at(0.5), P95: at(0.95), P99: at(0.99)}
}

const (
	// pace is the interval of the measured actions, window the duration of each of windows windows, alternating without and
	// with the flood.
	pace    = 20 * time.Millisecond
	window  = 3 * time.Second
	windows = 5
	// flooded is the duration of a flood before its effect is measured, settled the pause after its end.
	flooded = time.Second
	settled = time.Second
)

// Compare returns the latency of do without and with the flood: of each percentile, the median of the windows, so that other
// work on the machine in one of them does not decide, and other work in all of them affects both.
func (l *Load) Compare(t testing.TB, do func() error) (quiet, flood Latency) {
	t.Helper()
	measure(t, settled, do)
	var without, with []Latency
	for range windows {
		without = append(without, percentiles(measure(t, window, do)))
		stop := l.Start(t)
		measure(t, flooded, do)
		with = append(with, percentiles(measure(t, window, do)))
		t.Logf("quiet %v, in the flood %v; answers of the flood by code: %s", without[len(without)-1], with[len(with)-1], stop())
		measure(t, settled, do)
	}
	return medians(without), medians(with)
}

// medians returns the median of each percentile.
func medians(of []Latency) Latency {
	median := func(percentile func(Latency) time.Duration) time.Duration {
		values := make([]time.Duration, 0, len(of))
		for _, l := range of {
			values = append(values, percentile(l))
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	return Latency{
		P50: median(func(l Latency) time.Duration { return l.P50 }),
		P95: median(func(l Latency) time.Duration { return l.P95 }),
		P99: median(func(l Latency) time.Duration { return l.P99 }),
	}
}

// measure calls do at an interval for some time, one call at a time, and returns the durations.
func measure(t testing.TB, duration time.Duration, do func() error) (took []time.Duration) {
	t.Helper()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for end := time.Now().Add(duration); time.Now().Before(end); <-ticker.C {
		begin := time.Now()
		if err := do(); err != nil {
			t.Errorf("request of the quiet tenant: %v", err)
		}
		took = append(took, time.Since(begin))
	}
	return took
}
