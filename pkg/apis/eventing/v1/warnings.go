package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// warn returns a warning for each label or annotation of the group that has no effect. known are the ones with an effect, in
// addition to the ones that the server sets itself.
func warn(meta *metav1.ObjectMeta, known ...string) []string {
	path, groups := field.NewPath("metadata"), []string{GroupName}
	known = append(known, GroupName+"/creator", GroupName+"/lastModifier")
	return append(
		duckv1.UnusedKeys(meta.Labels, path.Child("labels"), groups, []string{BrokerLabelKey}),
		duckv1.UnusedKeys(meta.Annotations, path.Child("annotations"), groups, known)...)
}

// WarnBroker returns a warning for each field of a Broker that is accepted without effect. The controllers of foreign classes
// interpret the fields of their Brokers.
func WarnBroker(b *Broker, authenticated bool) []string {
	if b.IsForeign() {
		return nil
	}
	warnings := warn(&b.ObjectMeta, BrokerClassAnnotationKey, duckv1.DeadLetterStoreAnnotationKey, GroupName+"/allow-from")
	if config := b.Spec.Config; config != nil && *config != (duckv1.KReference{}) && (config.APIVersion != "v1" || config.Kind != "ConfigMap") {
		warnings = append(warnings, duckv1.Unused(field.NewPath("spec", "config"), "the options of a Broker of this class are in a ConfigMap"))
	}
	return append(warnings, duckv1.WarnDelivery(b.Spec.Delivery, field.NewPath("spec", "delivery"), authenticated)...)
}

// WarnTrigger is like WarnBroker for a Trigger of a Broker that this server implements.
func WarnTrigger(t *Trigger, authenticated bool) []string {
	warnings := warn(&t.ObjectMeta, duckv1.DeliveryOrderAnnotationKey, duckv1.DeliveryOrderKafkaAnnotationKey, duckv1.DeadLetterStoreAnnotationKey)
	warnings = append(warnings, duckv1.WarnDestination(&t.Spec.Subscriber, field.NewPath("spec", "subscriber"), authenticated)...)
	return append(warnings, duckv1.WarnDelivery(t.Spec.Delivery, field.NewPath("spec", "delivery"), authenticated)...)
}
