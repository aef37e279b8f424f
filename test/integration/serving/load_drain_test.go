package serving

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestStreamsDoNotDelaySIGTERM deletes a Service with an open WebSocket and open event streams, whose timeouts are minutes. The
// application receives SIGTERM as soon as an ordinary request is answered, and ends the streams itself.
func TestStreamsDoNotDelaySIGTERM(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "goodbye", instances("1"))
	dialer := websocket.Dialer{NetDialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.gateway)
	}}
	address := url.URL{Scheme: "ws", Host: s.host, Path: "/ws", RawQuery: "goodbye"}
	conn, response, err := dialer.DialContext(t.Context(), address.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	defer conn.Close()
	streams := map[string]*bufio.Reader{}
	for protocol, client := range s.clients(t) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/goodbye", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := untimed(client).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		streams[protocol] = bufio.NewReader(response.Body)
		if line, err := streams[protocol].ReadString('\n'); err != nil || line != "data: hello\n" {
			t.Fatalf("the first event is %q, %v", line, err)
		}
	}
	// It is in flight until its body ends.
	ordinary := s.mustDial(t)
	if _, err := io.WriteString(ordinary, "POST /upload HTTP/1.1\r\nHost: "+s.host+"\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	s.untilMetric(t, "knative_gateway_in_flight_requests", 4)
	s.remove(t)
	if a, err := ordinary.exchange(http.MethodPost, "0\r\n\r\n"); err != nil || a.code != http.StatusOK {
		t.Errorf("the ordinary request got %+v, %v", a, err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(harness.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseGoingAway) || !strings.Contains(err.Error(), "SIGTERM") {
		t.Errorf("the WebSocket ends with %v, want the goodbye of the application", err)
	}
	for protocol, stream := range streams {
		if rest, err := io.ReadAll(stream); err != nil || string(rest) != "\ndata: SIGTERM\n\n" {
			t.Errorf("the event stream by %s ends with %q, %v, want the goodbye of the application", protocol, rest, err)
		}
	}
}
