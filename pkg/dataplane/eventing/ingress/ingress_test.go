package ingress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// memory is a fake event log.
type memory struct {
	mu       sync.Mutex
	accepted []acceptance
	// err is the error of each call.
	err error
}

type acceptance struct {
	To     eventing.Key
	Events []string
}

func (l *memory) accept(_ context.Context, to eventing.Key, events []*event.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	a := acceptance{To: to}
	for _, e := range events {
		id, _ := e.Get(event.ID)
		a.Events = append(a.Events, id+" "+string(e.Data))
	}
	l.accepted = append(l.accepted, a)
	return nil
}

var (
	orders   = eventing.Key{Kind: eventing.Broker, Namespace: "default", Name: "orders"}
	channel  = eventing.Key{Kind: eventing.Channel, Namespace: "default", Name: "orders"}
	channels = eventing.Key{Kind: eventing.Broker, Namespace: "channels", Name: "orders"}
)

func exists(key eventing.Key) bool { return key == orders || key == channel || key == channels }

func options(l *memory) Options {
	return Options{Accept: l.accept, Exists: exists}
}

func start(t *testing.T, o Options) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	return server
}

// request returns a POST of an event in binary mode, with additional headers as pairs of name and value. An empty value removes
// a header.
func request(t *testing.T, url string, body io.Reader, pairs ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, pairs := range [][]string{{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, pairs} {
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Del(pairs[i])
			if pairs[i+1] != "" {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	return r
}

type reply struct {
	code   int
	header http.Header
	body   string
}

func do(t *testing.T, r *http.Request) reply {
	t.Helper()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{code: res.StatusCode, header: res.Header, body: string(body)}
}

// TestCodes covers eventing Event Acknowledgement and Delivery Retry-1: the status code reports whether events were accepted.
func TestCodes(t *testing.T) {
	const structured, batch = "application/cloudevents+json", "application/cloudevents-batch+json"
	const json = `{"specversion":"1.0","id":"2","source":"/s","type":"t","data":{"a": 1.0}}`
	var none []string
	for name, test := range map[string]struct {
		headers []string
		body    string
		chunked bool
		code    int
		answer  string
		events  []string
	}{
		"binary":                          {nil, "x", false, 202, "", []string{"1 x"}},
		"binary, chunked":                 {nil, "x", true, 202, "", []string{"1 x"}},
		"binary, no data":                 {nil, "", false, 202, "", []string{"1 "}},
		"maximum size":                    {nil, strings.Repeat("x", 1<<20), false, 202, "", []string{"1 " + strings.Repeat("x", 1<<20)}},
		"so, and chunked":                 {nil, strings.Repeat("x", 1<<20), true, 202, "", []string{"1 " + strings.Repeat("x", 1<<20)}},
		"structured":                      {[]string{"content-type", structured}, json, false, 202, "", []string{`2 {"a": 1.0}`}},
		"batched":                         {[]string{"content-type", batch}, "[" + json + "," + json + "]", false, 202, "", []string{`2 {"a": 1.0}`, `2 {"a": 1.0}`}},
		"empty batch":                     {[]string{"content-type", batch}, "[]", false, 202, "", none},
		"identity":                        {[]string{"content-encoding", "Identity"}, "x", false, 202, "", []string{"1 x"}},
		"no event":                        {[]string{"ce-specversion", ""}, "x", false, 400, "the request is not a CloudEvent: neither is there a header ce-specversion", none},
		"no id":                           {[]string{"ce-id", ""}, "x", false, 400, "the request is not a CloudEvent: attribute 'id' must be given", none},
		"header injection":                {[]string{"ce-ext", "a%0d%0ab: c"}, "x", false, 400, "the request is not a CloudEvent: attribute 'ext' may not contain control characters", none},
		"broken JSON":                     {[]string{"content-type", structured}, "{", false, 400, "the request is not a CloudEvent: it must be valid JSON", none},
		"one event of a batch is invalid": {[]string{"content-type", batch}, "[" + json + ",{}]", false, 400, "the request is not a CloudEvent: event [1] of the batch: ", none},
		"too large":                       {nil, strings.Repeat("x", 1<<20+1), false, 413, "the body may have at most 1048576 bytes", none},
		"too large, chunked":              {nil, strings.Repeat("x", 1<<20+1), true, 413, "the body may have at most 1048576 bytes", none},
		"10 MiB":                          {nil, strings.Repeat("x", 10<<20), false, 413, "the body may have at most 1048576 bytes", none},
		"10 MiB, chunked":                 {nil, strings.Repeat("x", 10<<20), true, 413, "the body may have at most 1048576 bytes", none},
		"10 MiB, after 100 Continue":      {[]string{"expect", "100-continue"}, strings.Repeat("x", 10<<20), false, 413, "the body may have at most 1048576 bytes", none},
		"content coding":                  {[]string{"content-encoding", "gzip"}, "x", false, 415, `the content coding "gzip" is not supported`, none},
		"event format":                    {[]string{"content-type", "application/cloudevents+xml", "ce-specversion", ""}, "x", false, 415, "the request is not a CloudEvent: the event format is not supported", none},
	} {
		t.Run(name, func(t *testing.T) {
			l := &memory{}
			var body io.Reader = strings.NewReader(test.body)
			if test.chunked {
				body = io.MultiReader(body)
			}
			got := do(t, request(t, start(t, options(l)).URL+"/default/orders", body, test.headers...))
			if got.code != test.code || !strings.HasPrefix(got.body, test.answer) || (test.answer == "") != (got.body == "") {
				t.Errorf("got %d %q, want %d %q", got.code, got.body, test.code, test.answer)
			}
			if test.code >= 400 && got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("the answer's content type is %q", got.header.Get("Content-Type"))
			}
			var want []acceptance
			if test.events != nil {
				want = []acceptance{{orders, test.events}}
			}
			if diff := cmp.Diff(want, l.accepted); diff != "" {
				t.Errorf("accepted: %s", diff)
			}
		})
	}
}

// TestRefused covers eventing Event Acknowledgement and Delivery Retry-1: the responses to events that were not made durable,
// which state whether and when to retry.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		err        error
		code       int
		retryAfter string
		answer     string
	}{
		"full":        {&Refusal{Status: 503, RetryAfter: 1500 * time.Millisecond, Message: "the log is full"}, 503, "2", "the log is full\n"},
		"overload":    {fmt.Errorf("accepting: %w", &Refusal{Status: 429, Message: "slow down"}), 429, "1", "slow down\n"},
		"gone":        {&Refusal{Status: 404, Message: "gone"}, 404, "", "gone\n"},
		"cancelled":   {fmt.Errorf("waiting: %w", context.Canceled), 503, "1", "waiting: context canceled\n"},
		"timed out":   {context.DeadlineExceeded, 503, "1", "context deadline exceeded\n"},
		"other error": {errors.New("oops"), 500, "", "oops\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := do(t, request(t, start(t, options(&memory{err: test.err})).URL+"/default/orders", nil))
			if got.code != test.code || got.header.Get("Retry-After") != test.retryAfter || got.body != test.answer {
				t.Errorf("got %d, Retry-After %q, %q, want %d, %q, %q",
					got.code, got.header.Get("Retry-After"), got.body, test.code, test.retryAfter, test.answer)
			}
		})
	}
}

