package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/component-base/metrics"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// TestTraceparent covers which traces are continued.
func TestTraceparent(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	flags := map[string]string{"00": "00", "01": "01", "02": "02", "ff": "03", "98": "00"}
	for value, continued := range map[string]bool{
		"00-" + id + "-" + parent + "-00":                      true,
		"00-" + id + "-" + parent + "-02":                      true,
		"00-" + id + "-" + parent + "-ff":                      true,
		"00-" + id + "-" + parent + "-98":                      true,
		"01-" + id + "-" + parent + "-01-more":                 true,
		"00-" + id + "-" + parent + "-01-more":                 false,
		"ff-" + id + "-" + parent + "-01":                      false,
		"00-" + strings.ToUpper(id) + "-" + parent + "-01":     false,
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01": false,
		"00-" + id + "-" + strings.Repeat("0", 16) + "-01":     false,
		"00-" + id + "-" + parent:                              false,
		"":                                                     false,
		"00-" + strings.Repeat("g", 32) + "-" + parent + "-01": false,
		"00_" + id + "-" + parent + "-01":                      false,
		"00-" + id + "-" + parent + "-0x":                      false,
		"cc-" + id + "-" + parent + "-01xmore":                 false,
		"00-" + id[:31] + "-" + parent + "0-01":                false,
		"00-" + id + "-" + strings.Repeat("\x00", 16) + "-01":  false,
	} {
		var got trace
		if begins := got.set(value); begins == continued {
			t.Errorf("%q begins a trace: %v", value, begins)
		}
		if (string(got.id()) == id) != continued {
			t.Errorf("%q becomes %q, want continued %v", value, got[:], continued)
		}
		if continued && (string(got[53:]) != flags[value[53:55]] || string(got[36:52]) == parent) {
			t.Errorf("%q becomes %q, want its flags and another parent", value, got[:])
		}
		if !validTraceparent(string(got[:])) {
			t.Errorf("%q becomes %q, which is invalid", value, got[:])
		}
	}
}

