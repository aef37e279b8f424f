package serving

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestTimeouts covers what becomes of requests that take too long: without a byte of the answer they get 504,
// after its header the connection ends.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, path                 string
		total, responseStart, idle int64
		// cut tells that the answer begins and breaks off.
		cut     bool
		options []option
	}{
		{name: "total", path: "/hang", total: 1},
		{name: "total-streaming", path: "/stream?n=1000&every=20ms", total: 1, cut: true},
		{name: "response-start", path: "/hang", total: 60, responseStart: 1},
		{name: "idle", path: "/hang", total: 60, idle: 1},
		{name: "idle-streaming", path: "/stream?n=2&every=1h", total: 60, idle: 1, cut: true},
		{name: "cold-start", path: "/", total: 1, options: []option{scaling("initial-scale", "0"), env("START_DELAY", "20s")}},
	} {
		for protocol := range shared.clients(t) {
			t.Run(test.name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				s := shared.newSite(t, test.name, append(test.options, timeouts(test.total, test.responseStart, test.idle))...)
				began := time.Now()
				a, err := ask(t.Context(), s.clients(t)[protocol], http.MethodGet, s.url+test.path, nil)
				if took := time.Since(began); took < 900*time.Millisecond || took > 10*time.Second {
					t.Errorf("the request ended after %s, want about a second", took)
				}
				switch {
				case test.cut && (a == nil || a.code != http.StatusOK || err == nil || !strings.HasPrefix(a.body, "chunk 0\n")):
					t.Errorf("an answer that takes too long is %+v, %v, want one that begins and breaks off", a, err)
				case !test.cut && (err != nil || a.code != http.StatusGatewayTimeout || trimmed(a.body) != "request timeout"):
					t.Errorf("a request that takes too long got %+v, %v, want 504 `request timeout`", a, err)
				}
			})
		}
	}
}

// TestTimeoutsOfWhatGoesOn covers that the bounds of the start and of silence do not end an answer that goes on.
func TestTimeoutsOfWhatGoesOn(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "goes-on", timeouts(60, 1, 1))
	for protocol, client := range s.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			a := mustAsk(t, client, http.MethodGet, s.url+"/stream?n=10&every=250ms", nil)
			chunks := 0
			for lines := bufio.NewScanner(strings.NewReader(a.body)); lines.Scan(); {
				chunks++
			}
			if a.code != http.StatusOK || chunks != 10 {
				t.Errorf("an answer of ten chunks within 2.5 s is %+v", a)
			}
		})
	}
}
