package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionType is the name of an aspect of an object's state in CamelCase, for instance "Ready".
type ConditionType string

// ConditionReady is the type of the condition that aggregates all conditions of severity Error
// (serving 6-4, eventing Error Signalling). Every kind has it.
const ConditionReady ConditionType = "Ready"

// ConditionSeverity is the impact of a condition that is not True.
//
// +enum
type ConditionSeverity string

const (
	// ConditionSeverityError makes a condition a dependent of Ready. It is the default.
	ConditionSeverityError ConditionSeverity = ""
	// ConditionSeverityWarning marks a condition that requires attention but does not affect Ready.
	ConditionSeverityWarning ConditionSeverity = "Warning"
	// ConditionSeverityInfo marks a condition that is expected to change during normal operation.
	ConditionSeverityInfo ConditionSeverity = "Info"
)

// Condition is one observed aspect of an object (serving 6-2, eventing Error Signalling).
type Condition struct {
	// Type is the reported aspect, as a short CamelCase word or phrase. It is unique within the list. Required.
	Type ConditionType `json:"type"`

	// Status is the last observed state: True, False or Unknown. Required.
	Status corev1.ConditionStatus `json:"status"`

	// Severity is Warning or Info for conditions that do not affect Ready.
	// Optional; defaults to empty, which means Error.
	// +optional
	Severity ConditionSeverity `json:"severity,omitempty"`

	// LastTransitionTime is the time of the last change of Status. Optional.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty,omitzero"`

	// Reason is a one-word CamelCase cause of the last transition, for programs. Optional.
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message is a human-readable description of the last transition. Optional.
	// +optional
	Message string `json:"message,omitempty"`
}

// Conditions is a list of conditions, at most one of each type.
//
// +listType=map
// +listMapKey=type
type Conditions []Condition

// Status contains the fields that the status of every kind has.
type Status struct {
	// ObservedGeneration is the metadata.generation that the controller last processed. While it is less than
	// metadata.generation, the conditions are outdated.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions are the latest observations of the object's state. They include Ready once a controller has
	// processed the object.
	// +optional
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	Conditions Conditions `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// Annotations contain additional status without a field of its own.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}
