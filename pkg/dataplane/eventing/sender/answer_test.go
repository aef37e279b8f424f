package sender

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestAnswers covers each row of the table in eventing Event Acknowledgement and Delivery Retry-3.
func TestAnswers(t *testing.T) {
	type outcome struct{ delivered, retryable bool }
	delivered, final, retried := outcome{true, false}, outcome{}, outcome{false, true}
	s := newSender(t, Options{})
	for code, want := range map[int]outcome{
		200: delivered, 201: delivered, 202: delivered, 203: delivered, 204: delivered, 205: delivered, 206: delivered, 299: delivered,
		300: final, 301: final, 302: final, 303: final, 304: final, 305: final, 307: final, 308: final, 399: final,
		400: final, 401: final, 402: final, 403: final, 405: final, 406: final, 407: final, 410: final, 411: final, 412: final, 413: final,
		414: final, 415: final, 416: final, 417: final, 418: final, 421: final, 422: final, 425: final, 426: final, 431: final, 451: final, 499: final,
		404: retried, 408: retried, 409: retried, 429: retried,
		500: retried, 501: retried, 502: retried, 503: retried, 504: retried, 505: retried, 511: retried, 599: retried,
		600: final, 999: final,
	} {
		requests := 0
		to := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			requests++
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
		})
		for _, expect := range []bool{false, true} {
			requests = 0
			result := s.Send(t.Context(), order(), to, Attempt{ExpectReply: expect})
			if result.Code != code || (result.Err == nil) != want.delivered || result.Retryable != want.retryable || result.Reply != nil {
				t.Errorf("%d: code %d, error %v, retryable %v, reply %v", code, result.Code, result.Err, result.Retryable, result.Reply)
			}
			if !want.delivered && result.Err.Error() != strings.TrimSpace(fmt.Sprintf("POST %s/: %d %s", to.URL, code, http.StatusText(code))) {
				t.Errorf("%d: error %v", code, result.Err)
			}
			if requests != 1 {
				t.Errorf("%d: %d requests", code, requests)
			}
		}
	}
}

// TestInterimAnswers covers the 1xx of eventing Event Acknowledgement and Delivery Retry-3: an error that is not retried if it is the last
// answer; otherwise the next answer counts.
func TestInterimAnswers(t *testing.T) {
	s := newSender(t, Options{})
	for _, tt := range []struct {
		name, answer string
		code         int
		err          string
		retryable    bool
	}{
		{"only 100", "HTTP/1.1 100 Continue\r\n\r\n", 100, "100 Continue", false},
		{"101", "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 101, "101 Switching Protocols", false},
		{"only 102", "HTTP/1.1 102 Processing\r\n\r\n", 102, "102 Processing", false},
		{"only 102 with a length", "HTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\n", 102, "102 Processing", false},
		{"only 199", "HTTP/1.0 199 Hm\r\n\r\n", 199, "199", false},
		{"103, then 202", "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", 202, "", false},
		{"102, then 503", "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 503 Gone\r\nContent-Length: 0\r\n\r\n", 503, "503 Service Unavailable", true},
		{"endless", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 1000), 102, "102 Processing", false},
	} {
		result := s.Send(t.Context(), order(), serveRaw(t, func(w io.Writer) { io.WriteString(w, tt.answer) }), Attempt{}) //nolint:errcheck // seen by the result
		if result.Code != tt.code || result.Retryable != tt.retryable {
			t.Errorf("%s: code %d, retryable %v", tt.name, result.Code, result.Retryable)
		}
		checkError(t, tt.name, result.Err, tt.err)
	}
}

// checkError checks for an error that ends with a text, or none.
func checkError(t *testing.T, name string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: error %v, want %q", name, err, want)
	}
}

// refusing is a URL at which nothing listens. The kernel assigns the port of a closed listener to the next one.
const refusing = "http://127.0.0.1:1"

