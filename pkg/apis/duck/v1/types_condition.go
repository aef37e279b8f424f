package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionType names one aspect of an object's state in CamelCase, for instance "Ready".
type ConditionType string

// ConditionReady is the condition every kind carries: it sums up all conditions of severity Error
// (serving 6-4, eventing Error Signalling).
const ConditionReady ConditionType = "Ready"

// ConditionSeverity says how much a condition that is not True matters.
//
// +enum
type ConditionSeverity string

const (
	// ConditionSeverityError makes a condition count towards Ready. It is the default.
	ConditionSeverityError ConditionSeverity = ""
	// ConditionSeverityWarning marks a condition that deserves attention but does not stop the object.
	ConditionSeverityWarning ConditionSeverity = "Warning"
	// ConditionSeverityInfo marks a condition that is expected to come and go.
	ConditionSeverityInfo ConditionSeverity = "Info"
)

// Condition is one observed aspect of an object (serving 6-2, eventing Error Signalling).
type Condition struct {
	// Type is the aspect this condition reports on, as a short CamelCase word or phrase. It is unique
	// within the list. Required.
	Type ConditionType `json:"type"`

	// Status is the last measured state: True, False or Unknown. Required.
	Status corev1.ConditionStatus `json:"status"`

	// Severity is empty for conditions that count towards Ready; Warning and Info do not.
	// Optional; defaults to empty, which means Error.
	// +optional
	Severity ConditionSeverity `json:"severity,omitempty"`

	// LastTransitionTime is when Status last changed. Optional.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty,omitzero"`

	// Reason is a one-word CamelCase cause of the last transition, for programs. Optional.
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message tells a person about the last transition in a sentence. Optional.
	// +optional
	Message string `json:"message,omitempty"`
}

// Conditions is a list of conditions, at most one of each type.
//
// +listType=map
// +listMapKey=type
type Conditions []Condition

// Status is what the status of every kind starts with.
type Status struct {
	// ObservedGeneration is the metadata.generation that the controller last worked on. The conditions
	// belong to that generation; while it lags behind metadata.generation they are out of date.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Conditions are the latest observations of the object's state. Ready is always among them once a
	// controller has seen the object.
	// +optional
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=type
	Conditions Conditions `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`

	// Annotations carry additional status that has no field of its own.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}
