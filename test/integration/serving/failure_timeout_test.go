package serving

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestTimeouts covers requests that exceed a timeout: before the response starts they are answered 504, afterwards the
// connection is closed if the response stalls (serving 9.4.2-3).
func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, path                 string
		total, responseStart, idle int64
		// cut is true if the response starts and is aborted.
		cut     bool
		options []option
	}{
		{name: "total", path: "/hang", total: 1},
		{name: "response-start", path: "/hang", total: 60, responseStart: 1},
		{name: "idle", path: "/hang", total: 60, idle: 1},
		{name: "idle-streaming", path: "/stream?n=2&every=1h", total: 60, idle: 10, cut: true},
		{name: "cold-start", path: "/", total: 1, options: []option{scaling("initial-scale", "0"), env("START_DELAY", "20s")}},
	} {
		for protocol := range shared.clients(t) {
			t.Run(test.name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				s := shared.newSite(t, test.name, append(test.options, timeouts(test.total, test.responseStart, test.idle))...)
				began := time.Now()
				a, err := ask(t.Context(), s.clients(t)[protocol], http.MethodGet, s.url+test.path, nil)
				if took := time.Since(began); took < 900*time.Millisecond || took > 30*time.Second {
					t.Errorf("the request ended after %s, want about its timeout", took)
				}
				switch {
				case test.cut && (a == nil || a.code != http.StatusOK || err == nil || !strings.HasPrefix(a.body, "chunk 0\n")):
					t.Errorf("a response that takes too long is %+v, %v, want one that begins and is aborted", a, err)
				case !test.cut && (err != nil || a.code != http.StatusGatewayTimeout || trimmed(a.body) != "request timeout"):
					t.Errorf("a request that takes too long got %+v, %v, want 504 `request timeout`", a, err)
				}
			})
		}
	}
}

// TestTimeoutsOfProgressingResponse checks that no timeout ends a response that progresses (serving 9.4.2-3).
func TestTimeoutsOfProgressingResponse(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "progresses", timeouts(10, 10, 10))
	for protocol, client := range s.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			a := mustAsk(t, client, http.MethodGet, s.url+"/stream?n=10&every=1500ms", nil)
			chunks := 0
			for lines := bufio.NewScanner(strings.NewReader(a.body)); lines.Scan(); {
				chunks++
			}
			if a.code != http.StatusOK || chunks != 10 {
				t.Errorf("an answer of ten chunks within 15 s is %+v", a)
			}
		})
	}
}

// TestSilentWebSocket checks that a WebSocket with messages outlasts its timeout, and that a silent one ends with a close frame
// (serving 9.4.2-3).
func TestSilentWebSocket(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "silent", timeouts(10, 0, 0), instances("1"))
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
	pause := time.NewTicker(time.Second)
	defer pause.Stop()
	for range 12 {
		if err := conn.WriteMessage(websocket.TextMessage, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, message, err := conn.ReadMessage(); err != nil || string(message) != "hello" {
			t.Fatalf("a message was returned as %q, %v", message, err)
		}
		<-pause.C
	}
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseGoingAway) {
		t.Errorf("without messages it ends with %v, want a close frame of status 1001", err)
	}
}