// TestForwardedElement covers how peers and hosts are written (RFC 7239).
func TestForwardedElement(t *testing.T) {
	for peer, want := range map[netip.Addr]string{
		netip.MustParseAddr("10.0.0.1"):   `for=10.0.0.1;host="a\"b";proto=http`,
		netip.MustParseAddr("fe80::1%lo"): `for="[fe80::1]";host="a\"b";proto=http`,
		{}:                                `for=unknown;host="a\"b";proto=http`,
	} {
		if got := string(appendForwarded(nil, peer, `a"b`, false)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestAccessLog covers that each line is valid JSON for any input of clients.
func TestAccessLog(t *testing.T) {
	var out bytes.Buffer
	dropped := 0
	l := newAccessLog(&out, func() { dropped++ })
	var id trace
	id.set("")
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	nasty := "a\"\\\n\x00\x7f\xff\u00e9\u2028"
	l.write(&entry{
		time: now, duration: 1500 * time.Microsecond, status: 200, namespace: "default", revision: "r", instance: "i", trace: &id,
		peer: netip.MustParseAddrPort("[::1]:80"), requestBytes: 1, responseBytes: 2, err: io.ErrUnexpectedEOF,
		head: &http1.Head{Method: []byte("GET"), Host: []byte(nasty), Target: []byte("/x"), Fields: []http1.Field{{Name: []byte("user-agent"), Value: []byte(strings.Repeat("x", 3000))}}},
	})
	l.write(&entry{time: now, status: 404})
	if err := l.flush(); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2: %q", len(lines), out.String())
	}
	var got map[string]any
	if err := json.Unmarshal(lines[0], &got); err != nil {
		t.Fatalf("%s: %v", lines[0], err)
	}
	for name, want := range map[string]any{
		"time": "2026-01-02T03:04:05.000006Z", "status": 200.0, "method": "GET", "path": "/x", "duration": 0.0015,
		"host": "a\"\\\n\x00\x7f\ufffd\u00e9\u2028", "bytesIn": 1.0, "bytesOut": 2.0, "remote": "[::1]:80",
		"revision": "r", "namespace": "default", "instance": "i", "error": "unexpected EOF", "traceId": string(id.id()),
		"userAgent": strings.Repeat("x", maxLogged),
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	for len(l.lines) <= maxUnwritten {
		l.write(&entry{time: now})
	}
	l.write(&entry{time: now})
	if dropped != 1 {
		t.Errorf("%d lines were dropped, want 1", dropped)
	}
}

// TestAccessLogIsWritten covers that lines are written soon, at the end as well, and that nothing happens without lines.
func TestAccessLogIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes := make(chan int, 10)
		l := newAccessLog(writerFunc(func(lines []byte) (int, error) {
			writes <- bytes.Count(lines, []byte("\n"))
			return len(lines), nil
		}), func() {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.run(ctx)
		}()
		for range 2 {
			<-time.After(time.Hour)
			began := time.Now()
			for range 3 {
				l.write(&entry{time: began})
			}
			if lines := <-writes; lines != 3 || time.Since(began) != flushInterval {
				t.Errorf("%d lines were written after %s, want 3 after %s", lines, time.Since(began), flushInterval)
			}
		}
		l.write(&entry{})
		cancel()
		<-done
		if lines := <-writes; lines != 1 || len(writes) != 0 {
			t.Errorf("%d lines were written at the end, and %d times more", lines, len(writes))
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// gather returns the values of the gateway's counters and gauges, and the counts of its histograms, by name and label values.
func gather(t *testing.T, registry metrics.KubeRegistry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			name := strings.TrimPrefix(family.GetName(), "knative_gateway_")
			for _, label := range m.Label {
				name += " " + label.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}

// TestMetrics covers the metrics of a cold start, and that the series are deleted with their Revision.
func TestMetrics(t *testing.T) {
	for _, forwarder := range forwarders {
		t.Run(forwarder.name, func(t *testing.T) {
			app := listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			registry := metrics.NewKubeRegistry()
			activated := make(chan routing.Key, 1)
			spec := revision(1)
			spec.Service, spec.Configuration = "s", "c"
			b := serve(t, Options{StandardOnly: forwarder.standardOnly, Register: registry.MustRegister, Activate: func(key routing.Key) { activated <- key }}, spec, nil)
			go func() { b.SetInstances(<-activated, []workload.Instance{{Name: "a", Address: app}}) }()
			b.do(t, b.request(t, http.MethodGet, nil))
			other := b.request(t, http.MethodGet, nil)
			other.Host = "other"
			b.do(t, other)
			malformed := b.request(t, http.MethodGet, nil)
			malformed.Host = "a b"
			if res, _ := b.do(t, malformed); res.StatusCode != http.StatusBadRequest {
				t.Errorf("a malformed host: %s", res.Status)
			}
			if err := b.stop(); err != nil {
				t.Fatal(err)
			}
			got := gather(t, registry)
			for name, want := range map[string]float64{
				"refused_requests_total 400":             1,
				"requests_total 200 c default r s":       1,
				"unknown_host_requests_total":            1,
				"request_duration_seconds c default r s": 1,

				"kn_serving_invocation_duration_seconds 200 default c r s":   1,
				"http_server_request_duration_seconds GET 200 default c r s": 1,
				"kn_revision_request_queued default r":                       0,
				"kn_revision_request_active default r":                       0,

				"queue_wait_seconds c default r s":            1,
				"cold_start_seconds c default scheduling r s": 1,
				"cold_start_seconds c default starting r s":   1,
				"cold_start_seconds c default forwarding r s": 1,
				"in_flight_requests c default r s":            0,
				"queued_requests c default r s":               0,
			} {
				if v, ok := got[name]; !ok || v != want {
					t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
				}
			}
			b.DeleteRevision(key("r"))
			for name := range gather(t, registry) {
				if strings.Contains(name, " default ") {
					t.Errorf("%s is still registered", name)
				}
			}
		})
	}
}

// TestRefusedOfHTTP2 covers the metrics and the access log of requests that the HTTP/2 server does not serve.
func TestRefusedOfHTTP2(t *testing.T) {
	registry, log := metrics.NewKubeRegistry(), &syncBuffer{}
	b := serve(t, Options{Register: registry.MustRegister, AccessLog: log}, revision(0), nil)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i, path := range []string{"malformed", "/large"} {
		block.Reset()
		fields := []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "app"}, {Name: ":path", Value: path}}
		if i == 1 {
			fields = append(fields, slices.Repeat([]hpack.HeaderField{{Name: "a", Value: "b"}}, 1001)...)
		}
		for _, f := range fields {
			if err := encoder.WriteField(f); err != nil {
				t.Fatal(err)
			}
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
		}); err != nil {
			t.Fatal(err)
		}
	}
	for answered := false; !answered; {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		_, isData := frame.(*http2.DataFrame)
		answered = isData && frame.Header().StreamID == 3
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	got := gather(t, registry)
	for status, path := range map[int]string{http.StatusBadRequest: "malformed", http.StatusRequestHeaderFieldsTooLarge: "/large"} {
		if n := got[fmt.Sprint("refused_requests_total ", status)]; n != 1 {
			t.Errorf("%v requests are counted for %d, want 1", n, status)
		}
		if line := fmt.Sprintf(`"protocol":"HTTP/2.0","method":"GET","host":"app","path":%q,"status":%d,`, path, status); !strings.Contains(log.String(), line) {
			t.Errorf("no line with %s in %s", line, log.String())
		}
	}
}

// patient is a pool.Waiter that waits forever.
type patient struct{}

func (patient) Queued() (context.Context, context.CancelFunc) { return context.Background(), func() {} }

func (patient) Describe() (string, time.Time) { return "", time.Time{} }

// TestForwardingEndsWithFirstByte covers that the last phase of a cold start ends when the response starts.
func TestForwardingEndsWithFirstByte(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	fake := clocktesting.NewFakePassiveClock(time.Now())
	g := New(Options{Register: registry.MustRegister, Clock: fake})
	g.SetRevision(revision(0))
	p := poolOf(g)
	x := g.chain.begin(inbound{head: &http1.Head{}}, p, nil)
	grants := make(chan pool.Grant)
	go func() { grants <- x.request.Acquire(patient{}) }()
	for waiting(g) == 0 {
		<-time.After(time.Millisecond)
	}
	g.SetInstances(key("r"), ready("a"))
	<-grants
	fake.SetTime(fake.Now().Add(time.Second))
	x.ResponseStarted()
	fake.SetTime(fake.Now().Add(time.Minute))
	x.result.Status = http.StatusOK
	x.end()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() == "knative_gateway_cold_start_seconds" {
			for _, m := range family.Metric {
				sum += m.GetHistogram().GetSampleSum()
			}
		}
	}
	if sum != 1 {
		t.Errorf("the phases took %v s, want 1", sum)
	}
}

// TestTagHeader covers that the tag header selects a tag of the host if it is enabled.
func TestTagHeader(t *testing.T) {
	enabled := false
	g := New(Options{TagHeader: func() bool { return enabled }})
	for _, name := range []string{"r", "tagged"} {
		g.SetRevision(&routing.Revision{Key: key(name)})
	}
	g.SetRoute(&routing.Route{Key: key("x"), Hosts: []routing.Host{{
		Name: "x", Targets: []routing.Target{{Revision: key("r"), Percent: 100}}, Tags: map[string]routing.Key{"t": key("tagged")},
	}}})
	for _, test := range []struct {
		tag     string
		enabled bool
		want    string
	}{{"t", true, "tagged"}, {"t", false, "r"}, {"u", true, "r"}, {"", true, "r"}} {
		enabled = test.enabled
		head := &http1.Head{Host: []byte("x"), Fields: []http1.Field{{Name: []byte(tagField), Value: []byte(test.tag)}}}
		in := inbound{head: head}
		host, known := g.chain.lookup(&in)
		if !known || !g.chain.fast(host, &in) {
			t.Fatalf("%+v: not for the fast path", test)
		}
		if got := g.chain.choose(host, &in).Key().Name; got != test.want {
			t.Errorf("%+v: chose %s", test, got)
		}
	}
}

// TestMixedProtocols covers that the Revision of a request is chosen only once if the Revisions of a host speak different protocols:
// the fast path declines the request before (serving 8-6).
func TestMixedProtocols(t *testing.T) {
	g := New(Options{})
	g.SetRevision(&routing.Revision{Key: key("a")})
	g.SetRoute(&routing.Route{Key: key("r"), Hosts: []routing.Host{{Name: "h", Targets: []routing.Target{
		{Revision: key("a"), Percent: 50}, {Revision: key("b"), Percent: 50},
	}}}})
	for _, spec := range []*routing.Revision{nil, {Key: key("b"), Protocol: routing.H2C}} {
		if spec != nil {
			g.SetRevision(spec)
		}
		if g.chain.serve(inbound{head: &http1.Head{Host: []byte("h")}}, nil) {
			t.Error("the fast path serves the request")
		}
	}
	if n := routetable.Lookup(g.table, "h").Choices(); n != 0 {
		t.Errorf("%d choices were made", n)
	}
}

// TestHostileRequests covers that ambiguous requests are rejected or reach the app as one request.
func TestHostileRequests(t *testing.T) {
	seen := make(chan string, 10)
	b := serve(t, Options{}, revision(0), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		seen <- r.URL.Path
	}))
	for name, test := range map[string]struct {
		request string
		want    int
	}{
		"two hosts":           {"GET / HTTP/1.1\r\nHost: app\r\nHost: other\r\n\r\n", 400},
		"no host":             {"GET / HTTP/1.1\r\n\r\n", 400},
		"bad name":            {"GET / HTTP/1.1\r\nHost: app\r\nbad name: x\r\n\r\n", 400},
		"NUL":                 {"GET / HTTP/1.1\r\nHost: app\r\nx: a\x00b\r\n\r\n", 400},
		"space before colon":  {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length : 3\r\n\r\nabc", 400},
		"two lengths":         {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
		"length and chunks":   {"POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"unknown encoding":    {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
		"bad chunk":           {"POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400},
		"header bomb":         {"GET / HTTP/1.1\r\nHost: app\r\nx: " + strings.Repeat("x", 200<<10) + "\r\n\r\n", 431},
		"tunnel":              {"CONNECT app:80 HTTP/1.1\r\nHost: app:80\r\n\r\n", 405},
		"other absolute host": {"GET http://other/ HTTP/1.1\r\nHost: app\r\n\r\n", 404},
	} {
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		go io.WriteString(conn, test.request) //nolint:errcheck // the gateway need not read all of a rejected request
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v, want %d", name, err, test.want)
			continue
		}
		res.Body.Close()
		if res.StatusCode != test.want {
			t.Errorf("%s: %s, want %d", name, res.Status, test.want)
		}
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	for len(seen) > 0 {
		if path := <-seen; path != "/" {
			t.Errorf("the app got %s", path)
		}
	}
}

// TestServerSentEvents covers that events arrive as soon as the app flushes them.
func TestServerSentEvents(t *testing.T) {
	next := make(chan bool)
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
	})
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		res, err := b.client.Do(send())
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		reader := bufio.NewReader(res.Body)
		for i := range 3 {
			line, err := reader.ReadString('\n')
			if err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("%q, %v, want event %d", line, err, i)
			}
			if _, err := reader.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			next <- true
		}
	})
}

