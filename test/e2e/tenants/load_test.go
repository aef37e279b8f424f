package tenants

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// floodVariable holds the load, in JSON, that the test binary generates instead of running tests: a separate process does not
// slow down the measuring one.
const floodVariable = "E2E_FLOOD"

// load is one repeated request by many clients, each of which only waits for its response.
type load struct {
	Clients int
	// Once is true if each request uses its own connection.
	Once bool
	// Address is the host:port to connect to, if not the URL's.
	Address, Method, URL, Body string
	Header                     map[string]string
	// CA are the authorities for an https URL.
	CA []byte
}

// flood generates a load until standard input ends, and then prints the number of responses by code, 0 being none.
func flood(text string) int {
	var l load
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	var codes [600]atomic.Int64
	var clients sync.WaitGroup
	for range l.Clients {
		clients.Go(func() {
			for client := l.client(); ctx.Err() == nil; {
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
	_, _ = io.Copy(io.Discard, os.Stdin) // any end of it is the end
	cancel()
	clients.Wait()
	answers := map[int]int64{}
	for code := range codes {
		if n := codes[code].Load(); n > 0 {
			answers[code] = n
		}
	}
	fmt.Println(answers)
	return 0
}

// client returns a client with one connection at a time.
func (l *load) client() *http.Client {
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
	return &http.Client{Transport: transport, Timeout: patience}
}

// send sends one request and returns status code and body of its response.
func (l *load) send(ctx context.Context, client *http.Client) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, l.Method, l.URL, strings.NewReader(l.Body))
	if err != nil {
		return 0, "", err
	}
	for name, value := range l.Header {
		request.Header.Set(name, value)
	}
	return harness.Exchange(client, request)
}

// must is send for a request whose response must have one status code.
func (l *load) must(ctx context.Context, client *http.Client, want int) error {
	code, body, err := l.send(ctx, client)
	if err == nil && code != want {
		err = fmt.Errorf("code %d: %.500s", code, body)
	}
	return err
}

// start generates the load in another process; stop ends it and returns the number of responses by status code.
func (l *load) start(t *testing.T) (stop func() string) {
	t.Helper()
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), floodVariable+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() string {
		input.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the flood: %v", err)
		}
		return strings.TrimSpace(out.String())
	}
}

const (
	// pace is the interval of the other tenant's actions, round the duration of each of rounds rounds, alternating with and
	// without the flood: other load on the machine affects both.
	pace   = 20 * time.Millisecond
	round  = 3 * time.Second
	rounds = 3
	// flooded is the duration of a flood before its effect is measured, settled the pause after its end.
	flooded = time.Second
	settled = time.Second
	// comparisons is the maximum number of measurements: a shared machine has bad moments.
	comparisons = 3
)

// measure calls do at an interval for some time, one call at a time, and returns the durations.
func measure(t *testing.T, duration time.Duration, do func() error) (took []time.Duration) {
	t.Helper()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for end := time.Now().Add(duration); time.Now().Before(end); <-ticker.C {
		begin := time.Now()
		if err := do(); err != nil {
			t.Errorf("of the tenant that does nothing wrong: %v", err)
		}
		took = append(took, time.Since(begin))
	}
	return took
}

// withinTwice fails the test unless the median of one tenant's durations at most doubles while another one floods. The 95th
// percentile is logged only: on two processors that cluster, flood and measurement share, it depends on the scheduler of the
// operating system.
func withinTwice(t *testing.T, flood *load, do func() error) {
	t.Helper()
	for n := 1; ; n++ {
		before, during := compare(t, flood, do)
		t.Logf("quiet %v, in the flood %v (median, 95%%)", before, during)
		switch {
		case during[0] <= 2*before[0]:
			return
		case n == comparisons:
			t.Errorf("%v in the flood, %v else: more than twice as long, %d times in a row", during[0], before[0], comparisons)
			return
		}
	}
}

// compare returns the percentiles of the durations of do without and with the flood.
func compare(t *testing.T, flood *load, do func() error) (before, during [2]time.Duration) {
	t.Helper()
	measure(t, settled, do)
	var quiet, loud []time.Duration
	for range rounds {
		quiet = append(quiet, measure(t, round, do)...)
		stop := flood.start(t)
		measure(t, flooded, do)
		loud = append(loud, measure(t, round, do)...)
		t.Logf("answers of the flood by code: %s", stop())
		measure(t, settled, do)
	}
	return percentiles(quiet), percentiles(loud)
}

// percentiles returns the median and the 95th percentile.
func percentiles(of []time.Duration) [2]time.Duration {
	slices.Sort(of)
	at := func(q float64) time.Duration { return of[int(q*float64(len(of)-1))].Round(10 * time.Microsecond) }
	return [2]time.Duration{at(0.5), at(0.95)}
}
