package serving

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestNoRetryOfWhatWasSent covers that a request whose instance breaks off without an answer is answered with
// 502 and never sent again: on connections to the instance that are fresh and that were used before, by both
// paths of the gateway, to instances of both protocols.
func TestNoRetryOfWhatWasSent(t *testing.T) {
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
							t.Errorf("an answer that never came is %+v, want 502", a)
						}
					}
					// Nothing was sent before; and a connection that broke off is not used again.
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
