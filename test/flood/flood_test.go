// Package flood attacks every entry of a server in a small container at once: its memory must stay below the limit of the container,
// and a quiet namespace must not be affected.
package flood

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// limit is the memory limit of the container in bytes.
	limit = 512 << 20
	// attackTime is the duration of the attack, recoveryTime is the time in which the memory must be free after it.
	attackTime, recoveryTime = 45 * time.Second, 2 * time.Minute
	// settledTime is the time for which the memory of the fresh server must not change before the attack.
	settledTime = 20 * time.Second
	// tolerance is the percentage by which the memory may exceed its value before the attack.
	tolerance = 20
	// sampled is the interval of measurements, quietEvery the minimum interval between two requests and events of the namespace quiet.
	sampled, quietEvery = 100 * time.Millisecond, 250 * time.Millisecond
	quiet               = "quiet"
)

// TestFlood uses all entries of the server.
func TestFlood(t *testing.T) {
	m, start := run(t, attacks())
	allowed := start / 100 * (100 + tolerance)
	recovery, end := m.until(t, allowed)
	t.Logf("memory: %d MiB after %s", end>>20, recovery.Round(time.Second))
	if end > allowed {
		t.Errorf("%s after the attack the server uses %d bytes, want at most %d: %d %% more than before", recovery, end, allowed, tolerance)
	}
}

// TestLargeEvents uses only the entry whose memory grows with the rate of writes, so that nothing slows it down. The accepted events are
// delivered again for minutes, so the memory is not free soon after.
func TestLargeEvents(t *testing.T) {
	run(t, []attack{{"broker: events of a mebibyte for failing Triggers", 4, largeEvent}})
}

