package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Revision is an immutable snapshot of application code and configuration (serving 5.3). Only Configurations
// create Revisions, and their spec never changes.
type Revision struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec describes the containers of the Revision. Immutable.
	// +optional
	Spec RevisionSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Revision itself is written.
	// +optional
	Status RevisionStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RevisionList is a list of Revisions.
type RevisionList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Revisions.
	Items []Revision `json:"items"`
}

// RevisionTemplateSpec describes the Revisions that a Configuration creates (serving 10.3).
type RevisionTemplateSpec struct {
	// Metadata of the Revision: name (optional, prefixed with the Configuration's name and a dash), labels
	// and annotations. The autoscaling.knative.dev annotations belong here.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec of the Revision. Required.
	// +optional
	Spec RevisionSpec `json:"spec,omitempty"`
}

// RevisionSpec is a core/v1 PodSpec, restricted to fields that are safe to scale without state, and the
// parameters of request handling (serving 9.4.2).
type RevisionSpec struct {
	corev1.PodSpec `json:",inline"`

	// ContainerConcurrency is the maximum number of concurrent requests per instance, 0 to 1000.
	// Optional; defaults to 0, which means no limit.
	// +optional
	ContainerConcurrency *int64 `json:"containerConcurrency,omitempty"`

	// TimeoutSeconds bounds the time until the response to a request starts, in seconds, 1 to 600, and the time that
	// an upgraded connection may be idle. Optional; 0 and unset default to 300.
	// +optional
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`

	// ResponseStartTimeoutSeconds bounds the time from sending a request to a container until its response
	// starts, in seconds, at most timeoutSeconds. Optional; by default only timeoutSeconds applies.
	// +optional
	ResponseStartTimeoutSeconds *int64 `json:"responseStartTimeoutSeconds,omitempty"`

	// IdleTimeoutSeconds bounds the time without any byte of a request or its response in either direction, in
	// seconds, at most timeoutSeconds. Optional; defaults to max-revision-timeout-seconds for a started response.
	// +optional
	IdleTimeoutSeconds *int64 `json:"idleTimeoutSeconds,omitempty"`
}

const (
	// RevisionConditionResourcesAvailable reports whether the host has the resources for the Revision.
	RevisionConditionResourcesAvailable duckv1.ConditionType = "ResourcesAvailable"
	// RevisionConditionContainerHealthy reports whether the containers start and pass their probes.
	RevisionConditionContainerHealthy duckv1.ConditionType = "ContainerHealthy"
	// RevisionConditionActive reports whether the Revision accepts traffic or is scaled to zero (Info).
	RevisionConditionActive duckv1.ConditionType = "Active"
)

// RevisionStatus is the observed state of a Revision (serving 9.4.3).
type RevisionStatus struct {
	duckv1.Status `json:",inline"`

	// LogURL is the address of the Revision's logs.
	// +optional
	LogURL string `json:"logUrl,omitempty"`

	// ContainerStatuses contain the resolved image digest of each container.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	ContainerStatuses []ContainerStatus `json:"containerStatuses,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// InitContainerStatuses contain the resolved image digest of each init container.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	InitContainerStatuses []ContainerStatus `json:"initContainerStatuses,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// ImageDigest is the resolved image digest of the serving container.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty"`

	// ActualReplicas is the number of ready instances.
	// +optional
	ActualReplicas *int32 `json:"actualReplicas,omitempty"`

	// DesiredReplicas is the number of instances that the autoscaler requests.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
}

// ContainerStatus is the resolved image of a container (serving 10.1).
type ContainerStatus struct {
	// Name of the container, a DNS label. Required.
	Name string `json:"name"`

	// ImageDigest is the container's image by digest.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty"`
}
