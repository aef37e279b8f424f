package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Configuration is the desired state of one application: each change of its template creates a new Revision
// (serving 5.5).
type Configuration struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec ConfigurationSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Configuration itself is written.
	// +optional
	Status ConfigurationStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ConfigurationList is a list of Configurations.
type ConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Configurations.
	Items []Configuration `json:"items"`
}

// ConfigurationSpec is the desired state of a Configuration (serving 9.2.2).
type ConfigurationSpec struct {
	// Template of the Revisions. Each change creates a new Revision. Required.
	Template RevisionTemplateSpec `json:"template"`
}

// ConfigurationStatus is the observed state of a Configuration (serving 9.2.3).
type ConfigurationStatus struct {
	duckv1.Status             `json:",inline"`
	ConfigurationStatusFields `json:",inline"`
}

// ConfigurationStatusFields are the fields of a Configuration's status that are also in a Service's.
type ConfigurationStatusFields struct {
	// LatestReadyRevisionName is the most recently created Revision that is Ready.
	// +optional
	LatestReadyRevisionName string `json:"latestReadyRevisionName,omitempty"`

	// LatestCreatedRevisionName is the most recently created Revision.
	// +optional
	LatestCreatedRevisionName string `json:"latestCreatedRevisionName,omitempty"`
}
