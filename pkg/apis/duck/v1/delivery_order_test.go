package v1

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

func TestDeliveryOrder(t *testing.T) {
	path := field.NewPath("metadata", "annotations")
	tests := []struct {
		name    string
		in      map[string]string
		ordered bool
		want    []fault
	}{
		{"left out", nil, false, nil},
		{"ordered", map[string]string{DeliveryOrderAnnotationKey: "ordered"}, true, nil},
		{"unordered", map[string]string{DeliveryOrderAnnotationKey: "unordered"}, false, nil},
		{"by Kafka's name", map[string]string{DeliveryOrderKafkaAnnotationKey: "ordered"}, true, nil},
		{"ours counts first", map[string]string{DeliveryOrderAnnotationKey: "unordered", DeliveryOrderKafkaAnnotationKey: "ordered"}, false, nil},
		{"something else", map[string]string{DeliveryOrderAnnotationKey: "Ordered"}, false, []fault{
			{field.ErrorTypeNotSupported, "metadata.annotations[eventing.knative.dev/delivery.order]", `"ordered", "unordered"`}}},
		{"an unknown value of Kafka's annotation", map[string]string{DeliveryOrderKafkaAnnotationKey: ""}, false, []fault{
			{field.ErrorTypeNotSupported, "metadata.annotations[kafka.eventing.knative.dev/delivery.order]", `"ordered", "unordered"`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := IsOrdered(tt.in); got != tt.ordered {
				t.Errorf("IsOrdered = %v, want %v", got, tt.ordered)
			}
			apitest.ExpectFaults(t, ValidateDeliveryOrder(tt.in, path), tt.want...)
		})
	}
}