// TestMethods covers eventing HTTP Verbs-1 and -3: events are sent by POST, and OPTIONS lists the methods.
func TestMethods(t *testing.T) {
	server := start(t, options(&memory{}))
	for _, test := range []struct {
		method, path string
		code         int
		allow        string
	}{
		{http.MethodPost, "/default/orders", 202, ""},
		{http.MethodGet, "/default/orders", 405, allowed},
		{http.MethodHead, "/default/orders", 405, allowed},
		{http.MethodPut, "/default/orders", 405, allowed},
		{http.MethodDelete, "/default/orders", 405, allowed},
		{http.MethodPatch, "/channels/default/orders", 405, allowed},
		{"BREW", "/default/orders", 405, allowed},
		{http.MethodOptions, "/default/orders", 200, allowed},
		{http.MethodOptions, "/channels/default/orders", 200, allowed},
		{http.MethodOptions, "/default/unknown", 404, ""},
	} {
		t.Run(test.method+" "+test.path, func(t *testing.T) {
			r := request(t, server.URL+test.path, nil)
			r.Method = test.method
			got := do(t, r)
			if got.code != test.code || got.header.Get("Allow") != test.allow {
				t.Errorf("got %d, Allow %q, want %d, %q", got.code, got.header.Get("Allow"), test.code, test.allow)
			}
			if got.header.Get("WebHook-Allowed-Origin") != "" {
				t.Error("the response allows an origin without a request for it")
			}
		})
	}
	r := request(t, server.URL+"/default/orders", nil, "WebHook-Request-Origin", "events.example.com")
	r.Method = http.MethodOptions
	got := do(t, r)
	if origin, rate := got.header.Get("WebHook-Allowed-Origin"), got.header.Get("WebHook-Allowed-Rate"); origin != "events.example.com" || rate != "*" {
		t.Errorf("origin %q is allowed rate %q, want events.example.com and *", origin, rate)
	}
}

