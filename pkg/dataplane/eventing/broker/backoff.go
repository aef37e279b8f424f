package broker

import (
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// forever bounds delays, so that the time after them can be expressed in nanoseconds.
const forever = 100 * 365 * 24 * time.Hour

// retryDelay returns the delay before retry n, counted from zero (eventing DeliverySpec): the same for each, or 2^n times the
// first, but at least the subscriber's Retry-After.
func retryDelay(d eventing.Delivery, n int, retryAfter time.Duration) time.Duration {
	delay := d.Backoff
	if d.Policy == eventing.BackoffExponential {
		limit := forever
		if d.MaxBackoff > 0 {
			limit = d.MaxBackoff
		}
		delay = backoff.Delay(n+1, d.Backoff, limit)
	}
	return min(max(delay, retryAfter), forever)
}
