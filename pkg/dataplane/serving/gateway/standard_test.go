package gateway

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestMalformedBodyEndsConnection checks that input after a malformed or unread body is not parsed as a request.
func TestMalformedBodyEndsConnection(t *testing.T) {
	hidden := make(chan struct{}, 10)
	b := serve(t, Options{}, revision(0), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hidden":
			hidden <- struct{}{}
		case "/read":
			drain(r.Body)
		}
	}))
	for _, test := range []struct{ name, request string }{
		{"no size", "POST /read HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n\r\n"},
		{"data longer than its size", "POST /read HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\n0\r\n\r\n"},
		{"malformed and not read", "POST / HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n\r\n"},
	} {
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, test.request+"GET /hidden HTTP/1.1\r\nHost: app\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(all), "\r\nConnection: close\r\n") {
			t.Errorf("%s: got %q, %v, want an answer and the end of the connection", test.name, all, err)
		}
	}
	if len(hidden) > 0 {
		t.Errorf("%d requests were parsed from bodies", len(hidden))
	}
}
