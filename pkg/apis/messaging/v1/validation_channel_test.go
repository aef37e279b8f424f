package v1

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

// newChannel returns a valid Channel with defaults, changed by the given functions.
func newChannel(changes ...func(*Channel)) *Channel {
	c := &Channel{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	c.SetCreateDefaults(DefaultSettings())
	for _, change := range changes {
		change(c)
	}
	return c
}

func TestValidateChannel(t *testing.T) {
	named := func(name string) *Channel { return newChannel(func(c *Channel) { c.Name = name }) }
	template := func(raw string) *Channel {
		return newChannel(func(c *Channel) { c.Spec.ChannelTemplate.Spec = &runtime.RawExtension{Raw: []byte(raw)} })
	}
	subscribers := func(subscribers ...duckv1.SubscriberSpec) *Channel {
		return newChannel(func(c *Channel) { c.Spec.Subscribers = subscribers })
	}
	tests := []struct {
		name string
		in   *Channel
		want []fault
	}{
		{"valid", newChannel(), nil},
		{"kind of another controller", newChannel(func(c *Channel) {
			c.Spec.ChannelTemplate.TypeMeta = metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1beta1", Kind: "KafkaChannel"}
		}), nil},
		{"nothing at all", &Channel{}, []fault{
			{field.ErrorTypeRequired, "metadata.name", "name or generateName is required"},
			{field.ErrorTypeRequired, "metadata.namespace", ""},
			{field.ErrorTypeRequired, "spec.channelTemplate", "must name the kind"}}},

		{"longest name", named(strings.Repeat("a", 63)), nil},
		{"name longer than a label", named(strings.Repeat("a", 64)), []fault{
			{field.ErrorTypeInvalid, "metadata.name", "must be no more than 63 characters"}}},
		{"delivery of the template", template(`{"delivery":{"retry":3,"backoffDelay":"PT1S"}}`), nil},
		{"delivery of the template, invalid", template(`{"delivery":{"retry":-1}}`), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate.spec.delivery.retry", "-1"}}},
		{"delivery of the template, unknown field", template(`{"delivery":{"retries":1}}`), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate.spec.delivery", `must be delivery options: json: unknown field "retries"`}}},
		{"name longer than any label", named(strings.Repeat("a", 64)), []fault{
			{field.ErrorTypeInvalid, "metadata.name", "must be no more than 63"}}},
		{"name with dots", named("orders.eu"), []fault{
			{field.ErrorTypeInvalid, "metadata.name", "must not contain dots"}}},
		{"long generateName, short name", newChannel(func(c *Channel) { c.GenerateName = strings.Repeat("a", 60) + "-" }), nil},

		{"template without a kind (eventing Channel Lifecycle)", newChannel(func(c *Channel) { c.Spec.ChannelTemplate = &ChannelTemplateSpec{} }), []fault{
			{field.ErrorTypeRequired, "spec.channelTemplate.apiVersion", "must"},
			{field.ErrorTypeRequired, "spec.channelTemplate.kind", "must"}}},
		{"template with an invalid version", newChannel(func(c *Channel) { c.Spec.ChannelTemplate.APIVersion = "a/b/c" }), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate.apiVersion", "'<group>/<version>'"}}},
		{"template parameters", template(`{"replicas":3}`), nil},
		{"empty template parameters", template(``), nil},
		{"template parameters are a list", template(`[1]`), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate.spec", "must be a JSON object"}}},
		{"template parameters are null", template(`null`), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate.spec", "must be a JSON object"}}},
		{"template parameters are not JSON", template(`{"a":`), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate.spec", "must be a JSON object"}}},
		{"template parameters with trailing text", template(`{} {}`), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate.spec", "must be a JSON object"}}},

		{"subscribers", subscribers(duckv1.SubscriberSpec{UID: "1", SubscriberURI: "http://a"}, duckv1.SubscriberSpec{UID: "2"}), nil},
		{"subscribers without uids, or with the same (eventing duckv1.SubscriberSpec)",
			subscribers(duckv1.SubscriberSpec{UID: "1"}, duckv1.SubscriberSpec{}, duckv1.SubscriberSpec{UID: "1"}, duckv1.SubscriberSpec{}), []fault{
				{field.ErrorTypeRequired, "spec.subscribers[1].uid", "must"},
				{field.ErrorTypeDuplicate, "spec.subscribers[2].uid", `"1"`},
				{field.ErrorTypeRequired, "spec.subscribers[3].uid", "must"}}},
		{"subscribers' content", subscribers(duckv1.SubscriberSpec{UID: "1", SubscriberURI: "/a", ReplyURI: "%", Delivery: &duckv1.DeliverySpec{Timeout: ptr.To("P0D")}}), []fault{
			{field.ErrorTypeInvalid, "spec.subscribers[0].subscriberUri", "must be an absolute URL"},
			{field.ErrorTypeInvalid, "spec.subscribers[0].replyUri", "must be a URL"},
			{field.ErrorTypeInvalid, "spec.subscribers[0].delivery.timeout", "must be greater than 0"}}},
		{"delivery (eventing DeliverySpec)", newChannel(func(c *Channel) { c.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](-1)} }), []fault{
			{field.ErrorTypeInvalid, "spec.delivery.retry", "must be greater than or equal to 0"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateChannel(tt.in), tt.want...)
		})
	}
}

// TestValidateChannelUpdate covers eventing Channel Lifecycle-5, -6: spec.channelTemplate is immutable.
func TestValidateChannelUpdate(t *testing.T) {
	with := func(raw string) *Channel {
		return newChannel(func(c *Channel) {
			c.Spec.ChannelTemplate.Spec = &runtime.RawExtension{Raw: []byte(raw)}
			SetDefaults_Channel(c)
		})
	}
	tests := []struct {
		name    string
		in, old *Channel
		want    []fault
	}{
		{"unchanged", newChannel(), newChannel(), nil},
		{"delivery and subscribers", newChannel(func(c *Channel) {
			c.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](1)}
			c.Spec.Subscribers = []duckv1.SubscriberSpec{{UID: "1"}}
		}), newChannel(), nil},
		{"parameters written differently", with(`{ "b":1, "a":"<" }`), with(`{"a":"<","b":1}`), nil},
		{"parameters", with(`{"a":2}`), with(`{"a":1}`), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate", `"spec":{"a":1}}' to '{"kind":"JetStreamChannel","apiVersion":"messaging.knative.dev/v1","spec":{"a":2}}'; delete and recreate the object instead`}}},
		{"kind", newChannel(func(c *Channel) { c.Spec.ChannelTemplate.Kind = ChannelKindInMemory }), newChannel(), []fault{
			{field.ErrorTypeInvalid, "spec.channelTemplate", "may not change from '"}}},
		{"template taken away", newChannel(func(c *Channel) { c.Spec.ChannelTemplate = nil }), newChannel(), []fault{
			{field.ErrorTypeRequired, "spec.channelTemplate", "must"}}},
		{"the new object is validated", newChannel(func(c *Channel) { c.Spec.Delivery = &duckv1.DeliverySpec{Format: ptr.To(duckv1.FormatType("xml"))} }), newChannel(), []fault{
			{field.ErrorTypeNotSupported, "spec.delivery.format", `"json", "binary"`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateChannelUpdate(tt.in, tt.old), tt.want...)
		})
	}
}

func FuzzChannelValidation(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"messaging.knative.dev/v1","kind":"Channel","metadata":{"name":"orders","namespace":"shop"}}`))
	f.Add([]byte(`{"metadata":{"name":"orders","namespace":"shop"},"spec":{"channelTemplate":{"apiVersion":"messaging.knative.dev/v1","kind":"InMemoryChannel",` +
		`"spec":{"b":[1.0,"<é>",null],"a":{"c":1e400}}},"delivery":{"retry":3,"backoffDelay":"PT0.2S","backoffPolicy":"exponential"},` +
		`"subscribers":[{"uid":"6b1e","name":"s","generation":2,"subscriberUri":"http://a.shop.svc/","replyUri":"https://b/","delivery":{"deadLetterSink":{"uri":"http://c"}}}]}}`))
	f.Add([]byte(`{"metadata":{"generateName":"c-","namespace":"shop"},"spec":{"channelTemplate":{"spec":null},"subscribers":[{},null,{"uid":""}]}}`))
	f.Add([]byte(`{"metadata":{"name":"a","namespace":"b"},"spec":{"channelTemplate":{"kind":"K","apiVersion":"v1","spec":{}},"subscribers":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		apitest.FuzzObject(t, data, func(c *Channel) any { return c.Spec }, SetDefaults_Channel, ValidateChannel)
	})
}
