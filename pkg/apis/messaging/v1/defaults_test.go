package v1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

func destination(namespace string) *duckv1.Destination {
	return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: "a"}}
}

// TestChannelDefaults covers eventing Channel Lifecycle-7, -8: the template is populated on creation.
func TestChannelDefaults(t *testing.T) {
	template := func(kind, raw string) *ChannelTemplateSpec {
		template := &ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1", Kind: kind}}
		if raw != "" {
			template.Spec = &runtime.RawExtension{Raw: []byte(raw)}
		}
		return template
	}
	tests := []struct {
		name     string
		in, want ChannelSpec
	}{
		{"nothing said", ChannelSpec{}, ChannelSpec{ChannelTemplate: template(ChannelKindJetStream, "")}},
		{"template stays",
			ChannelSpec{ChannelTemplate: template(ChannelKindInMemory, "")},
			ChannelSpec{ChannelTemplate: template(ChannelKindInMemory, "")}},
		{"an incomplete template is not completed",
			ChannelSpec{ChannelTemplate: &ChannelTemplateSpec{}},
			ChannelSpec{ChannelTemplate: &ChannelTemplateSpec{}}},
		{"parameters in one form",
			ChannelSpec{ChannelTemplate: template("A", ` { "b": 1.0, "a": [ 12345678901234567890, null ] } `)},
			ChannelSpec{ChannelTemplate: template("A", `{"a":[12345678901234567890,null],"b":1.0}`)}},
		{"parameters that are no JSON stay for validation",
			ChannelSpec{ChannelTemplate: template("A", `{"a":1} {`)},
			ChannelSpec{ChannelTemplate: template("A", `{"a":1} {`)}},
		{"dead letter sink gets the namespace",
			ChannelSpec{ChannelTemplate: template("A", ""), Delivery: &duckv1.DeliverySpec{DeadLetterSink: destination("")}},
			ChannelSpec{ChannelTemplate: template("A", ""), Delivery: &duckv1.DeliverySpec{DeadLetterSink: destination("shop")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &Channel{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: tt.in}
			SetDefaults_Channel(c)
			if diff := cmp.Diff(tt.want, c.Spec); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSubscriptionDefaults(t *testing.T) {
	channel := duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "a"}
	tests := []struct {
		name     string
		in, want SubscriptionSpec
	}{
		{"nothing said", SubscriptionSpec{}, SubscriptionSpec{}},
		{"all but the channel get the namespace (eventing Subscription Lifecycle)",
			SubscriptionSpec{Channel: channel, Subscriber: destination(""), Reply: destination(""), Delivery: &duckv1.DeliverySpec{DeadLetterSink: destination("")}},
			SubscriptionSpec{Channel: channel, Subscriber: destination("shop"), Reply: destination("shop"), Delivery: &duckv1.DeliverySpec{DeadLetterSink: destination("shop")}}},
		{"other namespaces stay",
			SubscriptionSpec{Channel: channel, Subscriber: destination("a"), Reply: destination("b")},
			SubscriptionSpec{Channel: channel, Subscriber: destination("a"), Reply: destination("b")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &Subscription{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: tt.in}
			SetDefaults_Subscription(s)
			if diff := cmp.Diff(tt.want, s.Spec); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
}
