package serving

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestNoRetryAfterSend checks that a request whose backend closes the connection without a response is answered 502 and never
// sent a second time: on new and on reused connections, on both paths of the gateway, and to backends of both protocols.
func TestNoRetryAfterSend(t *testing.T) {
	t.Parallel()
	for _, instance := range []struct {
		protocol string
		options  []option
	}{{"http1", nil}, {"h2c", []option{h2c}}} {
		for protocol := range shared.clients(t) {
			for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut} {
				t.Run(instance.protocol+" "+protocol+" "+method, func(t *testing.T) {
					t.Parallel()
					s := shared.newSite(t, "abort", append(instance.options, instances("1"))...)
					client := s.clients(t)[protocol]
					body := func() io.Reader {
						if method == http.MethodGet {
							return nil
						}
						return strings.NewReader("body")
					}
					const fresh, reused = 2, 3
					abort := func() {
						a := mustAsk(t, client, method, s.url+"/abort", body())
						if a.code != http.StatusBadGateway {
							t.Errorf("a missing response is %+v, want 502", a)
						}
					}
					// No request was sent before; and a broken connection is not reused.
					for range fresh {
						abort()
					}
					for range reused {
						s.mustGet(t, s.url+"/")
						abort()
					}
					if n := report[countReport](t, s, "/count").Aborted; n != fresh+reused {
						t.Errorf("%d requests to abort reached the instance, want the %d that were sent", n, fresh+reused)
					}
				})
			}
		}
	}
}
