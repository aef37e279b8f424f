package v1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConditionsGet(t *testing.T) {
	conditions := Conditions{{Type: "A"}, {Type: "B", Reason: "Because"}}
	if got := conditions.Get("B"); got != &conditions[1] {
		t.Errorf("Get(B) = %v, want the condition in the list", got)
	}
	if got := conditions.Get("C"); got != nil {
		t.Errorf("Get(C) = %v, want nil", got)
	}
	if got := Conditions(nil).Get("A"); got != nil {
		t.Errorf("Get(A) of nothing = %v, want nil", got)
	}
}

func TestConditionsSet(t *testing.T) {
	before := metav1.NewTime(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC))
	now := metav1.NewTime(before.Add(time.Hour))
	a := Condition{Type: "A", Status: corev1.ConditionTrue, LastTransitionTime: before}
	c := Condition{Type: "C", Status: corev1.ConditionFalse, Reason: "Broken", LastTransitionTime: before}
	tests := []struct {
		name string
		in   Conditions
		set  Condition
		want Conditions
	}{
		{"first", nil, Condition{Type: "B", Status: corev1.ConditionTrue},
			Conditions{{Type: "B", Status: corev1.ConditionTrue, LastTransitionTime: now}}},
		{"new one is inserted in order of its type", Conditions{a, c}, Condition{Type: "B", Status: corev1.ConditionTrue},
			Conditions{a, {Type: "B", Status: corev1.ConditionTrue, LastTransitionTime: now}, c}},
		{"status changes: time moves", Conditions{a, c}, Condition{Type: "C", Status: corev1.ConditionTrue},
			Conditions{a, {Type: "C", Status: corev1.ConditionTrue, LastTransitionTime: now}}},
		{"reason changes: time stays", Conditions{a, c}, Condition{Type: "C", Status: corev1.ConditionFalse, Reason: "Other"},
			Conditions{a, {Type: "C", Status: corev1.ConditionFalse, Reason: "Other", LastTransitionTime: before}}},
		{"no change: even the order stays", Conditions{c, a}, Condition{Type: "A", Status: corev1.ConditionTrue},
			Conditions{c, a}},
		{"the caller's time does not count", Conditions{a}, Condition{Type: "A", Status: corev1.ConditionTrue, LastTransitionTime: now},
			Conditions{a}},
		{"a change sorts the list", Conditions{c, a}, Condition{Type: "A", Status: corev1.ConditionUnknown},
			Conditions{{Type: "A", Status: corev1.ConditionUnknown, LastTransitionTime: now}, c}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			shared, original := tt.in, tt.in.DeepCopy()
			tt.in.Set(tt.set, now)
			if diff := cmp.Diff(tt.want, tt.in); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(original, shared); diff != "" {
				t.Errorf("a list that shares memory changed:\n%s", diff)
			}
		})
	}
}

// TestConditionsReady covers eventing Error Signalling-4, -6, -9, -10 and serving 6-4.
// It covers conventions Conditions-6.
func TestConditionsReady(t *testing.T) {
	condition := func(t ConditionType, s corev1.ConditionStatus, reason string) Condition {
		return Condition{Type: t, Status: s, Reason: reason, Message: reason + "."}
	}
	ready := func(s corev1.ConditionStatus, reason string) Condition {
		if reason == "" {
			return Condition{Type: ConditionReady, Status: s}
		}
		return condition(ConditionReady, s, reason)
	}
	info := condition("Active", corev1.ConditionFalse, "Idle")
	info.Severity = ConditionSeverityInfo
	tests := []struct {
		name       string
		in         Conditions
		dependents []ConditionType
		want       Condition
	}{
		{"no dependents", nil, nil, ready(corev1.ConditionTrue, "")},
		{"missing dependent", nil, []ConditionType{"A"}, ready(corev1.ConditionUnknown, "")},
		{"all true", Conditions{condition("A", corev1.ConditionTrue, "Fine")}, []ConditionType{"A"}, ready(corev1.ConditionTrue, "")},
		{"Unknown is Unknown", Conditions{condition("A", corev1.ConditionTrue, ""), condition("B", corev1.ConditionUnknown, "Waiting")},
			nil, ready(corev1.ConditionUnknown, "Waiting")},
		{"no status is Unknown", Conditions{condition("A", "", "New")}, nil, ready(corev1.ConditionUnknown, "New")},
		{"False beats Unknown", Conditions{condition("A", corev1.ConditionUnknown, "Waiting"), condition("B", corev1.ConditionFalse, "Broken")},
			nil, ready(corev1.ConditionFalse, "Broken")},
		{"the first False decides", Conditions{condition("A", corev1.ConditionFalse, "One"), condition("B", corev1.ConditionFalse, "Two")},
			nil, ready(corev1.ConditionFalse, "One")},
		{"the first Unknown decides", Conditions{condition("A", corev1.ConditionUnknown, "One"), condition("B", corev1.ConditionUnknown, "Two")},
			nil, ready(corev1.ConditionUnknown, "One")},
		{"dependents in the order given", Conditions{condition("A", corev1.ConditionFalse, "One"), condition("B", corev1.ConditionFalse, "Two")},
			[]ConditionType{"B", "A"}, ready(corev1.ConditionFalse, "Two")},
		{"other conditions of severity Error count too", Conditions{condition("A", corev1.ConditionTrue, ""), condition("B", corev1.ConditionFalse, "Broken")},
			[]ConditionType{"A"}, ready(corev1.ConditionFalse, "Broken")},
		{"Info does not count", Conditions{info}, []ConditionType{"Active"}, ready(corev1.ConditionTrue, "")},
		{"an earlier Ready does not count", Conditions{condition(ConditionReady, corev1.ConditionFalse, "Old")}, nil, ready(corev1.ConditionTrue, "")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.in.Ready(tt.dependents...)); diff != "" {
				t.Errorf("Ready (-want +got):\n%s", diff)
			}
		})
	}
}
