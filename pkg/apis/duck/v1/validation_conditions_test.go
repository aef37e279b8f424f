package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

// TestValidateConditions covers eventing Error Signalling-2 and serving 6-2.
// It covers conventions Conditions-3 and -4.
func TestValidateConditions(t *testing.T) {
	tests := []struct {
		name string
		in   Conditions
		want []fault
	}{
		{"none", nil, nil},
		{"every status and severity", Conditions{
			{Type: ConditionReady, Status: corev1.ConditionUnknown},
			{Type: "Active", Status: corev1.ConditionFalse, Severity: ConditionSeverityInfo},
			{Type: "Probed", Status: corev1.ConditionTrue, Severity: ConditionSeverityWarning},
		}, nil},
		{"nothing said", Conditions{{}}, []fault{
			{field.ErrorTypeRequired, "status.conditions[0].type", "must"},
			{field.ErrorTypeRequired, "status.conditions[0].status", "must be one of 'True', 'False' and 'Unknown'"}}},
		{"unknown values", Conditions{{Type: "Active", Status: "true", Severity: "Error"}}, []fault{
			{field.ErrorTypeNotSupported, "status.conditions[0].status", `"True", "False", "Unknown"`},
			{field.ErrorTypeNotSupported, "status.conditions[0].severity", `"", "Warning", "Info"`}}},
		{"same type twice", Conditions{
			{Type: "Active", Status: corev1.ConditionTrue},
			{Type: "Active", Status: corev1.ConditionFalse}}, []fault{
			{field.ErrorTypeDuplicate, "status.conditions[1].type", "Active"}}},
		{"two conditions without a type", Conditions{
			{Status: corev1.ConditionTrue}, {Status: corev1.ConditionTrue}}, []fault{
			{field.ErrorTypeRequired, "status.conditions[0].type", "must"},
			{field.ErrorTypeRequired, "status.conditions[1].type", "must"}}},
		{"Ready is of severity Error (eventing Error Signalling 1)", Conditions{
			{Type: ConditionReady, Status: corev1.ConditionTrue, Severity: ConditionSeverityInfo}}, []fault{
			{field.ErrorTypeNotSupported, "status.conditions[0].severity", `supported values: ""`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateConditions(tt.in, field.NewPath("status", "conditions")), tt.want...)
		})
	}
}

func TestValidateImmutable(t *testing.T) {
	tests := []struct {
		name     string
		new, old any
		want     []fault
	}{
		{"same string", "a", "a", nil},
		{"nil and empty mean the same", map[string]string{}, map[string]string(nil), nil},
		{"same content", &KReference{Name: "a"}, &KReference{Name: "a"}, nil},
		{"string", "b", "a", []fault{{field.ErrorTypeInvalid, "spec.broker",
			`"b": may not change from 'a' to 'b'; delete and recreate the object instead`}}},
		{"object", KReference{Name: "b"}, KReference{Name: "a", Address: ptr.To("x")}, []fault{{field.ErrorTypeInvalid, "spec.broker",
			`may not change from '{"name":"a","address":"x"}' to '{"name":"b"}'; delete`}}},
		{"from nothing", &KReference{Name: "b"}, (*KReference)(nil), []fault{{field.ErrorTypeInvalid, "spec.broker",
			`may not change from 'null' to '{"name":"b"}'`}}},
		{"invalid JSON", runtime.RawExtension{Raw: []byte("{")}, runtime.RawExtension{}, []fault{{field.ErrorTypeInvalid, "spec.broker",
			"may not change from 'null' to '"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateImmutable(tt.new, tt.old, field.NewPath("spec", "broker")), tt.want...)
		})
	}
}
