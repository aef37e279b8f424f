package eventing

import "time"

// The default delivery options: a thousand retries within some sixteen hours, so that a subscriber may be
// down for a night.
const (
	defaultRetry      = 1000
	defaultBackoff    = 200 * time.Millisecond
	defaultMaxBackoff = time.Minute
)

// DefaultDelivery returns the default delivery options.
func DefaultDelivery() Delivery {
	return Delivery{Retry: defaultRetry, Policy: BackoffExponential, Backoff: defaultBackoff, MaxBackoff: defaultMaxBackoff}
}
