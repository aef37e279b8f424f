package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// DeliveryOrderAnnotationKey on a Trigger or a Subscription chooses whether its events are delivered one at a
	// time in the order of their acceptance. Its values are DeliveryOrdered and DeliveryUnordered, the default.
	DeliveryOrderAnnotationKey = "eventing.knative.dev/delivery.order"
	// DeliveryOrderKafkaAnnotationKey is the same under the name that Knative's Broker for Kafka has for it. It counts
	// where DeliveryOrderAnnotationKey is not set.
	DeliveryOrderKafkaAnnotationKey = "kafka.eventing.knative.dev/delivery.order"

	// DeliveryOrdered has an event wait until the one before it is delivered.
	DeliveryOrdered = "ordered"
	// DeliveryUnordered has events delivered independently of each other.
	DeliveryUnordered = "unordered"
)

// IsOrdered tells whether annotations ask for ordered delivery.
func IsOrdered(annotations map[string]string) bool {
	order, found := annotations[DeliveryOrderAnnotationKey]
	if !found {
		order = annotations[DeliveryOrderKafkaAnnotationKey]
	}
	return order == DeliveryOrdered
}

// ValidateDeliveryOrder returns the faults of the annotations that IsOrdered reads.
func ValidateDeliveryOrder(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range []string{DeliveryOrderAnnotationKey, DeliveryOrderKafkaAnnotationKey} {
		if order, found := annotations[key]; found {
			errs = append(errs, validateEnum(&order, path.Key(key), DeliveryOrdered, DeliveryUnordered)...)
		}
	}
	return errs
}