// TestShortenedHost sends to a Channel whose name is too long for its host name.
func TestShortenedHost(t *testing.T) {
	l := &memory{}
	o := options(l)
	short := eventing.Key{Kind: eventing.Channel, Namespace: "default", Name: "shortened"}
	o.Find = func(key eventing.Key) (eventing.Key, bool) { return channel, key == short }
	server := start(t, o)
	for host, want := range map[string]int{
		"shortened-kn-channel.default.svc.cluster.local": 202, "shortened-kn-channel.other.svc": 404, "unknown-kn-channel.default.svc": 404,
	} {
		r := request(t, server.URL, nil)
		r.Host = host
		if got := do(t, r); got.code != want {
			t.Errorf("%s: got %d %q, want %d", host, got.code, got.body, want)
		}
	}
	if len(l.accepted) != 1 || l.accepted[0].To != channel {
		t.Errorf("accepted %v, want one event for %s", l.accepted, channel)
	}
}

// TestTargets covers the addresses of brokers and channels.
func TestTargets(t *testing.T) {
	for _, test := range []struct {
		host, path string
		want       eventing.Key
	}{
		{"x", "/default/orders", orders},
		{"x", "/default/orders/", orders},
		{"x", "/default/orders?a=b", orders},
		{"orders-kn-channel.default.svc", "/default/orders", orders},
		{"x", "/channels/default/orders", channel},
		{"x", "/channels/default/orders/", channel},
		{"x", "/channels/orders", channels},
		{"orders-kn-channel.default.svc.cluster.local", "/", channel},
		{"orders-kn-channel.default.svc.cluster.local:8080", "", channel},
		{"Orders-KN-channel.default.svc", "/", channel},
		{"orders-kn-channel.default", "/?x", channel},
		{"orders-kn-channel.default.svc.", "/", channel},
		{"orders-kn-channel.default.example.com", "/", eventing.Key{}},
		{"orders-kn-channel", "/", eventing.Key{}},
		{"-kn-channel.default.svc", "/", eventing.Key{}},
		{"orders.default.svc", "/", eventing.Key{}},
		{"[::1]:80", "/", eventing.Key{}},
		{"x", "/", eventing.Key{}},
		{"x", "/default", eventing.Key{}},
		{"x", "/default/unknown", eventing.Key{}},
		{"x", "/other/orders", eventing.Key{}},
		{"x", "/default/orders/x", eventing.Key{}},
		{"x", "//orders", eventing.Key{}},
		{"x", "/default//", eventing.Key{}},
		{"x", "/channels/default/unknown", eventing.Key{}},
		{"x", "/channels/default/orders/x", eventing.Key{}},
		{"x", "/channels/default%2Forders%2Fx", eventing.Key{}},
	} {
		t.Run(test.host+test.path, func(t *testing.T) {
			l := &memory{}
			r := request(t, start(t, options(l)).URL+test.path, nil)
			r.Host = test.host
			got := do(t, r)
			if test.want == (eventing.Key{}) {
				if got.code != 404 || len(l.accepted) > 0 {
					t.Errorf("got %d %q, accepted %v, want 404", got.code, got.body, l.accepted)
				}
				return
			}
			if diff := cmp.Diff([]acceptance{{test.want, []string{"1 "}}}, l.accepted); got.code != 202 || diff != "" {
				t.Errorf("got %d %q: %s", got.code, got.body, diff)
			}
		})
	}
}

