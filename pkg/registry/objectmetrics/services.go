package objectmetrics

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/objectmetrics"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// NewServices returns the storage of ServiceMetrics. It answers 503 until the reader is set.
func NewServices(reader *Late) *REST[*servingv1beta1.ServiceMetrics] {
	type service = *servingv1beta1.ServiceMetrics
	column := func(name, description string, value func(total servingv1beta1.ServiceMetricsReplica) any) registry.Column[service] {
		return registry.Column[service]{Name: name, Type: "integer", Description: description, Value: func(s service) any { return value(s.Total()) }}
	}
	return &REST[service]{
		reader: reader,
		TableConvertor: registry.NewTableConvertor(
			registry.NameColumn[service](),
			column("Requests", "The number of requests that have ended.", func(t servingv1beta1.ServiceMetricsReplica) any { return t.Requests }),
			column("Failures", "The number of requests with a status of 500 or more, or without a response.", func(t servingv1beta1.ServiceMetricsReplica) any { return t.Failures }),
			column("Mean Milliseconds", "The mean time until the end of a response.", func(t servingv1beta1.ServiceMetricsReplica) any {
				if t.Responses == 0 {
					return nil
				}
				return t.DurationMilliseconds / t.Responses
			}),
		),
		kind: kind[service]{
			resource: servingv1beta1.Resource("servicemetrics"), singular: "servicemetrics",
			newObject: func() service { return &servingv1beta1.ServiceMetrics{} },
			newList: func(items []service, meta metav1.ListMeta) runtime.Object {
				list := &servingv1beta1.ServiceMetricsList{ListMeta: meta, Items: make([]servingv1beta1.ServiceMetrics, 0, len(items))}
				for _, item := range items {
					list.Items = append(list.Items, *item)
				}
				return list
			},
			find: func(o objectmetrics.Object) (service, bool) {
				if o.Kind != "Service" {
					return nil, false
				}
				return &servingv1beta1.ServiceMetrics{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Timestamp: metav1.NewMicroTime(time.Now())}, true
			},
			add: func(s service, replica *objectmetrics.Replica, values map[objectmetrics.Field]float64) {
				s.Replicas = append(s.Replicas, servingv1beta1.ServiceMetricsReplica{
					Name: replica.Name, StartTime: metav1.NewMicroTime(replica.Start), Requests: int64(values[objectmetrics.Requests]), Failures: int64(values[objectmetrics.Failures]),
					Responses: int64(values[objectmetrics.Responses]), DurationMilliseconds: milliseconds(values[objectmetrics.Seconds]),
				})
			},
			fields: func(s service) fields.Set {
				return fields.Set{"metadata.name": s.Name, "metadata.namespace": s.Namespace}
			},
		},
	}
}
