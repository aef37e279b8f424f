package serving

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStreamsDoNotDelaySIGTERM deletes a Pod with an open WebSocket and an open event stream, whose timeout is minutes. Its
// application receives SIGTERM at once, and ends both itself.
func TestStreamsDoNotDelaySIGTERM(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "goodbye", nil)
	service := s.deploy(t, s.app("hello", instances("1")))
	pods := s.untilPods(t, service.Status.LatestReadyRevisionName, 1)
	dialer := websocket.Dialer{NetDialContext: s.dial, HandshakeTimeout: answerTimeout}
	conn, response, err := dialer.DialContext(t.Context(), "ws://"+host(t, service.Status.URL)+"/ws?goodbye", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service.Status.URL+"/goodbye", nil)
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	stream := bufio.NewReader(events.Body)
	if line, err := stream.ReadString('\n'); err != nil || line != "data: hello\n" {
		t.Fatalf("the first event is %q, %v", line, err)
	}
	if err := s.Host.CoreV1().Pods(s.namespace).Delete(t.Context(), pods[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseGoingAway) || !strings.Contains(err.Error(), "SIGTERM") {
		t.Errorf("the WebSocket ends with %v, want the goodbye of the application", err)
	}
	if rest, err := io.ReadAll(stream); err != nil || string(rest) != "\ndata: SIGTERM\n\n" {
		t.Errorf("the event stream ends with %q, %v, want the goodbye of the application", rest, err)
	}
}
