package v1

// ConditionEventPoliciesReady is the type of the condition of Brokers and Channels that reports whether all EventPolicies that apply to
// the object are ready, or which rule applies without any.
const ConditionEventPoliciesReady ConditionType = "EventPoliciesReady"

// AppliedEventPoliciesStatus is the part of a status that lists the EventPolicies of an object.
type AppliedEventPoliciesStatus struct {
	// Policies are the ready EventPolicies that apply to the object, in the order in which they are asked.
	// +optional
	// +listType=atomic
	Policies []AppliedEventPolicyRef `json:"policies,omitempty"`
}

// AppliedEventPolicyRef is an EventPolicy in the namespace of the object.
type AppliedEventPolicyRef struct {
	// APIVersion of the EventPolicy.
	APIVersion string `json:"apiVersion"`

	// Name of the EventPolicy.
	Name string `json:"name"`
}
