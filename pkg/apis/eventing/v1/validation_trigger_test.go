package v1

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

const dependencyPath = "metadata.annotations[knative.dev/dependency]"

// newTrigger returns a valid Trigger with defaults, changed by the given functions.
func newTrigger(changes ...func(*Trigger)) *Trigger {
	t := &Trigger{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"},
		Spec: TriggerSpec{
			Broker:     "default",
			Subscriber: duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "orders"}},
		},
	}
	SetDefaults_Trigger(t)
	for _, change := range changes {
		change(t)
	}
	return t
}

// linked makes a Trigger refer to a Broker of another namespace.
func linked(t *Trigger) {
	t.Spec.Broker = ""
	t.Spec.BrokerRef = &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Namespace: "events", Name: "default"}
}

// A Broker and a subscriber are required (eventing Trigger-1, -2).
func TestValidateTrigger(t *testing.T) {
	dependency := func(value string) *Trigger {
		return newTrigger(func(t *Trigger) { t.Annotations = map[string]string{DependencyAnnotationKey: value} })
	}
	attributes := func(attributes map[string]string) *Trigger {
		return newTrigger(func(t *Trigger) { t.Spec.Filter.Attributes = attributes })
	}
	tests := []struct {
		name string
		in   *Trigger
		want []fault
	}{
		{"valid", newTrigger(), nil},
		{"empty (eventing Trigger v1 spec)", &Trigger{}, []fault{
			{field.ErrorTypeRequired, "metadata.name", "name or generateName is required"},
			{field.ErrorTypeRequired, "metadata.namespace", ""},
			{field.ErrorTypeRequired, "spec.broker", "must name a Broker of the same namespace"},
			{field.ErrorTypeRequired, "spec.subscriber", "must have at least one of `ref` and `uri`"}}},
		{"name", newTrigger(func(t *Trigger) { t.Name = "my_trigger" }), []fault{
			{field.ErrorTypeInvalid, "metadata.name", "RFC 1123 subdomain"}}},
		{"broker is not a valid name", newTrigger(func(t *Trigger) { t.Spec.Broker = "shop/default" }), []fault{
			{field.ErrorTypeInvalid, "spec.broker", "RFC 1123 subdomain"}}},
		{"brokerRef", newTrigger(linked), nil},
		{"brokerRef to its own namespace", newTrigger(linked, func(t *Trigger) { t.Spec.BrokerRef.Namespace = "" }), nil},
		{"broker and brokerRef", newTrigger(linked, func(t *Trigger) { t.Spec.Broker = "default" }), []fault{
			{field.ErrorTypeForbidden, "spec.brokerRef", "exactly one"}}},
		{"brokerRef is incomplete", newTrigger(func(t *Trigger) { t.Spec.Broker, t.Spec.BrokerRef = "", &duckv1.KReference{Namespace: "Shop"} }), []fault{
			{field.ErrorTypeRequired, "spec.brokerRef.apiVersion", "must"},
			{field.ErrorTypeRequired, "spec.brokerRef.kind", "must"},
			{field.ErrorTypeInvalid, "spec.brokerRef.namespace", "RFC 1123 label"},
			{field.ErrorTypeRequired, "spec.brokerRef.name", "must"}}},
		{"brokerRef to another kind", newTrigger(linked, func(t *Trigger) { t.Spec.BrokerRef.Kind = "Channel" }), []fault{
			{field.ErrorTypeInvalid, "spec.brokerRef.kind", "must be a Broker of the group 'eventing.knative.dev'"}}},
		{"address of brokerRef", newTrigger(linked, func(t *Trigger) { t.Spec.BrokerRef.Address = ptr.To("http") }), []fault{
			{field.ErrorTypeForbidden, "spec.brokerRef.address", "may not be set"}}},
		{"subscriber (eventing duckv1.Destination)", newTrigger(func(t *Trigger) { t.Spec.Subscriber.Ref.Name = "" }), []fault{
			{field.ErrorTypeRequired, "spec.subscriber.ref.name", "must"}}},
		{"subscriber in another namespace", newTrigger(func(t *Trigger) { t.Spec.Subscriber.Ref.Namespace = "billing" }), nil},
		{"delivery (eventing DeliverySpec)", newTrigger(func(t *Trigger) { t.Spec.Delivery = &duckv1.DeliverySpec{BackoffDelay: ptr.To("1s")} }), []fault{
			{field.ErrorTypeInvalid, "spec.delivery.backoffDelay", "ISO 8601"}}},

		{"attributes (eventing TriggerFilter)", attributes(map[string]string{"type": "order.placed", "source": "", "ext1": "x"}), nil},
		{"no filter", newTrigger(func(t *Trigger) { t.Spec.Filter = nil }), nil},
		{"attribute names, in order", attributes(map[string]string{"myType": "a", "": "b", "1st": "c", "a-b": "d", "type": "e"}), []fault{
			{field.ErrorTypeInvalid, "spec.filter.attributes[]", "must match regex '^[a-z][a-z0-9]*$'"},
			{field.ErrorTypeInvalid, "spec.filter.attributes[1st]", "must match regex"},
			{field.ErrorTypeInvalid, "spec.filter.attributes[a-b]", "must match regex"},
			{field.ErrorTypeInvalid, "spec.filter.attributes[myType]", "must match regex"}}},

		{"dependency", dependency(`{"kind":"PingSource","name":"ping","apiVersion":"sources.knative.dev/v1"}`), nil},
		{"dependency in the Trigger's namespace", dependency(`{"kind":"PingSource","name":"ping","apiVersion":"sources.knative.dev/v1","namespace":"shop"}`), nil},
		{"dependency in another namespace", dependency(`{"kind":"PingSource","name":"ping","apiVersion":"sources.knative.dev/v1","namespace":"billing"}`), []fault{
			{field.ErrorTypeInvalid, dependencyPath + ".namespace", "must be empty or the namespace of the Trigger, 'shop'"}}},
		{"dependency is empty", dependency(""), []fault{
			{field.ErrorTypeInvalid, dependencyPath, "must be a JSON ObjectReference"}}},
		{"dependency with trailing text", dependency(`{} {}`), []fault{
			{field.ErrorTypeInvalid, dependencyPath, "must be a JSON ObjectReference"}}},
		{"dependency on nothing", dependency("null"), []fault{
			{field.ErrorTypeRequired, dependencyPath + ".apiVersion", "must"},
			{field.ErrorTypeRequired, dependencyPath + ".kind", "must"},
			{field.ErrorTypeRequired, dependencyPath + ".name", "must"}}},

		{"order of delivery", newTrigger(func(t *Trigger) {
			t.Annotations = map[string]string{duckv1.DeliveryOrderAnnotationKey: duckv1.DeliveryOrdered}
		}), nil},
		{"unknown order of delivery", newTrigger(func(t *Trigger) {
			t.Annotations = map[string]string{duckv1.DeliveryOrderAnnotationKey: "strict"}
		}), []fault{
			{field.ErrorTypeNotSupported, "metadata.annotations[eventing.knative.dev/delivery.order]", `"ordered", "unordered"`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateTrigger(tt.in), tt.want...)
		})
	}
}

