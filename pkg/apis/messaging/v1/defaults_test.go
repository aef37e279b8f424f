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
		{"parameters that are not JSON do not change",
			ChannelSpec{ChannelTemplate: template("A", `{"a":1} {`)},
			ChannelSpec{ChannelTemplate: template("A", `{"a":1} {`)}},
		{"dead letter sink gets the namespace",
			ChannelSpec{ChannelTemplate: template("A", ""), Delivery: &duckv1.DeliverySpec{DeadLetterSink: destination("")}},
			ChannelSpec{ChannelTemplate: template("A", ""), Delivery: &duckv1.DeliverySpec{DeadLetterSink: destination("shop")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &Channel{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: tt.in}
			c.SetCreateDefaults(DefaultSettings())
			if diff := cmp.Diff(tt.want, c.Spec); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
}

// TestChannelDefaultsBySettings covers the operator's settings (default-ch-webhook), and that they apply once.
func TestChannelDefaultsBySettings(t *testing.T) {
	template := func(kind string) *ChannelTemplateSpec {
		return &ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1", Kind: kind}}
	}
	settings := Settings{Cluster: template(ChannelKindInMemory), Namespaces: map[string]*ChannelTemplateSpec{"shop": template("KafkaChannel")}}
	for namespace, want := range map[string]string{"shop": "KafkaChannel", "other": ChannelKindInMemory} {
		c := &Channel{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		SetDefaults_Channel(c)
		if c.Spec.ChannelTemplate != nil {
			t.Errorf("a decoded Channel has the template %v", c.Spec.ChannelTemplate)
		}
		c.SetCreateDefaults(settings)
		if diff := cmp.Diff(template(want), c.Spec.ChannelTemplate); diff != "" {
			t.Errorf("in %s (-want +got):\n%s", namespace, diff)
		}
		if c.Spec.ChannelTemplate == settings.of(namespace) {
			t.Error("the Channel shares the template of the settings")
		}
		updated := &Channel{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		updated.SetUpdateDefaults(c)
		if diff := cmp.Diff(c.Spec, updated.Spec); diff != "" {
			t.Errorf("in %s, updated (-want +got):\n%s", namespace, diff)
		}
	}
	stored := &Channel{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", UID: "u"}}
	SetDefaults_Channel(stored)
	if diff := cmp.Diff(template(ChannelKindJetStream), stored.Spec.ChannelTemplate); diff != "" {
		t.Errorf("stored without a template (-want +got):\n%s", diff)
	}
}

// TestTemplateDelivery covers delivery options among the parameters of a template.
func TestTemplateDelivery(t *testing.T) {
	retry := func(n int32) *duckv1.DeliverySpec { return &duckv1.DeliverySpec{Retry: &n} }
	for name, tt := range map[string]struct {
		kind, raw string
		delivery  *duckv1.DeliverySpec
		want      *duckv1.DeliverySpec
	}{
		"template's":         {ChannelKindJetStream, `{"delivery":{"retry":3}}`, nil, retry(3)},
		"in memory":          {ChannelKindInMemory, `{"other":1,"delivery":{"retry":3}}`, nil, retry(3)},
		"own options win":    {ChannelKindJetStream, `{"delivery":{"retry":3}}`, retry(5), retry(5)},
		"empty own options":  {ChannelKindJetStream, `{"delivery":{"retry":3}}`, &duckv1.DeliverySpec{}, retry(3)},
		"namespace":          {ChannelKindJetStream, `{"delivery":{"deadLetterSink":{"ref":{"apiVersion":"v1","kind":"Service","name":"a"}}}}`, nil, &duckv1.DeliverySpec{DeadLetterSink: destination("shop")}},
		"foreign template's": {"KafkaChannel", `{"delivery":{"retry":3}}`, nil, nil},
		"none":               {ChannelKindJetStream, `{"delivery":null}`, nil, nil},
		"invalid":            {ChannelKindJetStream, `{"delivery":{"retry":-3}}`, nil, nil},
		"no object":          {ChannelKindJetStream, `7`, nil, nil},
	} {
		c := &Channel{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: ChannelSpec{Delivery: tt.delivery, ChannelTemplate: &ChannelTemplateSpec{
			TypeMeta: metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1", Kind: tt.kind}, Spec: &runtime.RawExtension{Raw: []byte(tt.raw)},
		}}}
		SetDefaults_Channel(c)
		if diff := cmp.Diff(tt.want, c.Spec.Delivery); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSubscriptionDefaults(t *testing.T) {
	channel := duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "a"}
	tests := []struct {
		name     string
		in, want SubscriptionSpec
	}{
		{"nothing said", SubscriptionSpec{}, SubscriptionSpec{}},
		{"all references except the channel get the namespace (eventing Subscription Lifecycle)",
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
