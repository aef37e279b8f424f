package eventing

import (
	"time"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// What holds where nobody says how events are to be delivered: a thousand retries within some sixteen hours, so that
// a subscriber may be away for a night.
const (
	defaultRetry      = 1000
	defaultBackoff    = 200 * time.Millisecond
	defaultMaxBackoff = time.Minute
)

// DeliveryOf returns the delivery that options ask for (eventing DeliverySpec). Nil are options left out. Options
// that leave out retry ask for none if they name a dead letter sink, and for the system's otherwise: who names one
// wants to see failures there. What they leave out besides is the system's: exponential backoff from 0.2 s.
// Durations that do not parse count as left out; validation keeps them away.
func DeliveryOf(spec *duckv1.DeliverySpec) Delivery {
	d := Delivery{Retry: defaultRetry, Policy: duckv1.BackoffPolicyExponential, Backoff: defaultBackoff, MaxBackoff: defaultMaxBackoff}
	if spec == nil {
		return d
	}
	switch {
	case spec.Retry != nil:
		// The delays of a number of retries that somebody chose are exactly those the policy says.
		d.Retry, d.MaxBackoff = int(*spec.Retry), 0
	case spec.DeadLetterSink != nil:
		d.Retry = 0
	}
	d.Policy = ptr.Deref(spec.BackoffPolicy, d.Policy)
	d.Format = ptr.Deref(spec.Format, "")
	if backoff := parse(spec.BackoffDelay); backoff != nil {
		d.Backoff = *backoff
	}
	if timeout := parse(spec.Timeout); timeout != nil {
		d.Timeout = *timeout
	}
	d.RetryAfterMax = parse(spec.RetryAfterMax)
	return d
}

func parse(value *string) *time.Duration {
	if value == nil {
		return nil
	}
	d, err := duckv1.ParseDuration(*value)
	if err != nil {
		return nil
	}
	return &d
}
