package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Revision is an immutable snapshot of application code and configuration (serving 5.3). Revisions come
// from Configurations: nobody else can create one, and their spec never changes.
type Revision struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the revision runs. Immutable.
	// +optional
	Spec RevisionSpec `json:"spec,omitempty"`

	// Status is what controllers observed of the revision. Ignored when the revision itself is written.
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

// RevisionTemplateSpec describes the Revisions that a Configuration makes (serving 10.3).
type RevisionTemplateSpec struct {
	// Metadata of the Revision: name (optional, prefixed with the Configuration's name and a dash), labels
	// and annotations. The autoscaling.knative.dev annotations belong here.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec of the Revision. Required.
	// +optional
	Spec RevisionSpec `json:"spec,omitempty"`
}

// RevisionSpec is a core/v1 PodSpec, narrowed to what can be scaled without state, and how requests are
// handed to it (serving 9.4.2).
type RevisionSpec struct {
	corev1.PodSpec `json:",inline"`

	// ContainerConcurrency is the greatest number of requests one instance handles at a time, 0 to 1000.
	// Optional; defaults to 0, which sets no limit.
	// +optional
	ContainerConcurrency *int64 `json:"containerConcurrency,omitempty"`

	// TimeoutSeconds is how long a request may take until its response starts, in seconds, 1 to 600, and how long an
	// upgraded connection may go without traffic. Optional; defaults to 300, as does 0.
	// +optional
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`

	// ResponseStartTimeoutSeconds is how long a request that was sent to a container may take until its response
	// starts, in seconds, at most timeoutSeconds. Optional; without it only timeoutSeconds applies.
	// +optional
	ResponseStartTimeoutSeconds *int64 `json:"responseStartTimeoutSeconds,omitempty"`

	// IdleTimeoutSeconds is how long a request or its response may go without any byte in either direction, in
	// seconds, at most timeoutSeconds. Optional; without it a response may stall for max-revision-timeout-seconds.
	// +optional
	IdleTimeoutSeconds *int64 `json:"idleTimeoutSeconds,omitempty"`
}

const (
	// RevisionConditionResourcesAvailable tells whether the host has what the revision asks for.
	RevisionConditionResourcesAvailable duckv1.ConditionType = "ResourcesAvailable"
	// RevisionConditionContainerHealthy tells whether the containers start and pass their probes.
	RevisionConditionContainerHealthy duckv1.ConditionType = "ContainerHealthy"
	// RevisionConditionActive tells whether the revision takes traffic or is scaled to zero (Info).
	RevisionConditionActive duckv1.ConditionType = "Active"
)

// RevisionStatus is what controllers observed of a Revision (serving 9.4.3).
type RevisionStatus struct {
	duckv1.Status `json:",inline"`

	// LogURL is where the revision's logs can be read.
	// +optional
	LogURL string `json:"logUrl,omitempty"`

	// ContainerStatuses hold the resolved image digest of each container.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	ContainerStatuses []ContainerStatus `json:"containerStatuses,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// InitContainerStatuses hold the resolved image digest of each init container.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	InitContainerStatuses []ContainerStatus `json:"initContainerStatuses,omitempty" patchStrategy:"merge" patchMergeKey:"name"`

	// ImageDigest is the resolved image digest of the serving container.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty"`

	// ActualReplicas is the number of instances that are ready.
	// +optional
	ActualReplicas *int32 `json:"actualReplicas,omitempty"`

	// DesiredReplicas is the number of instances the autoscaler asks for.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
}

// ContainerStatus holds the image that a container name of the spec resolved to (serving 10.1).
type ContainerStatus struct {
	// Name of the container, a DNS label. Required.
	Name string `json:"name"`

	// ImageDigest is the container's image by digest.
	// +optional
	ImageDigest string `json:"imageDigest,omitempty"`
}
