package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ServiceMetrics are the numbers of requests to a Service, at each replica of the gateway that has counted some. They are read-only and not stored: two
// reads, some seconds apart, give the rates between them.
type ServiceMetrics struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name is the name of the Service.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Timestamp is the time at which the metrics were read.
	Timestamp metav1.MicroTime `json:"timestamp"`

	// Replicas are the metrics at each replica.
	// +listType=map
	// +listMapKey=name
	Replicas []ServiceMetricsReplica `json:"replicas"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ServiceMetricsList is a list of ServiceMetrics.
type ServiceMetricsList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the ServiceMetrics.
	Items []ServiceMetrics `json:"items"`
}

// ServiceMetricsReplica has the numbers of requests at a replica since it counts the requests of the Service.
type ServiceMetricsReplica struct {
	// Name is the name of the replica.
	Name string `json:"name"`
	// StartTime is the time at which the replica started.
	StartTime metav1.MicroTime `json:"startTime"`
	// Requests is the number of requests that have ended.
	Requests int64 `json:"requests"`
	// Failures is the number of requests whose response has a status of 500 or more, or that have none.
	Failures int64 `json:"failures"`
	// Responses is the number of responses that DurationMilliseconds counts.
	Responses int64 `json:"responses"`
	// DurationMilliseconds is the sum of the times from requests until the ends of their responses.
	DurationMilliseconds int64 `json:"durationMilliseconds"`
}

// Total returns the sum of the metrics of all replicas.
func (m *ServiceMetrics) Total() (total ServiceMetricsReplica) {
	for i := range m.Replicas {
		r := &m.Replicas[i]
		total.Requests += r.Requests
		total.Failures += r.Failures
		total.Responses += r.Responses
		total.DurationMilliseconds += r.DurationMilliseconds
	}
	return total
}
