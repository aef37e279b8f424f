package v1

import (
	"encoding/json"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// eventingGroup is the group of annotations that Channels and Subscriptions share with Brokers and Triggers.
const eventingGroup = "eventing.knative.dev"

// warn returns a warning for each label or annotation of the groups that has no effect. known are the annotations with an effect,
// in addition to the ones that the server sets itself.
func warn(meta *metav1.ObjectMeta, known ...string) []string {
	path, groups := field.NewPath("metadata"), []string{GroupName, eventingGroup}
	known = append(known, GroupName+"/creator", GroupName+"/lastModifier")
	return append(
		duckv1.UnusedKeys(meta.Labels, path.Child("labels"), groups, nil),
		duckv1.UnusedKeys(meta.Annotations, path.Child("annotations"), groups, known)...)
}

// WarnChannel returns a warning for each field of a Channel that is accepted without effect. The controllers of foreign kinds
// interpret the fields of their Channels.
func WarnChannel(c *Channel, authenticated bool) []string {
	template := c.Spec.ChannelTemplate
	if !template.Own() {
		return nil
	}
	warnings := warn(&c.ObjectMeta, SubscribableAnnotationKey, duckv1.DeadLetterStoreAnnotationKey, eventingGroup+"/allow-from")
	warnings = append(warnings, template.warn(field.NewPath("spec", "channelTemplate", "spec"))...)
	return append(warnings, duckv1.WarnDelivery(c.Spec.Delivery, field.NewPath("spec", "delivery"), authenticated)...)
}

// warn returns a warning for each parameter that this server does not read.
func (t *ChannelTemplateSpec) warn(path *field.Path) []string {
	if t.Spec == nil {
		return nil
	}
	var parameters map[string]json.RawMessage
	if json.Unmarshal(t.Spec.Raw, &parameters) != nil {
		// Parameters that are not an object are reported as an error.
		return nil
	}
	var warnings []string
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		if name != "delivery" {
			warnings = append(warnings, duckv1.Unused(path.Child(name), "a "+t.Kind+" has no parameters beside delivery"))
		}
	}
	return warnings
}

// WarnSubscription is like WarnChannel for a Subscription.
func WarnSubscription(s *Subscription, authenticated bool) []string {
	channel := &s.Spec.Channel
	if schema.FromAPIVersionAndKind(channel.APIVersion, channel.Kind).GroupKind() != (schema.GroupKind{Group: GroupName, Kind: "Channel"}) {
		return nil
	}
	spec := field.NewPath("spec")
	warnings := warn(&s.ObjectMeta, duckv1.DeliveryOrderAnnotationKey, duckv1.DeliveryOrderKafkaAnnotationKey, duckv1.DeadLetterStoreAnnotationKey)
	warnings = append(warnings, duckv1.WarnDestination(s.Spec.Subscriber, spec.Child("subscriber"), authenticated)...)
	warnings = append(warnings, duckv1.WarnDestination(s.Spec.Reply, spec.Child("reply"), authenticated)...)
	return append(warnings, duckv1.WarnDelivery(s.Spec.Delivery, spec.Child("delivery"), authenticated)...)
}
