package streams

import (
	"time"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// DeliveryOf returns the parsed delivery options (eventing DeliverySpec). Omitted options get their defaults, except that options
// without retry mean no retries if they name a dead letter sink: the user wants to see failures there. Durations that do not parse,
// which validation rejects, count as omitted.
func DeliveryOf(spec *duckv1.DeliverySpec) eventing.Delivery {
	d := eventing.DefaultDelivery()
	if spec == nil {
		return d
	}
	switch {
	case spec.Retry != nil:
		// The user chose the number of retries: their delays follow the policy exactly.
		d.Retry, d.MaxBackoff = int(*spec.Retry), 0
	case spec.DeadLetterSink != nil:
		d.Retry = 0
	}
	if spec.BackoffPolicy != nil {
		d.Policy = eventing.BackoffPolicy(*spec.BackoffPolicy)
	}
	d.Format = eventing.Format(ptr.Deref(spec.Format, ""))
	if backoff := parseDuration(spec.BackoffDelay); backoff != nil {
		d.Backoff = *backoff
	}
	if timeout := parseDuration(spec.Timeout); timeout != nil {
		d.Timeout = *timeout
	}
	d.RetryAfterMax = parseDuration(spec.RetryAfterMax)
	return d
}

func parseDuration(value *string) *time.Duration {
	if value == nil {
		return nil
	}
	d, err := duckv1.ParseDuration(*value)
	if err != nil {
		return nil
	}
	return &d
}
