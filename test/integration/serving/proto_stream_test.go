package serving

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// protocols are the protocols of backends.
func protocols() map[string][]option {
	return map[string][]option{"http1": nil, "h2c": {h2c}}
}

// TestProtocolsMeet checks that client and backend may speak different protocols, and that each request of a client is routed
// on its own (serving 8-1, 8-2).
func TestProtocolsMeet(t *testing.T) {
	t.Parallel()
	for instance, options := range protocols() {
		s := shared.newSite(t, instance, append(options, instances("1"))...)
		for protocol, client := range s.clients(t) {
			want := map[string]string{"http1": "HTTP/1.1", "h2c": "HTTP/2.0"}[instance]
			for range 2 {
				a := mustAsk(t, client, http.MethodGet, s.url+"/headers?a=b%2Fc", nil)
				got := decoded[headersReport](t, a.body)
				if a.code != http.StatusOK || got.Proto != want || got.Host != s.host || got.URI != "/headers?a=b%2Fc" {
					t.Errorf("a request by %s reached the %s instance as %+v", protocol, instance, got)
				}
			}
		}
	}
}

// TestFullDuplex sends each message after the previous one was echoed, by both protocols to backends of both.
func TestFullDuplex(t *testing.T) {
	t.Parallel()
	for instance, options := range protocols() {
		s := shared.newSite(t, "duplex-"+instance, append(options, instances("1"))...)
		for protocol, client := range s.clients(t) {
			t.Run(protocol+" to "+instance, func(t *testing.T) {
				out, in := io.Pipe()
				request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/echo", out)
				if err != nil {
					t.Fatal(err)
				}
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				back := bufio.NewReader(response.Body)
				for i := range 20 {
					message := fmt.Sprintf("message %d\n", i)
					if _, err := io.WriteString(in, message); err != nil {
						t.Fatal(err)
					}
					if got, err := back.ReadString('\n'); err != nil || got != message {
						t.Fatalf("%q was returned as %q, %v", message, got, err)
					}
				}
				if err := in.Close(); err != nil {
					t.Fatal(err)
				}
				if rest, err := io.ReadAll(back); err != nil || len(rest) > 0 {
					t.Errorf("after the end of the body %q arrived, %v", rest, err)
				}
			})
		}
	}
}

// TestServerSentEvents checks that each event is forwarded at once: the next event follows an hour later.
func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	for instance, options := range protocols() {
		s := shared.newSite(t, "sse-"+instance, append(options, instances("1"))...)
		for protocol, client := range s.clients(t) {
			t.Run(protocol+" from "+instance, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/sse?n=2&every=1h", nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				if got := response.Header.Get("Content-Type"); got != "text/event-stream" {
					t.Errorf("the events have Content-Type %q", got)
				}
				if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || line != "data: event 0\n" {
					t.Errorf("the first event is %q, %v", line, err)
				}
				if a := mustAsk(t, client, http.MethodGet, s.url+"/sse?n=3&every=5ms", nil); a.body != "data: event 0\n\ndata: event 1\n\ndata: event 2\n\n" {
					t.Errorf("three events are %q", a.body)
				}
			})
		}
	}
}

// TestWebSocket covers text and binary messages from one byte to many buffers.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "websocket", instances("1"))
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.gateway)
	}}
	address := url.URL{Scheme: "ws", Host: s.host, Path: "/ws"}
	conn, response, err := dialer.DialContext(t.Context(), address.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []int{websocket.TextMessage, websocket.BinaryMessage} {
		for _, size := range []int{1, 100, 64 << 10, 1 << 20} {
			message := strings.Repeat("m", size)
			if err := conn.WriteMessage(kind, []byte(message)); err != nil {
				t.Fatal(err)
			}
			if got, back, err := conn.ReadMessage(); err != nil || got != kind || string(back) != message {
				t.Fatalf("a message of kind %d and %d bytes was returned with kind %d and %d bytes, %v", kind, size, got, len(back), err)
			}
		}
	}
	s.untilMetric(t, "knative_gateway_in_flight_requests", 1)
	if err := conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("closing ended with %v, want a normal closure", err)
	}
	conn.Close()
	s.untilMetric(t, "knative_gateway_in_flight_requests", 0)
}

// TestUploads covers bodies of known and unknown length, by both protocols to backends of both.
func TestUploads(t *testing.T) {
	t.Parallel()
	for instance, options := range protocols() {
		s := shared.newSite(t, "upload-"+instance, append(options, instances("1"))...)
		for protocol, client := range s.clients(t) {
			for _, size := range []int{0, 1, 4 << 10, 100 << 10, 5 << 20} {
				content := strings.Repeat("0123456789abcdef", size/16+1)[:size]
				sum := sha256.Sum256([]byte(content))
				want := uploadReport{Bytes: int64(size), SHA256: hex.EncodeToString(sum[:])}
				for length, body := range map[string]io.Reader{
					"Content-Length": strings.NewReader(content),
					"no length":      io.MultiReader(strings.NewReader(content)),
				} {
					a := mustAsk(t, client, http.MethodPost, s.url+"/upload", body)
					if a.code != http.StatusOK || decoded[uploadReport](t, a.body) != want {
						t.Errorf("%d bytes with %s by %s reached the %s instance as %d %s", size, length, protocol, instance, a.code, a.body)
					}
				}
			}
		}
	}
}

// TestLargeUpload sends a body that the server must not buffer: its memory does not grow. It does not run in parallel, because
// it measures memory.
func TestLargeUpload(t *testing.T) {
	const (
		size    = 1 << 30
		allowed = 50 << 20
	)
	s := shared.newSite(t, "large", instances("1"))
	// The first request allocates memory once.
	mustAsk(t, s.http, http.MethodPost, s.url+"/upload", io.LimitReader(zeros{}, 16<<20))
	before := residentBytes(t, s.PID())
	measured, most := make(chan struct{}), before
	ctx, sent := context.WithCancel(t.Context())
	go func() {
		defer close(measured)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			most = max(most, residentBytes(t, s.PID()))
			<-ticker.C
		}
	}()
	a := mustAsk(t, untimed(s.http), http.MethodPost, s.url+"/upload", io.LimitReader(zeros{}, size))
	sent()
	<-measured
	if a.code != http.StatusOK || decoded[uploadReport](t, a.body).Bytes != size {
		t.Errorf("1 GiB arrived as %d %s", a.code, a.body)
	}
	if grown := most - before; grown > allowed {
		t.Errorf("the server's memory grew by %d MiB from %d MiB during an upload of 1 GiB, want at most 50", grown>>20, before>>20)
	}
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// residentBytes returns the resident memory of a process.
func residentBytes(t testing.TB, pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kilobytes int64
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		t.Errorf("reading VmRSS: %v", err)
	}
	return kilobytes << 10
}
