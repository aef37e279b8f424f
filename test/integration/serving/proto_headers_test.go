package serving

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// TestHeaders covers the headers that the gateway adds, continues, keeps and removes, on both paths.
func TestHeaders(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceparent := regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-01$`)
	s := shared.newSite(t, "headers", instances("1"))
	for protocol, client := range s.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			send := func(fields map[string]string) headersReport {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/headers", nil)
				if err != nil {
					t.Fatal(err)
				}
				for name, value := range fields {
					request.Header.Set(name, value)
				}
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				if err != nil {
					t.Fatal(err)
				}
				return decoded[headersReport](t, string(body))
			}
			check := func(got headersReport, want map[string]string) {
				t.Helper()
				for name, value := range want {
					if all := strings.Join(got.Header.Values(name), "|"); all != value {
						t.Errorf("the instance got %s %q, want %q", name, all, value)
					}
				}
			}

			got := send(nil)
			check(got, map[string]string{
				"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": s.host,
				"Forwarded": `for=127.0.0.1;host="` + s.host + `";proto=http`,
			})
			if got.Host != s.host {
				t.Errorf("the instance got Host %q, want the client's %q", got.Host, s.host)
			}
			if made := got.Header.Get("Traceparent"); !traceparent.MatchString(made) {
				t.Errorf("without a trace the instance got traceparent %q, want a new one", made)
			}

			got = send(map[string]string{
				"X-Forwarded-For": "192.0.2.1, 192.0.2.2", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "spoofed.example.com",
				"Forwarded":   "for=192.0.2.1;proto=https",
				"Traceparent": parent, "Tracestate": "vendor=value", "X-Custom": "kept", "Authorization": "Bearer token",
				"Cookie": "a=b; c=d", "Accept-Encoding": "br",
				"K-Proxy-Request": "activator", "K-Network-Probe": "probe", "K-Network-Hash": "hash", "K-Kubelet-Probe": "probe",
				"K-Passthrough-Lb": "true", "Knative-Serving-Namespace": "other", "Knative-Serving-Revision": "other",
				"Knative-Serving-Default-Route": "true",
			})
			check(got, map[string]string{
				"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": s.host,
				"Forwarded":  `for=127.0.0.1;host="` + s.host + `";proto=http`,
				"Tracestate": "vendor=value", "X-Custom": "kept", "Authorization": "Bearer token", "Cookie": "a=b; c=d", "Accept-Encoding": "br",
				"K-Proxy-Request": "", "K-Network-Probe": "", "K-Network-Hash": "", "K-Kubelet-Probe": "",
				"K-Passthrough-Lb": "", "Knative-Serving-Namespace": "", "Knative-Serving-Revision": "", "Knative-Serving-Default-Route": "",
			})
			continued := got.Header.Get("Traceparent")
			if !traceparent.MatchString(continued) || continued[:35] != parent[:35] || continued == parent {
				t.Errorf("the trace %s continues as %q, want the same trace with another parent", parent, continued)
			}
			if replaced := send(map[string]string{"Traceparent": "00-nonsense"}).Header.Get("Traceparent"); !traceparent.MatchString(replaced) {
				t.Errorf("an invalid trace continues as %q, want a new one", replaced)
			}
		})
	}
}

// TestHopByHopFields covers headers for the gateway only, including headers that Connection names.
func TestHopByHopFields(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "hop", instances("1"))
	a, err := s.mustDial(t).exchange(http.MethodGet, "GET /headers HTTP/1.1\r\nHost: "+s.host+
		"\r\nConnection: keep-alive, X-Secret\r\nKeep-Alive: timeout=5\r\nX-Secret: for the gateway\r\nProxy-Authorization: Basic eDp5\r\nTE: gzip\r\n\r\n")
	if err != nil || a.code != http.StatusOK {
		t.Fatalf("the request got %+v, %v", a, err)
	}
	got := decoded[headersReport](t, a.body)
	for _, name := range []string{"Connection", "Keep-Alive", "X-Secret", "Proxy-Authorization", "Te"} {
		if values := got.Header.Values(name); len(values) > 0 {
			t.Errorf("the instance got %s %q", name, values)
		}
	}
}
