package broker

import (
	"math"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// eventing DeliverySpec: linear uses the same backoffDelay for each attempt, exponential 2^N multiples of it.
func TestBackoff(t *testing.T) {
	linear := eventing.Delivery{Policy: eventing.BackoffLinear, Backoff: 3 * time.Second, MaxBackoff: time.Second}
	exponential := eventing.Delivery{Policy: eventing.BackoffExponential, Backoff: 200 * time.Millisecond}
	bounded := exponential
	bounded.MaxBackoff = time.Minute
	for name, test := range map[string]struct {
		delivery   eventing.Delivery
		n          int
		retryAfter time.Duration
		want       time.Duration
	}{
		"linear, first":               {linear, 0, 0, 3 * time.Second},
		"linear, any":                 {linear, 1000, 0, 3 * time.Second},
		"linear, longer Retry-After":  {linear, 1, time.Minute, time.Minute},
		"linear, shorter Retry-After": {linear, 1, time.Second, 3 * time.Second},
		"exponential, first":          {exponential, 0, 0, 200 * time.Millisecond},
		"exponential, second":         {exponential, 1, 0, 400 * time.Millisecond},
		"exponential, eleventh":       {exponential, 10, 0, 204800 * time.Millisecond},
		"exponential, overflow":       {exponential, 1000, 0, forever},
		"linear, overflow":            {eventing.Delivery{Policy: eventing.BackoffLinear, Backoff: math.MaxInt64}, 0, 0, forever},
		"bounded, below":              {bounded, 8, 0, 51200 * time.Millisecond},
		"bounded, above":              {bounded, 9, 0, time.Minute},
		"bounded, overflow":           {bounded, math.MaxInt32, 0, time.Minute},
		"bounded, longer Retry-After": {bounded, 0, time.Hour, time.Hour},
		"nothing said":                {eventing.Delivery{}, 5, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if have := retryDelay(test.delivery, test.n, test.retryAfter); have != test.want {
				t.Errorf("%v, want %v", have, test.want)
			}
		})
	}
}

// With the default delivery options, a subscriber that is down for a night still receives its events.
func TestDefaultDeliveryOutlastsANight(t *testing.T) {
	d := eventing.DefaultDelivery()
	var total time.Duration
	for n := range d.Retry {
		delay := retryDelay(d, n, 0)
		if delay > time.Minute {
			t.Fatalf("retry %d comes after %v, want at most a minute", n, delay)
		}
		total += delay
	}
	if total < 12*time.Hour {
		t.Errorf("the last retry comes after %v, want half a day at least", total)
	}
}