// TestUpgradeToH2C covers that no client can upgrade to h2c and send requests that the gateway does not route.
func TestUpgradeToH2C(t *testing.T) {
	seen := make(chan string, 1)
	b := serve(t, Options{}, revision(0), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Upgrade") + r.Header.Get("Http2-Settings")
	}))
	r := b.request(t, http.MethodGet, nil)
	for name, value := range map[string]string{"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "H2C", "Http2-Settings": "AAMAAABk"} {
		r.Header.Set(name, value)
	}
	if res, _ := b.do(t, r); res.StatusCode != http.StatusOK {
		t.Errorf("%s, want 200", res.Status)
	}
	if got := <-seen; got != "" {
		t.Errorf("the backend got %q, want no upgrade", got)
	}
}

// TestClientsThatSendNothing covers that connections without a request do not lock out others.
func TestClientsThatSendNothing(t *testing.T) {
	b := serve(t, Options{StopTimeout: time.Second}, revision(0), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 100 {
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HT"); err != nil {
			t.Fatal(err)
		}
	}
	if res, _ := b.do(t, b.request(t, http.MethodGet, nil)); res.StatusCode != http.StatusOK {
		t.Errorf("%s, want 200", res.Status)
	}
	began := time.Now()
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > headerTimeout*9/10 {
		t.Errorf("stopping took %v", took)
	}
}
