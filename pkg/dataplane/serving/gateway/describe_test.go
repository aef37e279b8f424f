package gateway

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// TestDescribe checks that the description of a request leaves out the query, and is bounded and printable, on both paths.
func TestDescribe(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for name, test := range map[string]struct{ method, host, target, want string }{
		"plain":       {"GET", "hello.default.example.com:8080", "/orders", "GET hello.default.example.com:8080/orders"},
		"query":       {"POST", "h", "/a?token=secret", "POST h/a"},
		"any":         {"OPTIONS", "h", "*", "OPTIONS h"},
		"long":        {"GET", "h", "/" + long + "?a", "GET h/" + strings.Repeat("x", maxPath-4) + "..."},
		"long name":   {"GET", long, "/", "GET " + strings.Repeat("x", maxHost-3) + ".../"},
		"not in UTF8": {"GET", "h", "/\xff\u202e", "GET h/??"},
	} {
		t.Run(name, func(t *testing.T) {
			in := inbound{head: &http1.Head{Method: []byte(test.method), Host: []byte(test.host), Target: []byte(test.target)}}
			if got := in.describe(); got != test.want {
				t.Errorf("fast path: %q, want %q", got, test.want)
			}
			r := httptest.NewRequestWithContext(t.Context(), test.method, "/", nil)
			r.Host, r.RequestURI = test.host, test.target
			if test.target == "*" {
				r.URL.Path = "*"
			}
			in = inbound{request: r}
			if got := in.describe(); got != test.want {
				t.Errorf("standard path: %q, want %q", got, test.want)
			}
		})
	}
	if got := printable(strings.Repeat("é", 300), maxPath); len(got) > maxPath || !strings.HasSuffix(got, "é...") {
		t.Errorf("%q", got)
	}
}