// TestValidateTriggerUpdate covers eventing Trigger Lifecycle-6, -10 and Trigger-1: spec.broker is immutable, all other fields may change.
func TestValidateTriggerUpdate(t *testing.T) {
	tests := []struct {
		name string
		in   *Trigger
		want []fault
	}{
		{"unchanged", newTrigger(), nil},
		{"everything but the broker", newTrigger(func(t *Trigger) {
			t.Spec.Subscriber = duckv1.Destination{URI: "http://other"}
			t.Spec.Filter.Attributes = map[string]string{"type": "a"}
			t.Spec.Filters = []SubscriptionsAPIFilter{{CESQL: "TRUE"}}
			t.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](1)}
			t.Annotations = map[string]string{"team": "orders"}
		}), nil},
		{"broker", newTrigger(func(t *Trigger) { t.Spec.Broker = "other" }), []fault{
			{field.ErrorTypeInvalid, "spec.broker", "may not change from 'default' to 'other'; delete and recreate the object instead"}}},
		{"broker taken away", newTrigger(func(t *Trigger) { t.Spec.Broker = "" }), []fault{
			{field.ErrorTypeRequired, "spec.broker", "must name a Broker"}}},
		{"broker replaced by brokerRef", newTrigger(linked), []fault{
			{field.ErrorTypeInvalid, "spec.broker", "may not change from 'default' to ''"}}},
		{"the new object is validated", newTrigger(func(t *Trigger) { t.Spec.Subscriber = duckv1.Destination{} }), []fault{
			{field.ErrorTypeRequired, "spec.subscriber", "must"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateTriggerUpdate(tt.in, newTrigger()), tt.want...)
		})
	}
}

// In contrast to broker, brokerRef may change.
func TestValidateBrokerRefUpdate(t *testing.T) {
	changed := newTrigger(linked, func(t *Trigger) { t.Spec.BrokerRef.Name = "other" })
	apitest.ExpectFaults[fault](t, ValidateTriggerUpdate(changed, newTrigger(linked)))
	apitest.ExpectFaults(t, ValidateTriggerUpdate(newTrigger(), newTrigger(linked)), fault{field.ErrorTypeInvalid, "spec.broker", "may not change"})
}

func FuzzTriggerValidation(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"eventing.knative.dev/v1","kind":"Trigger","metadata":{"name":"orders","namespace":"shop",` +
		`"annotations":{"knative.dev/dependency":"{\"kind\":\"PingSource\",\"name\":\"ping\",\"apiVersion\":\"sources.knative.dev/v1\"}"}},` +
		`"spec":{"broker":"default","filter":{"attributes":{"type":"order.placed","source":""}},` +
		`"subscriber":{"ref":{"apiVersion":"serving.knative.dev/v1","kind":"Service","name":"orders"},"uri":"/in"}}}`))
	f.Add([]byte(`{"metadata":{"name":"orders","namespace":"shop","labels":{"eventing.knative.dev/broker":"x"}},"spec":{"broker":"b","filters":[` +
		`{"any":[{"exact":{"type":"a"}},{"not":{"prefix":{"source":"/b"}}}]},{"all":[{"suffix":{"subject":".c"}}]},` +
		`{"cesql":"source LIKE '%a' AND EXISTS sub OR LENGTH(type) IN (1, 2)"}],` +
		`"subscriber":{"uri":"http://a"},"delivery":{"deadLetterSink":{"uri":"http://dead"},"retry":3,"backoffPolicy":"linear","backoffDelay":"PT1S"}}}`))
	f.Add([]byte(`{"metadata":{"name":"t","namespace":"n"},"spec":{"broker":"` + strings.Repeat("b", 70) + `","filters":[{"all":[]},{"exact":{}},{}],"subscriber":{}}}`))
	f.Add([]byte(`{"metadata":{"name":"t","namespace":"n"},"spec":{"broker":"b","filters":[{"cesql":"((a = 'b\\'c')) <> !"}],"subscriber":{"uri":"http://a"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		apitest.FuzzObject(t, data, func(tr *Trigger) any { return tr.Spec }, SetDefaults_Trigger, ValidateTrigger)
	})
}
