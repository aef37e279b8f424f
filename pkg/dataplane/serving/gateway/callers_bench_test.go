package gateway

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/callers"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// waiter is the forwarder of a request that only waits for reviews.
type waiter struct{ forwarder }

func (waiter) Wait() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// BenchmarkCachedDecision measures what a cached decision adds to a request of the fast path, by its median: in parts of 100 decisions, because
// the clock is too coarse for one. The token has the size of a ServiceAccount's.
func BenchmarkCachedDecision(b *testing.B) {
	const part = 100
	var reviewer reviewer
	options := Options{Reviews: reviewer.reviews()}
	authorization := []byte("Bearer of-" + strings.Repeat("x", 1000))
	head := &http1.Head{}
	for name, value := range map[string]string{
		"host": "app", "user-agent": "curl/8.0", "accept": "*/*", "accept-encoding": "gzip", "x-request-id": "1", authorizationField: string(authorization),
	} {
		head.Fields = append(head.Fields, http1.Field{Name: []byte(name), Value: []byte(value)})
	}
	x := &exchange{chain: &chain{options: &options}, in: inbound{head: head, policy: callers.NewPolicy(restricted())}, forwarder: waiter{}}
	took := make([]time.Duration, 0, b.N/part+1)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; n += part {
		start := time.Now()
		for range part {
			if rejection := x.check(); rejection != nil {
				b.Fatal(rejection, x.result.Err)
			}
		}
		took = append(took, time.Since(start)/part)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
}
