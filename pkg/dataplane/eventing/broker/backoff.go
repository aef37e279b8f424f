package broker

import (
	"math"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// forever bounds delays, so that the time after them can be told in nanoseconds.
const forever = 100 * 365 * 24 * time.Hour

// backoff returns how long to wait before retry n, counted from zero (eventing DeliverySpec): the same delay for
// each, or 2^n times that, but at least what the subscriber asked for by Retry-After, if anything.
func backoff(d eventing.Delivery, n int, retryAfter time.Duration) time.Duration {
	delay := d.Backoff
	if d.Policy == eventing.BackoffExponential {
		if scaled := float64(d.Backoff) * math.Pow(2, float64(n)); scaled < math.MaxInt64 {
			delay = time.Duration(scaled)
		} else {
			delay = math.MaxInt64
		}
		if d.MaxBackoff > 0 {
			delay = min(delay, d.MaxBackoff)
		}
	}
	return min(max(delay, retryAfter), forever)
}