// TestNoAnswer checks that deliveries without a response are retried, as the behaviour of brokers specifies.
func TestNoAnswer(t *testing.T) {
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	hang := serve(t, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() }) //nolint:errcheck // seen by the result
	raw := func(answer string) eventing.Endpoint { return raw(t, answer) }
	for _, tt := range []struct {
		name string
		to   eventing.Endpoint
		want string
	}{
		{"refused", eventing.Endpoint{URL: refusing}, "connection refused"},
		{"closed", raw(""), "EOF"},
		{"not HTTP", raw("SSH-2.0-x\r\n"), "is not an HTTP response"},
		{"header that does not end", raw("HTTP/1.1 200 OK\r\nA: b\r\n"), "EOF"},
		{"huge header", raw("HTTP/1.1 200 OK\r\nA: " + strings.Repeat("b", 1<<20) + "\r\n\r\n"), "exceed"},
		{"unknown authority", eventing.Endpoint{URL: secure.URL}, "certificate"},
		{"no certificate", eventing.Endpoint{URL: secure.URL, CACerts: "none"}, "hold no certificate in PEM"},
		{"timeout", hang, "no answer within 50ms"},
		{"timeout after an interim answer", serveRaw(t, func(w io.Writer) {
			io.WriteString(w, "HTTP/1.1 102 Processing\r\n\r\n") //nolint:errcheck // seen by the result
			<-t.Context().Done()
		}), "no answer within 50ms"},
	} {
		timeout := 10 * time.Second
		if strings.HasPrefix(tt.name, "timeout") {
			timeout = 50 * time.Millisecond
		}
		result := newSender(t, Options{}).Send(t.Context(), order(), tt.to, Attempt{Timeout: timeout, ExpectReply: true})
		if result.Code != 0 || !result.Retryable || result.RetryAfter != nil || result.Latency <= 0 {
			t.Errorf("%s: %+v", tt.name, result)
		}
		checkError(t, tt.name, result.Err, "POST "+tt.to.URL+"/: ")
		checkError(t, tt.name, result.Err, tt.want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if result := newSender(t, Options{}).Send(ctx, order(), hang, Attempt{}); !errors.Is(result.Err, context.Canceled) || !result.Retryable {
		t.Errorf("cancelled: %+v", result)
	}
}

// TestConnectTimeout checks that an attempt whose timeout ends while it connects says so, also if the connection sees that first.
func TestConnectTimeout(t *testing.T) {
	const timeout = 20 * time.Millisecond
	to := eventing.Endpoint{URL: "http://" + listenFull(t)}
	sender := newSender(t, Options{})
	var running sync.WaitGroup
	for range 500 {
		running.Go(func() {
			result := sender.Send(t.Context(), order(), to, Attempt{Timeout: timeout})
			checkError(t, "timeout", result.Err, "no answer within 20ms")
		})
	}
	running.Wait()
}

// listenFull returns the address of a listener that does not answer, because its queue of connections is full.
func listenFull(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return address
}

// TestReplies covers eventing Derived (Reply) Events-2.
func TestReplies(t *testing.T) {
	const structured = `{"specversion":"1.0","id":"2","source":"/reply","type":"reply","data":{"a":1}}`
	binary := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"2"}, "Ce-Source": {"/reply"}, "Ce-Type": {"reply"}, "Content-Type": {"text/plain"}}
	large := strings.Repeat("x", 2000)
	for _, tt := range []struct {
		name     string
		code     int
		header   http.Header
		body     string
		ignore   bool
		data     string
		reply    bool
		err      string
		retry    bool
		wantBody string
		replyErr string
	}{
		{name: "binary", code: 200, header: binary, body: "hi", reply: true, data: "hi"},
		{name: "binary, without data", code: 200, header: binary, reply: true},
		{name: "structured", code: 200, header: http.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}}, body: structured, reply: true, data: `{"a":1}`},
		{name: "maximum size", code: 200, header: binary, body: large[:1000], reply: true, data: large[:1000]},
		{name: "not expected", code: 200, header: binary, body: "hi", ignore: true},
		{name: "not expected, and not an event", code: 200, body: "hi", ignore: true},
		{name: "202 is never a reply", code: 202, header: binary, body: "hi"},
		{name: "201 is never a reply", code: 201, header: binary, body: "hi"},
		{name: "202 that is not an event", code: 202, body: "hi"},
		{name: "nothing", code: 200},
		{name: "500 is never a reply", code: 500, header: binary, body: "hi", err: "500 Internal Server Error", retry: true, wantBody: "hi"},
		{name: "no event", code: 200, body: "thanks", replyErr: "200 OK, but the answer is not a CloudEvent"},
		{name: "event without id", code: 200, header: http.Header{"Ce-Specversion": {"1.0"}}, replyErr: "is not a CloudEvent"},
		{name: "broken JSON", code: 200, header: http.Header{"Content-Type": {"application/cloudevents+json"}}, body: "{", replyErr: "is not a CloudEvent"},
		{name: "batch", code: 200, header: http.Header{"Content-Type": {"application/cloudevents-batch+json"}}, body: "[" + structured + "]",
			replyErr: "is not a CloudEvent"},
		{name: "too large", code: 200, header: binary, body: large, replyErr: "200 OK: the answer exceeds the limit of 1000 bytes"},
	} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunked %v", tt.name, chunked), func(t *testing.T) {
				to := serve(t, func(w http.ResponseWriter, _ *http.Request) {
					for name, values := range tt.header {
						w.Header()[name] = values
					}
					w.WriteHeader(tt.code)
					if chunked {
						w.(http.Flusher).Flush()
					}
					io.WriteString(w, tt.body) //nolint:errcheck // the sender may have read enough
				})
				result := newSender(t, Options{MaxReply: 1000}).Send(t.Context(), order(), to, Attempt{ExpectReply: !tt.ignore})
				if result.Code != tt.code || result.Retryable != tt.retry || (result.Reply != nil) != tt.reply {
					t.Fatalf("%+v", result)
				}
				checkError(t, tt.name, result.Err, tt.err)
				checkError(t, tt.name, result.ReplyErr, tt.replyErr)
				if tt.reply {
					if id, _ := result.Reply.Get(event.ID); id != "2" || string(result.Reply.Data) != tt.data {
						t.Errorf("reply %v with data %q", result.Reply.Attributes, result.Reply.Data)
					}
				}
				if string(result.Body) != tt.wantBody {
					t.Errorf("body %q, want %q", result.Body, tt.wantBody)
				}
			})
		}
	}
}

