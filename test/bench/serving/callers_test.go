package serving

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

// token is a token of the size of a ServiceAccount's.
var token = strings.Repeat("x", 1000)

// caller is a user who may call all Services.
var caller = token + `,jane,1,"knative:invokers"` + "\n"

// callerRounds is the number of alternating rounds: a cached decision takes a small part of a request.
const callerRounds = 9

// BenchmarkCallers measures at a steady rate how much a cached decision adds to the median latency of a request: to a restricted and to an
// open Service, with the same token. BenchmarkCachedDecision in pkg/dataplane/serving/gateway measures the decision alone.
func BenchmarkCallers(b *testing.B) {
	figures.Once(b, func() {
		restricted := service(b, "restricted", 1)
		restricted.Annotations[servingv1.InvocationAnnotationKey] = servingv1.InvocationRBAC
		closed, open := deploy(b, restricted), deploy(b, service(b, "open", 1))
		fields := "Authorization: Bearer " + token + "\r\n"
		if code := codeOf(b, closed); code != http.StatusUnauthorized {
			b.Fatalf("a request without token gets %d, want 401", code)
		}
		var opens, added []time.Duration
		for range callerRounds {
			without := p50(paced(b, gateway(b), open, fields))
			with := p50(paced(b, gateway(b), closed, fields))
			opens, added = append(opens, without), append(added, with-without)
		}
		b.ReportMetric(figures.Microseconds(figures.Median(opens)), "open-p50-µs")
		b.ReportMetric(figures.Microseconds(figures.Median(added)), "restricted-added-p50-µs")
	})
}

// codeOf returns the status code of a request without header fields.
func codeOf(b *testing.B, host string) int {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, gateway(b), nil)
	if err != nil {
		b.Fatal(err)
	}
	request.Host = host
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.Fatal(fmt.Errorf("send request to %s: %w", host, err))
	}
	response.Body.Close()
	return response.StatusCode
}
