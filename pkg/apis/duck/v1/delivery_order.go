package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// DeliveryOrderAnnotationKey on a Trigger or a Subscription selects whether its events are delivered one at a
	// time in the order of their acceptance. Its values are DeliveryOrdered and DeliveryUnordered, the default.
	DeliveryOrderAnnotationKey = "eventing.knative.dev/delivery.order"
	// DeliveryOrderKafkaAnnotationKey is the equivalent annotation of Knative's Broker for Kafka. It applies if
	// DeliveryOrderAnnotationKey is not set.
	DeliveryOrderKafkaAnnotationKey = "kafka.eventing.knative.dev/delivery.order"

	// DeliveryOrdered delivers each event after the previous one has been delivered.
	DeliveryOrdered = "ordered"
	// DeliveryUnordered delivers events independently of each other.
	DeliveryUnordered = "unordered"
)

// IsOrdered reports whether the annotations request ordered delivery.
func IsOrdered(annotations map[string]string) bool {
	order, found := annotations[DeliveryOrderAnnotationKey]
	if !found {
		order = annotations[DeliveryOrderKafkaAnnotationKey]
	}
	return order == DeliveryOrdered
}

// ValidateDeliveryOrder returns the errors of the annotations that IsOrdered reads.
func ValidateDeliveryOrder(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range []string{DeliveryOrderAnnotationKey, DeliveryOrderKafkaAnnotationKey} {
		if order, found := annotations[key]; found {
			errs = append(errs, validateEnum(&order, path.Key(key), DeliveryOrdered, DeliveryUnordered)...)
		}
	}
	return errs
}
