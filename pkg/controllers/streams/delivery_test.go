package streams

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestDeliveryOf covers the options that replace the defaults (eventing DeliverySpec).
func TestDeliveryOf(t *testing.T) {
	defaults := eventing.DefaultDelivery()
	with := func(change func(*eventing.Delivery)) eventing.Delivery {
		d := defaults
		change(&d)
		return d
	}
	for name, tt := range map[string]struct {
		spec *duckv1.DeliverySpec
		want eventing.Delivery
	}{
		"none":  {nil, defaults},
		"empty": {&duckv1.DeliverySpec{}, defaults},
		"retry": {&duckv1.DeliverySpec{Retry: ptr.To[int32](3), DeadLetterSink: &duckv1.Destination{}},
			with(func(d *eventing.Delivery) { d.Retry, d.MaxBackoff = 3, 0 })},
		"dead letter sink alone": {&duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{}},
			with(func(d *eventing.Delivery) { d.Retry = 0 })},
		"other options": {&duckv1.DeliverySpec{
			BackoffPolicy: ptr.To(duckv1.BackoffPolicyLinear), BackoffDelay: ptr.To("PT3S"), Timeout: ptr.To("PT1M"),
			RetryAfterMax: ptr.To("PT0S"), Format: ptr.To(duckv1.FormatJSON),
		}, eventing.Delivery{
			Retry: defaults.Retry, Policy: eventing.BackoffLinear, Backoff: 3 * time.Second, MaxBackoff: defaults.MaxBackoff, Timeout: time.Minute,
			RetryAfterMax: ptr.To[time.Duration](0), Format: eventing.FormatJSON,
		}},
		"invalid durations": {&duckv1.DeliverySpec{BackoffDelay: ptr.To("3s"), Timeout: ptr.To(""), RetryAfterMax: ptr.To("x")}, defaults},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, DeliveryOf(tt.spec)); diff != "" {
				t.Errorf("delivery (-want +got):\n%s", diff)
			}
		})
	}
}