// run floods a server whose container has 512 MiB. The memory is the resident set size of the server, sampled every 100 ms. The
// start value is its median over five seconds, of the freshly started server that has the objects of the test and no requests yet, once
// it does not change.
func run(t *testing.T, attacks []attack) (m *meter, start int64) {
	t.Helper()
	if os.Getenv("FLOOD") == "" {
		t.Skip("set FLOOD=1, or run `make flood`")
	}
	c := newContainer(t, limit)
	var args []string
	if c.dir == "" {
		t.Setenv("GOMEMLIMIT", fmt.Sprint(limit/4*3))
		args = append(args, fmt.Sprintf("--memory-budget=%d", limit/4))
	}
	server, err := harness.StartStandaloneBy(c.wrapper(), t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	clients, err := harness.ClientsOf(server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	a := prepare(t, c, server, clients)
	watch := newQuietUser(t, a, clients)

	m = measure(t, server.PID())
	m.settle(t)
	start = m.median(5 * time.Second)

	stop := watch.start(t)
	before := time.Now()
	refused := int64(0)
	counts := a.attack(t, attacks, attackTime)
	for i, attack := range attacks {
		c := &counts[i]
		t.Logf("%-70s %4d concurrent: %6d answered, %6d refused with 429 or 503, %6d failed", attack.name, attack.workers, c.answered.Load(), c.refused.Load(), c.failed.Load())
		refused += c.refused.Load()
	}
	stop()
	most := m.most(time.Since(before))
	t.Logf("memory: %d MiB at the start, %d MiB at most during the attack, container at most %d MiB with caches", start>>20, most>>20, c.mostUsed()>>20)
	select {
	case <-server.Exited():
		t.Fatal("the server exited")
	default:
	}
	if most >= limit {
		t.Errorf("the server used %d bytes, and may use %d", most, limit)
	}
	if kills, err := c.kills(); err != nil || kills != 0 {
		t.Errorf("the kernel killed %d processes for exceeding the memory limit, %v", kills, err)
	}
	if refused == 0 {
		t.Error("no request of the attackers was refused, so the attack is too weak")
	}
	if n := withoutRetryAfter.Load(); n != 0 {
		t.Errorf("%d responses 429 and 503 had no Retry-After", n)
	}
	return m, start
}

// attack runs attacks for a duration, and returns their outcomes.
func (a *target) attack(t *testing.T, attacks []attack, duration time.Duration) []outcomes {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	return flood(ctx, a, attacks)
}

// meter samples the memory of a process.
type meter struct {
	mu      sync.Mutex
	samples []int64
}

// measure samples the memory of a process until the test ends.
func measure(t *testing.T, pid int) *meter {
	t.Helper()
	m := &meter{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(sampled)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			bytes, err := residentBytes(pid)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.samples = append(m.samples, bytes)
			m.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return m
}

// last returns the samples of the last duration.
func (m *meter) last(duration time.Duration) []int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.samples[max(0, len(m.samples)-int(duration/sampled)):])
}

func (m *meter) median(duration time.Duration) int64 {
	samples := m.last(duration)
	if len(samples) == 0 {
		return 0
	}
	slices.Sort(samples)
	return samples[len(samples)/2]
}

// most returns the largest sample of the last duration.
func (m *meter) most(duration time.Duration) int64 { return slices.Max(append(m.last(duration), 0)) }

// settle waits until the memory has not changed for settledTime by more than two percent.
func (m *meter) settle(t *testing.T) {
	t.Helper()
	settled, since := m.median(time.Second), time.Now()
	poll(t, recoveryTime, func() bool {
		if now := m.median(time.Second); now < settled*98/100 || now > settled*102/100 {
			settled, since = now, time.Now()
		}
		return time.Since(since) > settledTime
	})
}

// until waits until the memory is at most allowed, and returns how long that took and the memory then.
func (m *meter) until(t *testing.T, allowed int64) (took time.Duration, end int64) {
	t.Helper()
	from := time.Now()
	poll(t, recoveryTime, func() bool {
		end = m.median(time.Second)
		return end <= allowed
	})
	return time.Since(from), end
}

// poll calls done every half second until it returns true, at most for a duration.
func poll(t *testing.T, duration time.Duration, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// prepare creates the objects of the quiet namespace and of the attackers.
func prepare(t *testing.T, c *container, server *harness.Standalone, clients *harness.Clients) *target {
	t.Helper()
	a := &target{gateway: addressOf(t, server.Gateway), broker: addressOf(t, server.Broker), clients: clients}
	command := ""
	for _, word := range append(c.outside(), harness.AppBinary(t)) {
		// Kubernetes replaces two dollar signs by one.
		command += fmt.Sprintf("%q,", strings.ReplaceAll(word, "$$", "$$$$"))
	}
	subscribers := newSubscribers(t)
	names := []string{quiet}
	for i := range flooders {
		names = append(names, flooder(i))
	}
	for _, namespace := range names {
		create(t, clients, "/api/v1/namespaces", fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, namespace))
		create(t, clients, harness.KindOf("Service").Collection(namespace), fmt.Sprintf(
			`{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"name":"app"},"spec":{"template":{"metadata":{"annotations":{`+
				`"autoscaling.knative.dev/min-scale":"1","autoscaling.knative.dev/max-scale":"1"}},"spec":{"timeoutSeconds":20,"containers":[{"image":"ko.local/app","command":[%s]}]}}}}`,
			strings.TrimSuffix(command, ",")))
	}
	for i := range flooders {
		namespace := flooder(i)
		a.hosts[i] = "app." + namespace + ".localhost"
		for _, broker := range []string{"failing", "like", "replies"} {
			create(t, clients, harness.KindOf("Broker").Collection(namespace), named("Broker", broker, "{}"))
		}
		for n := range 40 {
			// Nothing listens there.
			create(t, clients, harness.KindOf("Trigger").Collection(namespace), named("Trigger", fmt.Sprintf("failing-%d", n),
				`{"broker":"failing","subscriber":{"uri":"http://127.0.0.1:9/"},"delivery":{"retry":10,"backoffPolicy":"linear","backoffDelay":"PT1S"}}`))
		}
		for n := range 4 {
			create(t, clients, harness.KindOf("Trigger").Collection(namespace), named("Trigger", fmt.Sprintf("like-%d", n),
				fmt.Sprintf(`{"broker":"like","subscriber":{"uri":%q},"filters":[{"cesql":"type LIKE '%%%sb'"}]}`, subscribers+"/accept", strings.Repeat("a%", 1500))))
		}
		for n := range 20 {
			create(t, clients, harness.KindOf("Trigger").Collection(namespace), named("Trigger", fmt.Sprintf("replies-%d", n),
				fmt.Sprintf(`{"broker":"replies","subscriber":{"uri":%q},"filter":{"attributes":{"type":"flood"}}}`, subscribers+"/reply")))
		}
	}
	create(t, clients, harness.KindOf("Broker").Collection(quiet), named("Broker", "events", "{}"))
	for _, namespace := range names {
		ready(t, clients, harness.KindOf("Service").Path(namespace, "app"))
		list := harness.KindOf("Trigger").Collection(namespace)
		for _, name := range namesOf(t, clients, list) {
			ready(t, clients, list+"/"+name)
		}
	}
	return a
}

func named(kind, name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"eventing.knative.dev/v1","kind":%q,"metadata":{"name":%q},"spec":%s}`, kind, name, spec)
}

func create(t *testing.T, clients *harness.Clients, path, object string) {
	t.Helper()
	if response := clients.Do(t, harness.Request{Method: http.MethodPost, Path: path, Body: object}); response.Code != http.StatusCreated {
		t.Fatalf("create at %s: code %d: %.1000s", path, response.Code, response.Body)
	}
}

// namesOf returns the names of a collection.
func namesOf(t *testing.T, clients *harness.Clients, path string) (names []string) {
	t.Helper()
	items, _ := clients.Do(t, harness.Request{Method: http.MethodGet, Path: path}).Object(t).Object["items"].([]any)
	for _, item := range items {
		object, _ := item.(map[string]any)
		metadata, _ := object["metadata"].(map[string]any)
		names = append(names, fmt.Sprint(metadata["name"]))
	}
	return names
}

// ready waits until an object is Ready.
func ready(t *testing.T, clients *harness.Clients, path string) {
	t.Helper()
	harness.Eventually(t, path+" is Ready", func() error {
		response, err := clients.Send(t.Context(), harness.Request{Method: http.MethodGet, Path: path})
		if err != nil {
			return err
		}
		text := bytes.ReplaceAll(response.Body, []byte(" "), nil)
		for condition := range bytes.SplitSeq(text, []byte("}")) {
			if bytes.Contains(condition, []byte(`"type":"Ready"`)) && bytes.Contains(condition, []byte(`"status":"True"`)) {
				return nil
			}
		}
		return fmt.Errorf("not Ready: %.1000s", response.Body)
	})
}

// newSubscribers starts an HTTP server for the attackers' Triggers, and returns its URL. It answers to /reply with an event of a
// mebibyte that no Trigger matches.
func newSubscribers(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // it is not used
		if r.URL.Path != "/reply" {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		for name, value := range event("reply") {
			w.Header().Set(name, value)
		}
		w.Write(mebibyte) //nolint:errcheck // the server may be gone
	})}
	go server.Serve(listener) //nolint:errcheck // ends by Close
	t.Cleanup(func() { server.Close() })
	return "http://" + listener.Addr().String()
}

func addressOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	// Names such as localhost may have several addresses.
	return net.JoinHostPort("127.0.0.1", u.Port())
}

// tlsConfig returns the TLS configuration of clients for HTTP/1.1.
func tlsConfig(clients *harness.Clients) (*tls.Config, error) {
	config, err := rest.TLSConfigFor(clients.Config)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	return config, nil
}

// quietUser sends requests and events in the quiet namespace, from an address of its own. It keeps a connection for two of them only, because
// clients must get new connections during the attack too.
type quietUser struct {
	client *http.Client
	target *target
	sink   *harness.Subscriber
}

func newQuietUser(t *testing.T, a *target, clients *harness.Clients) *quietUser {
	t.Helper()
	q := &quietUser{target: a, sink: harness.NewSink(t).At("/quiet")}
	create(t, clients, harness.KindOf("Trigger").Collection(quiet), named("Trigger", "events", fmt.Sprintf(`{"broker":"events","subscriber":{"uri":%q}}`, q.sink.URL)))
	ready(t, clients, harness.KindOf("Trigger").Path(quiet, "events"))
	// Limits by the address of the client are not the subject.
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	q.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: dialer.DialContext}}
	return q
}

// start sends requests and events until stop is called, which reports all that failed and waits for the events.
func (q *quietUser) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var sent []string
	every := func(do func(n int) error) {
		running.Go(func() {
			tick := time.NewTicker(quietEvery)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := do(n); err != nil {
					t.Errorf("quiet namespace: %v", err)
				}
			}
		})
	}
	requests := 0
	every(func(n int) error {
		requests++
		return q.request(t.Context(), n)
	})
	every(func(n int) error {
		id := fmt.Sprintf("quiet-%d", n)
		sent = append(sent, id)
		return q.event(t.Context(), n, id)
	})
	return func() {
		cancel()
		running.Wait()
		waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := q.sink.AwaitAll(waiting, sent); err != nil {
			t.Errorf("quiet namespace: %v", err)
		}
		t.Logf("quiet namespace: %d requests and %d events during the attack", requests, len(sent))
	}
}

func (q *quietUser) request(ctx context.Context, n int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+q.target.gateway, nil)
	if err != nil {
		return err
	}
	r.Host = "app." + quiet + ".localhost"
	return q.expect(r, n, http.StatusOK)
}

func (q *quietUser) event(ctx context.Context, n int, id string) error {
	header := event("quiet")
	header["Ce-Id"] = id
	r, err := post(ctx, q.target.broker, "", "/"+quiet+"/events", strings.NewReader("quiet"), header)
	if err != nil {
		return err
	}
	return q.expect(r, n, http.StatusAccepted)
}

// expect sends request n and checks the status of the response.
func (q *quietUser) expect(r *http.Request, n, code int) error {
	r.Close = n%2 == 1
	response, err := q.client.Do(r)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	err = errors.Join(err, response.Body.Close())
	if err == nil && response.StatusCode != code {
		err = fmt.Errorf("%s %s: code %d, want %d: %.500s", r.Method, r.URL, response.StatusCode, code, body)
	}
	return err
}
