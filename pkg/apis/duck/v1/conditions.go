package v1

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Get returns the condition of a type, or nil if it is missing.
func (c Conditions) Get(t ConditionType) *Condition {
	if i := c.index(t); i >= 0 {
		return &c[i]
	}
	return nil
}

// Set adds a condition or replaces the one of its type. It ignores the caller's lastTransitionTime: the time becomes now when
// the status changes, and is kept otherwise. The list is sorted by type, and unchanged if the condition is; other lists that
// share its memory never change.
func (c *Conditions) Set(condition Condition, now metav1.Time) {
	condition.LastTransitionTime = now
	i := c.index(condition.Type)
	if i >= 0 {
		current := (*c)[i]
		if current.Status == condition.Status {
			condition.LastTransitionTime = current.LastTransitionTime
		}
		if current == condition {
			return
		}
	}
	updated := slices.Clone(*c)
	if i >= 0 {
		updated[i] = condition
	} else {
		updated = append(updated, condition)
	}
	slices.SortStableFunc(updated, func(a, b Condition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	*c = updated
}

// Ready aggregates the conditions of severity Error (eventing Error Signalling 2, serving 6-4): False if one is False, else
// Unknown if one is not True, else True. Its reason and message are copied from the first condition that decides; dependents
// come first, in the given order, and count as Unknown while they are missing.
func (c Conditions) Ready(dependents ...ConditionType) Condition {
	considered := make(Conditions, 0, len(c)+len(dependents))
	for _, t := range dependents {
		if condition := c.Get(t); condition != nil {
			considered = append(considered, *condition)
		} else {
			considered = append(considered, Condition{Type: t, Status: corev1.ConditionUnknown})
		}
	}
	for _, condition := range c {
		if condition.Type != ConditionReady && !slices.Contains(dependents, condition.Type) {
			considered = append(considered, condition)
		}
	}
	ready := Condition{Type: ConditionReady, Status: corev1.ConditionTrue}
	for _, condition := range considered {
		switch {
		case condition.Severity != ConditionSeverityError:
		case condition.Status == corev1.ConditionFalse:
			ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, condition.Reason, condition.Message
			return ready
		case condition.Status != corev1.ConditionTrue && ready.Status == corev1.ConditionTrue:
			ready.Status, ready.Reason, ready.Message = corev1.ConditionUnknown, condition.Reason, condition.Message
		}
	}
	return ready
}

// index returns the index of the condition of a type, or -1.
func (c Conditions) index(t ConditionType) int {
	return slices.IndexFunc(c, func(condition Condition) bool { return condition.Type == t })
}
