package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Service is one application over time: the code and configuration to run, and its address
// (serving 5.2). It owns a Configuration and a Route of the same name.
type Service struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name is a DNS-1035 label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec ServiceSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Service itself is written.
	// +optional
	Status ServiceStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ServiceList is a list of Services.
type ServiceList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Services.
	Items []Service `json:"items"`
}

// ServiceSpec is the desired state of a Service (serving 9.1.2): the specs of its Configuration and its Route.
type ServiceSpec struct {
	ConfigurationSpec `json:",inline"`
	RouteSpec         `json:",inline"`
}

const (
	// ServiceConditionConfigurationsReady is a copy of the Ready condition of the Service's Configuration.
	ServiceConditionConfigurationsReady duckv1.ConditionType = "ConfigurationsReady"
	// ServiceConditionRoutesReady is a copy of the Ready condition of the Service's Route.
	ServiceConditionRoutesReady duckv1.ConditionType = "RoutesReady"
)

// ServiceStatus is the observed state of a Service (serving 9.1.3).
type ServiceStatus struct {
	duckv1.Status             `json:",inline"`
	ConfigurationStatusFields `json:",inline"`
	RouteStatusFields         `json:",inline"`
}
