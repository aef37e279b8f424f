package v1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

// newSubscription returns a valid Subscription with defaults, changed by the given functions.
func newSubscription(changes ...func(*Subscription)) *Subscription {
	s := &Subscription{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"},
		Spec: SubscriptionSpec{
			Channel:    duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "orders"},
			Subscriber: &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "orders"}},
		},
	}
	SetDefaults_Subscription(s)
	for _, change := range changes {
		change(s)
	}
	return s
}

// A channel of the own namespace is required, and one of subscriber and reply (eventing Subscription Lifecycle-1, -8,
// Subscription-1).
func TestValidateSubscription(t *testing.T) {
	tests := []struct {
		name string
		in   *Subscription
		want []fault
	}{
		{"valid", newSubscription(), nil},
		{"another kind of channel", newSubscription(func(s *Subscription) { s.Spec.Channel.Kind = "InMemoryChannel" }), nil},
		{"order of delivery", newSubscription(func(s *Subscription) {
			s.Annotations = map[string]string{duckv1.DeliveryOrderAnnotationKey: duckv1.DeliveryOrdered}
		}), nil},
		{"unknown order of delivery", newSubscription(func(s *Subscription) {
			s.Annotations = map[string]string{duckv1.DeliveryOrderAnnotationKey: "strict"}
		}), []fault{
			{field.ErrorTypeNotSupported, "metadata.annotations[eventing.knative.dev/delivery.order]", `"ordered", "unordered"`}}},
		{"empty (eventing Subscription v1 spec)", &Subscription{}, []fault{
			{field.ErrorTypeRequired, "metadata.name", "name or generateName is required"},
			{field.ErrorTypeRequired, "metadata.namespace", ""},
			{field.ErrorTypeRequired, "spec.channel", "must name a channel"},
			{field.ErrorTypeRequired, "spec.subscriber", "must have at least one of `subscriber` and `reply`"}}},
		{"incomplete channel (eventing KReference)", newSubscription(func(s *Subscription) { s.Spec.Channel = duckv1.KReference{Name: "orders"} }), []fault{
			{field.ErrorTypeRequired, "spec.channel.apiVersion", "must"},
			{field.ErrorTypeRequired, "spec.channel.kind", "must"}}},
		{"channel without a name", newSubscription(func(s *Subscription) { s.Spec.Channel.Name = "" }), []fault{
			{field.ErrorTypeRequired, "spec.channel.name", "must"}}},
		// Settings decide whether the namespace may be set: pkg/registry/eventing/links.
		{"channel of another namespace", newSubscription(func(s *Subscription) { s.Spec.Channel.Namespace = "events" }), nil},
		{"channel of another namespace and kind", newSubscription(func(s *Subscription) { s.Spec.Channel.Namespace, s.Spec.Channel.Kind = "events", "KafkaChannel" }), []fault{
			{field.ErrorTypeForbidden, "spec.channel.namespace", "may only be the Subscription's own namespace for a KafkaChannel.messaging.knative.dev"}}},
		{"channel of another kind in the own namespace", newSubscription(func(s *Subscription) { s.Spec.Channel.Namespace, s.Spec.Channel.Kind = "shop", "KafkaChannel" }), nil},
		{"channel with an invalid namespace: one error", newSubscription(func(s *Subscription) { s.Spec.Channel.Namespace = "A B" }), []fault{
			{field.ErrorTypeInvalid, "spec.channel.namespace", "RFC 1123 label"}}},
		{"channel with an address", newSubscription(func(s *Subscription) { s.Spec.Channel.Address = ptr.To("") }), []fault{
			{field.ErrorTypeForbidden, "spec.channel.address", "may not be set"}}},

		{"reply alone (eventing Subscription Lifecycle)", newSubscription(func(s *Subscription) {
			s.Spec.Subscriber, s.Spec.Reply = nil, &duckv1.Destination{URI: "http://a"}
		}), nil},
		{"reply beside an empty subscriber", newSubscription(func(s *Subscription) {
			s.Spec.Subscriber, s.Spec.Reply = &duckv1.Destination{}, &duckv1.Destination{URI: "http://a"}
		}), []fault{
			{field.ErrorTypeRequired, "spec.subscriber", "must have at least one of `ref` and `uri`"}}},
		{"subscriber beside an empty reply", newSubscription(func(s *Subscription) { s.Spec.Reply = &duckv1.Destination{} }), []fault{
			{field.ErrorTypeRequired, "spec.reply", "must have at least one of `ref` and `uri`"}}},
		{"neither (eventing Subscription Lifecycle)", newSubscription(func(s *Subscription) {
			s.Spec.Subscriber, s.Spec.Reply = nil, nil
		}), []fault{
			{field.ErrorTypeRequired, "spec.subscriber", "must have at least one of `subscriber` and `reply`"}}},
		{"invalid destinations (eventing duckv1.Destination)", newSubscription(func(s *Subscription) {
			s.Spec.Subscriber, s.Spec.Reply = &duckv1.Destination{URI: "/a"}, &duckv1.Destination{Audience: ptr.To("b")}
		}), []fault{
			{field.ErrorTypeInvalid, "spec.subscriber.uri", "must be an absolute URL"},
			{field.ErrorTypeRequired, "spec.reply", "must have at least one of `ref` and `uri`"}}},
		{"delivery (eventing DeliverySpec)", newSubscription(func(s *Subscription) {
			s.Spec.Delivery = &duckv1.DeliverySpec{BackoffPolicy: ptr.To(duckv1.BackoffPolicyType("cubic"))}
		}), []fault{
			{field.ErrorTypeNotSupported, "spec.delivery.backoffPolicy", `"linear", "exponential"`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateSubscription(tt.in), tt.want...)
		})
	}
}