// TestAnnouncedReplies covers recipients that announce large answers: the sent ones are read, and no memory is allocated for the others.
func TestAnnouncedReplies(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nCe-Specversion: 1.0\r\nCe-Id: 2\r\nCe-Source: /a\r\nCe-Type: b\r\nContent-Length: 1000000\r\n\r\n"
	data := strings.Repeat("x", 1_000_000)
	s := newSender(t, Options{})
	for name, body := range map[string]string{"whole": data, "half": "half"} {
		to := serveRaw(t, func(w io.Writer) { io.WriteString(w, head+body) }) //nolint:errcheck // seen by the result
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		result := s.Send(t.Context(), order(), to, Attempt{ExpectReply: true})
		runtime.ReadMemStats(&after)
		switch used := after.TotalAlloc - before.TotalAlloc; {
		case body == data && (result.Reply == nil || string(result.Reply.Data) != data):
			t.Errorf("%s: %v", name, result.Err)
		case body != data && (result.Err == nil || used > 500_000):
			t.Errorf("%s: %v, with %d bytes of memory", name, result.Err, used)
		}
	}
}

// TestUnfinishedReplies covers answers whose body ends early, or arrives too slowly: their outcome is unknown.
func TestUnfinishedReplies(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nCe-Specversion: 1.0\r\nCe-Id: 2\r\nCe-Source: /a\r\nCe-Type: b\r\n"
	for name, answer := range map[string]string{
		"length":  head + "Content-Length: 10\r\n\r\nhalf",
		"chunked": head + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		early := serveRaw(t, func(w io.Writer) { io.WriteString(w, answer) }) //nolint:errcheck // seen by the result
		result := newSender(t, Options{}).Send(t.Context(), order(), early, Attempt{ExpectReply: true})
		if result.Code != 0 || !result.Retryable || result.Reply != nil {
			t.Errorf("%s, ends early: %+v", name, result)
		}
		checkError(t, name, result.Err, "200 OK, but the body of the answer ended early")

		slow := serveRaw(t, func(w io.Writer) { io.WriteString(w, answer); <-t.Context().Done() }) //nolint:errcheck // seen by the result
		result = newSender(t, Options{}).Send(t.Context(), order(), slow, Attempt{ExpectReply: true, Timeout: 50 * time.Millisecond})
		if result.Code != 0 || !result.Retryable || !errors.Is(result.Err, context.DeadlineExceeded) {
			t.Errorf("%s, too slow: %+v", name, result)
		}
	}
}

