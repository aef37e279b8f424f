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

const classPath = "metadata.annotations[eventing.knative.dev/broker.class]"

// newBroker returns a valid Broker with defaults, changed by the given functions.
func newBroker(changes ...func(*Broker)) *Broker {
	b := &Broker{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default"},
		Spec:       BrokerSpec{Config: &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Name: "options"}},
	}
	b.SetCreateDefaults(DefaultSettings())
	for _, change := range changes {
		change(b)
	}
	return b
}

func TestValidateBroker(t *testing.T) {
	tests := []struct {
		name string
		in   *Broker
		want []fault
	}{
		{"valid", newBroker(), nil},
		{"dotted name", newBroker(func(b *Broker) { b.Name = "orders.eu" }), nil},
		{"long name", newBroker(func(b *Broker) { b.Name = strings.Repeat("a", 253) }), nil},
		{"alias of our class", newBroker(func(b *Broker) { b.Annotations[BrokerClassAnnotationKey] = BrokerClassMTChannelBased }), nil},
		{"class of another controller", newBroker(func(b *Broker) { b.Annotations[BrokerClassAnnotationKey] = "Kafka" }), nil},
		{"empty config (eventing Broker Lifecycle)", newBroker(func(b *Broker) { b.Spec.Config = &duckv1.KReference{} }), nil},
		{"no config", newBroker(func(b *Broker) { b.Spec.Config = nil }), nil},
		{"nothing at all", &Broker{}, []fault{
			{field.ErrorTypeRequired, "metadata.name", "name or generateName is required"},
			{field.ErrorTypeRequired, "metadata.namespace", ""},
			{field.ErrorTypeRequired, classPath, "must name the class"}}},
		{"name", newBroker(func(b *Broker) { b.Name = "Default" }), []fault{
			{field.ErrorTypeInvalid, "metadata.name", "RFC 1123 subdomain"}}},
		{"no class (eventing Broker Lifecycle)", newBroker(func(b *Broker) { b.Annotations = nil }), []fault{
			{field.ErrorTypeRequired, classPath, "must name the class"}}},
		{"empty class", newBroker(func(b *Broker) { b.Annotations[BrokerClassAnnotationKey] = "" }), []fault{
			{field.ErrorTypeRequired, classPath, "must name the class"}}},
		{"incomplete config (eventing KReference)", newBroker(func(b *Broker) { b.Spec.Config = &duckv1.KReference{Name: "options"} }), []fault{
			{field.ErrorTypeRequired, "spec.config.apiVersion", "must"},
			{field.ErrorTypeRequired, "spec.config.kind", "must"}}},
		{"delivery (eventing DeliverySpec)", newBroker(func(b *Broker) { b.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](-1)} }), []fault{
			{field.ErrorTypeInvalid, "spec.delivery.retry", "must be greater than or equal to 0"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateBroker(tt.in), tt.want...)
		})
	}
}

// A Broker's configuration may have to be in its own namespace.
func TestValidateNewBroker(t *testing.T) {
	own := Settings{Namespaces: map[string]BrokerDefaults{"shop": {OwnNamespace: true}}}
	otherNamespace := func(b *Broker) { b.Spec.Config.Namespace = "system" }
	for name, tt := range map[string]struct {
		in       *Broker
		settings Settings
		want     []fault
	}{
		"own namespace":                  {newBroker(), own, nil},
		"no configuration":               {newBroker(func(b *Broker) { b.Spec.Config = &duckv1.KReference{} }), own, nil},
		"anywhere":                       {newBroker(otherNamespace), DefaultSettings(), nil},
		"elsewhere":                      {newBroker(otherNamespace), own, []fault{{field.ErrorTypeInvalid, "spec.config.namespace", "must be the namespace of the Broker"}}},
		"anywhere for others":            {newBroker(otherNamespace, func(b *Broker) { b.Namespace = "team" }), own, nil},
		"the other fields are validated": {newBroker(func(b *Broker) { b.Annotations = nil }), own, []fault{{field.ErrorTypeRequired, classPath, "must name the class"}}},
	} {
		t.Run(name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateNewBroker(tt.in, tt.settings), tt.want...)
		})
	}
}