// TestValidateSubscriptionUpdate covers eventing Subscription Lifecycle-10, -11, -13 and Subscription-1: spec.channel is immutable, all
// other fields may change.
func TestValidateSubscriptionUpdate(t *testing.T) {
	tests := []struct {
		name string
		in   *Subscription
		want []fault
	}{
		{"unchanged", newSubscription(), nil},
		{"everything but the channel", newSubscription(func(s *Subscription) {
			s.Spec.Subscriber = &duckv1.Destination{URI: "http://a"}
			s.Spec.Reply = &duckv1.Destination{URI: "http://b"}
			s.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](1)}
		}), nil},
		{"channel", newSubscription(func(s *Subscription) { s.Spec.Channel.Name = "other" }), []fault{
			{field.ErrorTypeInvalid, "spec.channel", `to '{"kind":"Channel","name":"other","apiVersion":"messaging.knative.dev/v1"}'; delete and recreate the object instead`}}},
		{"channel removed: one error", newSubscription(func(s *Subscription) { s.Spec.Channel = duckv1.KReference{} }), []fault{
			{field.ErrorTypeRequired, "spec.channel", "must name a channel"}}},
		{"own namespace added", newSubscription(func(s *Subscription) { s.Spec.Channel.Namespace = "shop" }), nil},
		{"another namespace added", newSubscription(func(s *Subscription) { s.Spec.Channel.Namespace = "events" }), []fault{
			{field.ErrorTypeInvalid, "spec.channel", "may not change"}}},
		{"the new object is validated", newSubscription(func(s *Subscription) { s.Spec.Subscriber = nil }), []fault{
			{field.ErrorTypeRequired, "spec.subscriber", "must"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateSubscriptionUpdate(tt.in, newSubscription()), tt.want...)
		})
	}
}

func FuzzSubscriptionValidation(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"messaging.knative.dev/v1","kind":"Subscription","metadata":{"name":"orders","namespace":"shop"},` +
		`"spec":{"channel":{"apiVersion":"messaging.knative.dev/v1","kind":"Channel","name":"orders"},` +
		`"subscriber":{"ref":{"apiVersion":"serving.knative.dev/v1","kind":"Service","name":"orders"},"uri":"in?x=1"},` +
		`"reply":{"ref":{"apiVersion":"messaging.knative.dev/v1","kind":"Channel","name":"replies","namespace":"billing"}},` +
		`"delivery":{"deadLetterSink":{"uri":"http://dead"},"retry":1,"backoffPolicy":"linear","backoffDelay":"PT1S"}}}`))
	f.Add([]byte(`{"metadata":{"name":"s","namespace":"n"},"spec":{"channel":{"kind":"Channel","name":"c","apiVersion":"v1"},"subscriber":{},"reply":{"uri":"http://a"}}}`))
	f.Add([]byte(`{"metadata":{"name":"s","namespace":"n"},"spec":{"channel":{"namespace":"n","address":"x"},"subscriber":{"ref":{}},"reply":null,"delivery":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		apitest.FuzzObject(t, data, func(s *Subscription) any { return s.Spec }, SetDefaults_Subscription, ValidateSubscription)
	})
}