// TestBodies checks that the beginning of error bodies is kept, and that slow bodies do not affect the result.
func TestBodies(t *testing.T) {
	long := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, strings.Repeat("x", 1<<20), 500) })
	if result := newSender(t, Options{}).Send(t.Context(), order(), long, Attempt{}); string(result.Body) != strings.Repeat("x", MaxErrorBody) {
		t.Errorf("%d bytes of the body are kept", len(result.Body))
	}
	for _, code := range []int{202, 503} {
		slow := serveRaw(t, func(w io.Writer) {
			fmt.Fprintf(w, "HTTP/1.1 %d X\r\nContent-Length: 10\r\n\r\nhalf", code)
			<-t.Context().Done()
		})
		result := newSender(t, Options{}).Send(t.Context(), order(), slow, Attempt{Timeout: time.Minute})
		if result.Code != code || (code == 503) != (string(result.Body) == "half") || result.Latency > 30*time.Second {
			t.Errorf("slow body of %d: %+v", code, result)
		}
	}
}

// TestRetryAfter covers both forms of the header (eventing DeliverySpec, retryAfterMax), and that only 429 and 503 have
// it.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		code  int
		value string
		want  *time.Duration
	}{
		{429, "120", ptr.To(2 * time.Minute)},
		{503, "0", ptr.To(time.Duration(0))},
		{503, " 5 ", ptr.To(5 * time.Second)},
		{503, "Wed, 01 May 2024 12:01:30 GMT", ptr.To(90 * time.Second)},
		{429, "Wednesday, 01-May-24 12:00:01 GMT", ptr.To(time.Second)},
		{429, "Wed, 01 May 2024 11:00:00 GMT", ptr.To(time.Duration(0))},
		{429, "", nil},
		{429, "soon", nil},
		{429, "-1", nil},
		{429, "1.5", nil},
		{429, "99999999999999999999", nil},
		{500, "120", nil},
		{404, "120", nil},
		{202, "120", nil},
		{301, "120", nil},
	} {
		to := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", tt.value)
			w.WriteHeader(tt.code)
		})
		s := newSender(t, Options{Clock: clock.PassiveClock(testclock.NewFakePassiveClock(now))})
		result := s.Send(t.Context(), order(), to, Attempt{})
		if diff := cmp.Diff(tt.want, result.RetryAfter); diff != "" {
			t.Errorf("%d %q: (-want +got)\n%s", tt.code, tt.value, diff)
		}
	}
}