// TestValidateBrokerUpdate covers eventing Broker Lifecycle-5, -6: class and config are immutable.
func TestValidateBrokerUpdate(t *testing.T) {
	tests := []struct {
		name    string
		in, old *Broker
		want    []fault
	}{
		{"unchanged", newBroker(), newBroker(), nil},
		{"delivery", newBroker(func(b *Broker) { b.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](1)} }), newBroker(), nil},
		{"other metadata", newBroker(func(b *Broker) { b.Annotations["team"] = "orders" }), newBroker(), nil},
		{"class", newBroker(func(b *Broker) { b.Annotations[BrokerClassAnnotationKey] = "Kafka" }), newBroker(), []fault{
			{field.ErrorTypeInvalid, classPath, "may not change from 'JetStreamBroker' to 'Kafka'; delete and recreate the object instead"}}},
		{"class to its alias", newBroker(func(b *Broker) { b.Annotations[BrokerClassAnnotationKey] = BrokerClassMTChannelBased }), newBroker(), []fault{
			{field.ErrorTypeInvalid, classPath, "may not change from 'JetStreamBroker' to 'MTChannelBasedBroker'"}}},
		{"class taken away", newBroker(func(b *Broker) { b.Annotations = nil }), newBroker(), []fault{
			{field.ErrorTypeRequired, classPath, "must name the class"}}},
		{"config", newBroker(func(b *Broker) { b.Spec.Config.Name = "other" }), newBroker(), []fault{
			{field.ErrorTypeInvalid, "spec.config", `to '{"kind":"ConfigMap","namespace":"shop","name":"other","apiVersion":"v1"}'`}}},
		{"config taken away", newBroker(func(b *Broker) { b.Spec.Config = &duckv1.KReference{} }), newBroker(), []fault{
			{field.ErrorTypeInvalid, "spec.config", `to '{}'; delete and recreate the object instead`}}},
		{"the new object is validated", newBroker(func(b *Broker) { b.Spec.Delivery = &duckv1.DeliverySpec{Timeout: ptr.To("1s")} }), newBroker(), []fault{
			{field.ErrorTypeInvalid, "spec.delivery.timeout", "ISO 8601"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateBrokerUpdate(tt.in, tt.old), tt.want...)
		})
	}
}

func FuzzBrokerValidation(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"eventing.knative.dev/v1","kind":"Broker","metadata":{"name":"default","namespace":"shop"}}`))
	f.Add([]byte(`{"metadata":{"name":"orders","namespace":"shop","annotations":{"eventing.knative.dev/broker.class":"MTChannelBasedBroker"}},` +
		`"spec":{"config":{"apiVersion":"v1","kind":"ConfigMap","name":"config-br-default-channel","namespace":"knative-eventing"},` +
		`"delivery":{"deadLetterSink":{"ref":{"apiVersion":"v1","kind":"Service","name":"dead"},"uri":"/in"},` +
		`"retry":5,"timeout":"PT30S","backoffPolicy":"exponential","backoffDelay":"PT0.5S","retryAfterMax":"P1D","format":"json"}}}`))
	f.Add([]byte(`{"metadata":{"generateName":"b-","namespace":"shop","labels":{}},"spec":{"config":{},"delivery":{"deadLetterSink":{"uri":"https://dead/","CACerts":"-----BEGIN CERTIFICATE-----","audience":"a"}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		apitest.FuzzObject(t, data, func(b *Broker) any { return b.Spec }, func(b *Broker) { b.SetCreateDefaults(DefaultSettings()) }, ValidateBroker)
	})
}

// TestPartitions covers the number of partitions of a Broker, which can only be raised.
func TestPartitions(t *testing.T) {
	with := func(value string) *Broker {
		return newBroker(func(b *Broker) {
			if value != "" {
				b.Annotations[BrokerPartitionsAnnotationKey] = value
			}
		})
	}
	for value, want := range map[string]int{"": 1, "1": 1, "3": 3, "16": 16} {
		if b := with(value); b.Partitions() != want || len(ValidateBroker(b)) > 0 {
			t.Errorf("%q is %d partitions, want %d; errors %v", value, b.Partitions(), want, ValidateBroker(b))
		}
	}
	for _, value := range []string{"0", "-1", "17", "two", "1.5", " 2", "99999999999999999999"} {
		errs := ValidateBroker(with(value))
		if len(errs) != 1 || errs[0].Field != "metadata.annotations[eventing.knative.dev/partitions]" || !strings.Contains(errs[0].Detail, "must be a number from 1 to 16") {
			t.Errorf("%q: %v", value, errs)
		}
	}
	foreign := newBroker(func(b *Broker) {
		b.Annotations[BrokerClassAnnotationKey], b.Annotations[BrokerPartitionsAnnotationKey] = "Kafka", "many"
	})
	if errs := ValidateBrokerUpdate(foreign, foreign); len(errs) != 0 {
		t.Errorf("a Broker of another class: %v", errs)
	}
	empty := newBroker(func(b *Broker) { b.Annotations[BrokerPartitionsAnnotationKey] = "" })
	if errs := ValidateBroker(empty); len(errs) != 1 {
		t.Errorf("an empty number: %v", errs)
	}
	for _, test := range []struct {
		from, to string
		allowed  bool
	}{{"", "3", true}, {"3", "3", true}, {"3", "16", true}, {"1", "", true}, {"3", "2", false}, {"3", "", false}} {
		errs := ValidateBrokerUpdate(with(test.to), with(test.from))
		if allowed := len(errs) == 0; allowed != test.allowed {
			t.Errorf("from %q to %q: %v", test.from, test.to, errs)
		}
		if !test.allowed && !strings.Contains(errs.ToAggregate().Error(), "must be at least 3: partitions may have undelivered events") {
			t.Errorf("from %q to %q: %v", test.from, test.to, errs)
		}
	}
}