// TestUnknownBeforeBody checks that no body is read for a stream that does not exist.
func TestUnknownBeforeBody(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/default/unknown", unreadable{t})
	New(options(&memory{})).ServeHTTP(w, r)
	if w.Code != 404 || w.Body.String() != "Broker default/unknown does not exist\n" {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
}

type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// TestMemory checks that the memory of all bodies is bounded, that batches count eight times, and that memory is released.
func TestMemory(t *testing.T) {
	l, accepting, proceed := &memory{}, make(chan struct{}), make(chan struct{})
	o := options(l)
	o.Accept = func(ctx context.Context, to eventing.Key, events []*event.Event) error {
		accepting <- struct{}{}
		<-proceed
		return l.accept(ctx, to, events)
	}
	o.Budget = flow.NewBudget(1, LargestRequest(1<<20))
	server := start(t, o)
	large := bytes.Repeat([]byte("x"), 1<<20)
	const begin, end = `[{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"`, `"}]`
	batch := []byte(begin + strings.Repeat("x", len(large)-len(begin)-len(end)) + end)
	post := func() <-chan reply {
		replies, r := make(chan reply, 1), request(t, server.URL+"/default/orders", bytes.NewReader(batch),
			"content-type", "Application/CloudEvents-Batch+JSON; charset=utf-8")
		go func() { replies <- do(t, r) }()
		select {
		case <-accepting:
		case got := <-replies:
			t.Fatalf("alone, a batch got %d %s", got.code, got.body)
		}
		return replies
	}
	first := post()
	second := do(t, request(t, server.URL+"/default/orders", bytes.NewReader(large)))
	if second.code != 503 || second.header.Get("Retry-After") != "1" {
		t.Errorf("besides a large batch, a body got %d, Retry-After %q, want 503, 1", second.code, second.header.Get("Retry-After"))
	}
	for range 2 {
		proceed <- struct{}{}
		if got := <-first; got.code != 202 {
			t.Errorf("got %d %s, want 202", got.code, got.body)
		}
		first = post()
	}
	proceed <- struct{}{}
	<-first
}

// TestReusedMemory checks that concurrent events do not mix although their memory is reused.
func TestReusedMemory(t *testing.T) {
	l := &memory{}
	server := start(t, options(l))
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for j := range 20 {
				id := fmt.Sprintf("%d-%d", i, j)
				if got := do(t, request(t, server.URL+"/default/orders", strings.NewReader(strings.Repeat(id, 1+j*200)), "ce-id", id)); got.code != 202 {
					t.Errorf("got %d %s", got.code, got.body)
				}
			}
		})
	}
	running.Wait()
	if len(l.accepted) != 160 {
		t.Fatalf("%d events were accepted, want 160", len(l.accepted))
	}
	for _, a := range l.accepted {
		id, data, _ := strings.Cut(a.Events[0], " ")
		if strings.ReplaceAll(data, id, "") != "" || data == "" {
			t.Errorf("event %s has the data %.50q", id, data)
		}
	}
}

// TestLargeCarriedHeaders checks that a batch is rejected if the headers that each of its events carries are too large.
func TestLargeCarriedHeaders(t *testing.T) {
	l := &memory{}
	server := start(t, options(l))
	const one = `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`
	batch := "[" + strings.Repeat(one+",", 1999) + one + "]"
	for size, want := range map[int]int{60_000: http.StatusRequestHeaderFieldsTooLarge, event.MaxHeaderBytes - len("knative-x"): http.StatusAccepted} {
		got := do(t, request(t, server.URL+"/default/orders", strings.NewReader(batch),
			"content-type", "application/cloudevents-batch+json", "knative-x", strings.Repeat("x", size)))
		if got.code != want || want != http.StatusAccepted && !strings.Contains(got.body, "at most 8192 bytes") {
			t.Errorf("with a header of %d bytes, the batch got %d %s, want %d", size, got.code, got.body, want)
		}
	}
}
