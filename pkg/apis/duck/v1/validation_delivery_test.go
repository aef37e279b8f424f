package v1

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

// TestValidateDelivery covers eventing DeliverySpec.
func TestValidateDelivery(t *testing.T) {
	tests := []struct {
		name string
		in   *DeliverySpec
		want []fault
	}{
		{"left out", nil, nil},
		{"empty", &DeliverySpec{}, nil},
		{"everything", &DeliverySpec{
			DeadLetterSink: &Destination{URI: "http://dead.letters"},
			Retry:          ptr.To[int32](0),
			Timeout:        ptr.To("PT30S"),
			BackoffPolicy:  ptr.To(BackoffPolicyExponential),
			BackoffDelay:   ptr.To("PT0.2S"),
			RetryAfterMax:  ptr.To("PT0S"),
			Format:         ptr.To(FormatBinary),
		}, nil},
		{"the other choices", &DeliverySpec{BackoffPolicy: ptr.To(BackoffPolicyLinear), BackoffDelay: ptr.To("P0D"), Format: ptr.To(FormatJSON)}, nil},
		{"negative retry", &DeliverySpec{Retry: ptr.To[int32](-1)}, []fault{
			{field.ErrorTypeInvalid, "spec.delivery.retry", "-1: must be greater than or equal to 0"}}},
		{"timeout of zero", &DeliverySpec{Timeout: ptr.To("PT0S")}, []fault{
			{field.ErrorTypeInvalid, "spec.delivery.timeout", "must be greater than 0"}}},
		{"timeout that rounds to zero", &DeliverySpec{Timeout: ptr.To("PT0.0000000001S")}, []fault{
			{field.ErrorTypeInvalid, "spec.delivery.timeout", "must be greater than 0"}}},
		{"all errors are reported at once", &DeliverySpec{
			DeadLetterSink: &Destination{},
			Retry:          ptr.To[int32](-2),
			Timeout:        ptr.To("30s"),
			BackoffPolicy:  ptr.To(BackoffPolicyType("Linear")),
			BackoffDelay:   ptr.To("-PT1S"),
			RetryAfterMax:  ptr.To(""),
			Format:         ptr.To(FormatType("")),
		}, []fault{
			{field.ErrorTypeRequired, "spec.delivery.deadLetterSink", "`ref` and `uri`"},
			{field.ErrorTypeInvalid, "spec.delivery.retry", "must be greater than or equal to 0"},
			{field.ErrorTypeInvalid, "spec.delivery.timeout", "must be an ISO 8601 duration"},
			{field.ErrorTypeNotSupported, "spec.delivery.backoffPolicy", `"linear", "exponential"`},
			{field.ErrorTypeInvalid, "spec.delivery.backoffDelay", "must be greater than or equal to 0"},
			{field.ErrorTypeInvalid, "spec.delivery.retryAfterMax", "must be an ISO 8601 duration"},
			{field.ErrorTypeNotSupported, "spec.delivery.format", `"json", "binary"`},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, tt.in.Validate(field.NewPath("spec", "delivery")), tt.want...)
		})
	}
}

// TestValidateSubscriber covers eventing duckv1.SubscriberSpec.
func TestValidateSubscriber(t *testing.T) {
	certificate := newCertificate(t)
	tests := []struct {
		name string
		in   *SubscriberSpec
		want []fault
	}{
		{"left out", nil, nil},
		{"uid alone", &SubscriberSpec{UID: "1"}, nil},
		{"everything", &SubscriberSpec{
			UID: "1", SubscriberURI: "http://a", SubscriberCACerts: &certificate,
			ReplyURI: "https://b/in", ReplyCACerts: &certificate,
			Delivery: &DeliverySpec{DeadLetterSink: &Destination{URI: "http://c"}},
		}, nil},
		{"everything wrong", &SubscriberSpec{
			SubscriberURI: "/a", SubscriberCACerts: ptr.To("a"),
			ReplyURI: "b", ReplyCACerts: ptr.To("b"),
			Delivery: &DeliverySpec{Retry: ptr.To[int32](-1)},
		}, []fault{
			{field.ErrorTypeRequired, "subscribers[0].uid", "must"},
			{field.ErrorTypeInvalid, "subscribers[0].subscriberUri", "must be an absolute URL"},
			{field.ErrorTypeInvalid, "subscribers[0].subscriberCACerts", "must be PEM certificates"},
			{field.ErrorTypeInvalid, "subscribers[0].replyUri", "must be an absolute URL"},
			{field.ErrorTypeInvalid, "subscribers[0].replyCACerts", "must be PEM certificates"},
			{field.ErrorTypeInvalid, "subscribers[0].delivery.retry", "must be greater than or equal to 0"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, tt.in.Validate(field.NewPath("subscribers").Index(0)), tt.want...)
		})
	}
}
