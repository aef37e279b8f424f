package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// RevisionExplanation explains the scale of a Revision: the input of the autoscaler's latest decision, and what happened before. It
// is the read-only subresource explain, and is not stored.
type RevisionExplanation struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata is the name, namespace and UID of the Revision.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// DesiredReplicas is the number of instances of the latest decision.
	DesiredReplicas int32 `json:"desiredReplicas"`

	// ActualReplicas is the number of ready instances at the latest decision.
	ActualReplicas int32 `json:"actualReplicas"`

	// Reason names what decided about desiredReplicas, in CamelCase.
	Reason string `json:"reason"`

	// Message is the reason in a sentence, with its numbers.
	Message string `json:"message"`

	// LastReplica lists all reasons that keep the last instance. Empty at zero.
	// +optional
	// +listType=atomic
	LastReplica []ScalingReason `json:"lastReplica,omitempty"`

	// Load is what the latest decision observed.
	Load RevisionLoad `json:"load"`

	// Limits are the bounds of the scale that are in force, from the annotations of the Revision and config-autoscaler.
	Limits RevisionScaleLimits `json:"limits"`

	// Activation is the request that last scaled the Revision from zero.
	// +optional
	Activation *RevisionActivation `json:"activation,omitempty"`

	// Decisions are the latest decisions that changed the scale or its reason, newest first, at most 10.
	// +optional
	// +listType=atomic
	Decisions []ScalingDecision `json:"decisions,omitempty"`

	// ColdStarts are the latest cold starts, newest first, at most 5.
	// +optional
	// +listType=atomic
	ColdStarts []ColdStart `json:"coldStarts,omitempty"`

	// Decider is the replica that decides about the scale. Another one remembers nothing of what happened before it began.
	Decider RevisionDecider `json:"decider"`
}

// ScalingReason is a reason for a scale.
type ScalingReason struct {
	// Reason names the reason, in CamelCase.
	Reason string `json:"reason"`

	// Message is the reason in a sentence.
	Message string `json:"message"`
}

// RevisionLoad is the load of a Revision, as averages over two windows that end at the latest decision. At zero nothing is measured.
type RevisionLoad struct {
	// Metric is what the averages count: "concurrency" (requests in flight, including waiting ones) or "rps" (requests per second), as
	// in the annotation autoscaling.knative.dev/metric.
	Metric string `json:"metric"`

	// StableAverage is the average over the stable window.
	StableAverage resource.Quantity `json:"stableAverage"`

	// PanicAverage is the average over the panic window.
	PanicAverage resource.Quantity `json:"panicAverage"`

	// Target is the average for which one instance runs.
	Target resource.Quantity `json:"target"`

	// Capacity is what one instance serves at most, of which target is the utilization.
	Capacity resource.Quantity `json:"capacity"`

	// StableWindowSeconds is the length of the stable window.
	StableWindowSeconds int64 `json:"stableWindowSeconds"`

	// PanicWindowSeconds is the length of the panic window.
	PanicWindowSeconds int64 `json:"panicWindowSeconds"`

	// Panicking is true if the panic average decides, and the scale does not fall.
	// +optional
	Panicking bool `json:"panicking,omitempty"`

	// WaitingRequests is the number of requests that waited for an instance at the latest decision.
	// +optional
	WaitingRequests int64 `json:"waitingRequests,omitempty"`
}

// RevisionScaleLimits bound the scale of a Revision.
type RevisionScaleLimits struct {
	// MinScale is the minimum number of instances while a Route refers to the Revision.
	MinScale int32 `json:"minScale"`

	// MaxScale is the maximum number of instances, at most maxScaleLimit; 0 means no limit.
	MaxScale int32 `json:"maxScale"`

	// MaxScaleLimit is the operator's limit of maxScale; 0 means no limit.
	MaxScaleLimit int32 `json:"maxScaleLimit"`

	// InitialScale is the number of instances with which the Revision starts.
	InitialScale int32 `json:"initialScale"`

	// ActivationScale is the minimum number of instances after leaving zero.
	ActivationScale int32 `json:"activationScale"`

	// ScaleToZero is true if the operator allows scaling to zero.
	ScaleToZero bool `json:"scaleToZero"`

	// ScaleDownDelaySeconds is how long demand must be lower before the scale falls.
	ScaleDownDelaySeconds int64 `json:"scaleDownDelaySeconds"`

	// ScaleToZeroPodRetentionPeriodSeconds is how long the last instance stays without demand.
	ScaleToZeroPodRetentionPeriodSeconds int64 `json:"scaleToZeroPodRetentionPeriodSeconds"`
}

// RevisionActivation is a request that scaled a Revision from zero.
type RevisionActivation struct {
	// ReceivedTime is when the gateway received the request.
	ReceivedTime metav1.MicroTime `json:"receivedTime"`

	// Request is its method, host and path, without the query. Long parts end with "...".
	Request string `json:"request"`

	// Gateway is the replica that received the request. Empty without several replicas.
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// ScalingDecision is a decision of the autoscaler.
type ScalingDecision struct {
	// DecidedTime is when it was made.
	DecidedTime metav1.MicroTime `json:"decidedTime"`

	// From is the number of instances that the previous decision requested. It equals to if only the reason changed.
	From int32 `json:"from"`

	// To is the number of instances that the decision requests.
	To int32 `json:"to"`

	// Reason names the reason, in CamelCase.
	Reason string `json:"reason"`

	// Message is the reason in a sentence, with the numbers of that time.
	Message string `json:"message"`

	// Request is the request that activated the Revision, if one did, like activation.request.
	// +optional
	Request string `json:"request,omitempty"`
}

// ColdStart is a request that waited because no instance was ready, with what happened until its response started.
type ColdStart struct {
	// ReceivedTime is when the gateway received the request.
	ReceivedTime metav1.MicroTime `json:"receivedTime"`

	// Request is its method, host and path, like activation.request.
	Request string `json:"request"`

	// Gateway is the replica that received the request. Empty without several replicas.
	// +optional
	Gateway string `json:"gateway,omitempty"`

	// Instance is the name of the first instance that got a request.
	// +optional
	Instance string `json:"instance,omitempty"`

	// Outcome is Responded, Canceled (no request waited any more before an instance was ready), Forwarded (an instance got a request, and
	// no response to the first request is known) or Waiting.
	Outcome string `json:"outcome"`

	// TotalMilliseconds is the sum of all phases.
	TotalMilliseconds int64 `json:"totalMilliseconds"`

	// Phases are the phases that have ended, in order. The time of a phase that was not observed is part of the next one.
	// +optional
	// +listType=atomic
	Phases []ColdStartPhase `json:"phases,omitempty"`
}

// ColdStartPhase is a part of a cold start.
type ColdStartPhase struct {
	// Name is Scaled (until the scale left zero), Created (until the Pod or process was created), Scheduled (until the Pod had a node),
	// Started (until all containers ran, with their images pulled), Ready (until the instance accepted requests), Forwarded (until a
	// request was sent to it), Responded (until the response started) or Canceled (until no request waited any more).
	Name string `json:"name"`

	// Milliseconds is how long the phase took.
	Milliseconds int64 `json:"milliseconds"`
}

// RevisionDecider is the replica that decides about the scale.
type RevisionDecider struct {
	// Replica is the name of its Pod. Empty without several replicas.
	// +optional
	Replica string `json:"replica,omitempty"`

	// SinceTime is when it began to decide.
	SinceTime metav1.Time `json:"sinceTime"`
}

func addExplanation(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &RevisionExplanation{})
	return nil
}
