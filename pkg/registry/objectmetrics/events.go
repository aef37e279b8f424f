package objectmetrics

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/objectmetrics"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// NewEvents returns the storage of EventMetrics. It answers 503 until the reader is set.
func NewEvents(reader *Late) *REST[*eventingv1alpha1.EventMetrics] {
	type events = *eventingv1alpha1.EventMetrics
	column := func(name, description string, wide bool, value func(total eventingv1alpha1.EventMetricsReplica) int64) registry.Column[events] {
		return registry.Column[events]{Name: name, Type: "integer", Description: description, Wide: wide, Value: func(e events) any { return value(e.Total()) }}
	}
	return &REST[events]{
		reader: reader,
		TableConvertor: registry.NewTableConvertor(
			registry.NameColumn[events](),
			column("Accepted", "The number of accepted events.", false, func(t eventingv1alpha1.EventMetricsReplica) int64 { return t.Accepted }),
			column("Matched", "The number of events for the object.", false, func(t eventingv1alpha1.EventMetricsReplica) int64 { return t.Matched }),
			column("Delivered", "The number of delivered events.", false, func(t eventingv1alpha1.EventMetricsReplica) int64 { return t.Delivered }),
			column("Retries", "The number of failed attempts that are retried.", false, func(t eventingv1alpha1.EventMetricsReplica) int64 { return t.Retries }),
			column("Dead Lettered", "The number of dead letters.", false, func(t eventingv1alpha1.EventMetricsReplica) int64 { return t.DeadLettered }),
			column("Dropped", "The number of dropped events.", false, func(t eventingv1alpha1.EventMetricsReplica) int64 { return t.Dropped }),
			column("In Flight", "The number of delivery attempts in flight.", true, func(t eventingv1alpha1.EventMetricsReplica) int64 { return t.InFlight }),
		),
		kind: kind[events]{
			resource: eventingv1alpha1.Resource("eventmetrics"), singular: "eventmetrics",
			newObject: func() events { return &eventingv1alpha1.EventMetrics{} },
			newList: func(items []events, meta metav1.ListMeta) runtime.Object {
				list := &eventingv1alpha1.EventMetricsList{ListMeta: meta, Items: make([]eventingv1alpha1.EventMetrics, 0, len(items))}
				for _, item := range items {
					list.Items = append(list.Items, *item)
				}
				return list
			},
			find: func(o objectmetrics.Object) (events, bool) {
				switch o.Kind {
				case "Broker", "Trigger", "Channel", "Subscription":
					return &eventingv1alpha1.EventMetrics{
						ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: eventingv1alpha1.EventMetricsName(o.Kind, o.Name)},
						Object:     eventingv1alpha1.EventMetricsObject{Kind: o.Kind, Name: o.Name}, Timestamp: metav1.NewMicroTime(time.Now()),
					}, true
				}
				return nil, false
			},
			add: func(e events, replica *objectmetrics.Replica, values map[objectmetrics.Field]float64) {
				e.Replicas = append(e.Replicas, eventingv1alpha1.EventMetricsReplica{
					Name: replica.Name, StartTime: metav1.NewMicroTime(replica.Start),
					Accepted: int64(values[objectmetrics.Accepted]), Matched: int64(values[objectmetrics.Matched]), Delivered: int64(values[objectmetrics.Delivered]),
					Retries: int64(values[objectmetrics.Retries]), DeadLettered: int64(values[objectmetrics.DeadLettered]), Dropped: int64(values[objectmetrics.Dropped]),
					InFlight: int64(values[objectmetrics.InFlight]), OldestUndeliveredMilliseconds: milliseconds(values[objectmetrics.Oldest]),
				})
			},
			fields: (*eventingv1alpha1.EventMetrics).Fields,
		},
	}
}

func milliseconds(seconds float64) int64 { return int64(seconds * 1000) }