// TestCertificates covers status.address.CACerts (eventing Destination Resolution): they are trusted only for endpoints that have them, and
// connections are reused.
func TestCertificates(t *testing.T) {
	var protocol string
	addresses := map[string]bool{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		protocol = r.Proto
		addresses[r.RemoteAddr] = true
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	certificates := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	s := newSender(t, Options{})
	for range 5 {
		if result := s.Send(t.Context(), order(), eventing.Endpoint{URL: server.URL, CACerts: certificates}, Attempt{}); result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	// A pause of this process may end an idle connection.
	if protocol != "HTTP/2.0" || len(addresses) > 2 {
		t.Errorf("protocol %s over %d connections", protocol, len(addresses))
	}
	if result := s.Send(t.Context(), order(), eventing.Endpoint{URL: server.URL}, Attempt{}); result.Err == nil {
		t.Error("the certificates are trusted by an endpoint that does not have them")
	}
}

// TestTrust checks that the operator's certificates are trusted for all endpoints, in addition to the endpoint's own, until the operator
// removes them.
func TestTrust(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	certificates := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	other := string(otherAuthority(t))
	s := newSender(t, Options{})
	send := func(caCerts string) error {
		return s.Send(t.Context(), order(), eventing.Endpoint{URL: server.URL, CACerts: caCerts}, Attempt{}).Err
	}
	for _, step := range []struct {
		trusted []byte
		ok      bool
	}{{nil, false}, {certificates, true}, {[]byte(other), false}, {nil, false}} {
		if err := s.Trust(step.trusted); err != nil {
			t.Fatal(err)
		}
		for _, caCerts := range []string{"", other} {
			if err := send(caCerts); (err == nil) != step.ok {
				t.Errorf("trusting %d bytes of the operator and %d of the endpoint: %v, want success: %v", len(step.trusted), len(caCerts), err, step.ok)
			}
		}
		if err := send(string(certificates)); err != nil {
			t.Errorf("with the certificates of the endpoint: %v", err)
		}
	}
}

// otherAuthority returns a certificate that signs nothing, in PEM.
func otherAuthority(t *testing.T) []byte {
	t.Helper()
	certificate, _, err := cert.GenerateSelfSignedCertKey("other.example.com", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// TestInterimAnswersOverTLS is like TestInterimAnswers for answers that net/http reads.
func TestInterimAnswersOverTLS(t *testing.T) {
	for answer, want := range map[string]int{
		"HTTP/1.1 102 Processing\r\n\r\n": 102,
		"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n":          202,
		strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", maxInterim+1) + "HTTP/1.1 202 OK\r\n\r\n": 103,
	} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				io.WriteString(conn, answer) //nolint:errcheck // seen by the result
				conn.Close()
			}
		}))
		defer server.Close()
		certificates := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
		result := newSender(t, Options{}).Send(t.Context(), order(), eventing.Endpoint{URL: server.URL, CACerts: certificates}, Attempt{})
		if result.Code != want || (result.Err == nil) != (want == 202) || result.Retryable {
			t.Errorf("%.30q...: %+v, want code %d", answer, result, want)
		}
	}
}

// raw returns an endpoint that answers with these bytes, and closes the connection.
func raw(t testing.TB, answer string) eventing.Endpoint {
	return serveRaw(t, func(w io.Writer) { io.WriteString(w, answer) }) //nolint:errcheck // seen by the result
}

// TestMemoryOfReplies checks that replies are read within the budget of their namespace, and the event is sent later otherwise.
func TestMemoryOfReplies(t *testing.T) {
	reply := strings.Repeat("x", 100<<10)
	to := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Type": "t", "Ce-Source": "/s", "Ce-Id": "1"} {
			w.Header().Set(name, value)
		}
		if r.URL.Path == "/known" {
			w.Header().Set("Content-Length", fmt.Sprint(len(reply)))
		}
		w.Write([]byte(reply)) //nolint:errcheck // the client reports it
	})
	for path, need := range map[string]int64{"/known": replyWeight * int64(len(reply)), "/unknown": replyWeight << 20} {
		budget := flow.NewBudget(2*need, 0)
		s := newSender(t, Options{Budget: budget, MaxReply: 1 << 20})
		address := eventing.Endpoint{URL: to.URL + path}
		attempt := Attempt{ExpectReply: true, Consumer: eventing.Key{Namespace: "ns"}}
		if !budget.Reserve("ns", 1) {
			t.Fatal("no memory")
		}
		if result := s.Send(t.Context(), order(), address, attempt); !errors.Is(result.Err, errMemory) || !result.Retryable || result.RetryAfter == nil || result.Code != 0 {
			t.Errorf("%s: %+v without memory, want a later retry", path, result)
		}
		attempt.Consumer.Namespace = "other"
		budget.Release("ns", 1)
		if result := s.Send(t.Context(), order(), address, attempt); result.Err != nil || result.Reply == nil || len(result.Reply.Data) != len(reply) {
			t.Errorf("%s: no reply, but %+v", path, result)
		}
		if used := budget.Used(); used != 0 {
			t.Errorf("%s: %d bytes are held at the end", path, used)
		}
	}
}
