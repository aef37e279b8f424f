package v1

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestAutoscalingAnnotations(t *testing.T) {
	const group = "autoscaling.knative.dev/"
	for _, tc := range []struct {
		key       string
		good, bad []string
		message   string
	}{
		{"class", []string{"kpa.autoscaling.knative.dev"}, []string{"", "hpa.autoscaling.knative.dev", "mine.example.com"}, "must be 'kpa."},
		{"metric", []string{"concurrency", "rps"}, []string{"", "cpu"}, "must be 'concurrency' or 'rps'"},
		{"min-scale", []string{"0", "1", "2147483647"}, []string{"-1", "", "x", "1.5", "2147483648"}, "greater than or equal to 0"},
		{"max-scale", []string{"0", "7"}, []string{"-1", "many"}, "greater than or equal to 0"},
		{"initial-scale", []string{"1", "3"}, []string{"-1", "one"}, "greater than or equal to 1"},
		{"initial-scale", nil, []string{"0"}, "allow-zero-initial-scale"},
		{"activation-scale", []string{"2", "10"}, []string{"1", "0", "-2", "x"}, "greater than or equal to 2"},
		{"target", []string{"0.01", "100", "1e3"}, []string{"0", "0.009", "-1", "x", "NaN", "Inf"}, "greater than or equal to 0.01"},
		{"target-utilization-percentage", []string{"1", "70.5", "100"}, []string{"0.9", "101", "70%", "nan"}, "between 1 and 100"},
		{"target-burst-capacity", []string{"0", "-1", "211", "0.5"}, []string{"-2", "-0.5", "x", "+Inf"}, "or -1"},
		{"panic-window-percentage", []string{"1", "10.0", "100"}, []string{"0", "100.1", "x"}, "between 1 and 100"},
		{"panic-threshold-percentage", []string{"110", "1000"}, []string{"109.9", "1001", "x"}, "between 110 and 1000"},
		{"window", []string{"6s", "1h", "90s"}, []string{"5s", "61m", "60", "-6s"}, "between 6s and 1h0m0s"},
		{"window", nil, []string{"6500ms"}, "whole seconds"},
		{"scale-down-delay", []string{"0s", "15m", "1h"}, []string{"-1s", "2h", "x"}, "between 0s and 1h0m0s"},
		{"scale-down-delay", nil, []string{"1.5s"}, "whole seconds"},
		{"scale-to-zero-pod-retention-period", []string{"0s", "1m5s", "1h"}, []string{"-1s", "61m", "x"}, "between 0s and 1h0m0s"},
	} {
		for _, value := range tc.good {
			checkAutoscaling(t, map[string]string{group + tc.key: value})
		}
		for _, value := range tc.bad {
			checkAutoscaling(t, map[string]string{group + tc.key: value}, invalid("annotations["+group+tc.key+"]", tc.message))
		}
	}
}

func checkAutoscaling(t *testing.T, annotations map[string]string, want ...fault) {
	t.Helper()
	got := validateAutoscaling(annotations, Settings{}, field.NewPath("annotations"))
	checkFaults(t, got, want...)
	if t.Failed() {
		t.Fatalf("with %v", annotations)
	}
}

func TestAutoscalingAnnotationsTogether(t *testing.T) {
	const group = "autoscaling.knative.dev/"
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        []fault
	}{
		{name: "max equals min", annotations: map[string]string{group + "min-scale": "3", group + "max-scale": "3"}},
		{name: "no max", annotations: map[string]string{group + "min-scale": "3", group + "max-scale": "0"}},
		{
			name:        "max below min",
			annotations: map[string]string{group + "min-scale": "3", group + "max-scale": "2"},
			want:        []fault{invalid("annotations["+group+"max-scale]", "greater than or equal to min-scale (3)")},
		},
		{
			name:        "older spelling",
			annotations: map[string]string{group + "minScale": "3", group + "maxScale": "2", group + "panicWindowPercentage": "0"},
			want: []fault{
				invalid("annotations["+group+"maxScale]", "min-scale (3)"),
				invalid("annotations["+group+"panicWindowPercentage]", "between 1 and 100"),
			},
		},
		{name: "present spelling wins", annotations: map[string]string{group + "min-scale": "1", group + "minScale": "x"}},
		{name: "unknown keys", annotations: map[string]string{group + "scale-by-moon-phase": "full"}},
		{
			name:        "every fault",
			annotations: map[string]string{group + "min-scale": "-1", group + "max-scale": "x", group + "window": "1"},
			want: []fault{
				invalid("annotations["+group+"min-scale]", ""), invalid("annotations["+group+"max-scale]", ""),
				invalid("annotations["+group+"window]", ""),
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			checkAutoscaling(t, tc.annotations, tc.want...)
		})
	}
}

func TestAutoscalingAnnotationsOfTemplateAndRevision(t *testing.T) {
	bad := map[string]string{MinScaleAnnotationKey: "x"}
	zero := map[string]string{InitialScaleAnnotationKey: "0"}
	allowZero := DefaultSettings()
	allowZero.AllowZeroInitialScale = true

	s := newService()
	SetDefaults_Service(s)
	s.Spec.Template.Annotations = bad
	checkFaults(t, ValidateService(s, DefaultSettings()), invalid("spec.template.metadata.annotations[autoscaling.knative.dev/min-scale]", ""))
	s.Spec.Template.Annotations = zero
	checkFaults(t, ValidateService(s, DefaultSettings()), invalid("spec.template.metadata.annotations[autoscaling.knative.dev/initial-scale]", ""))
	checkFaults(t, ValidateService(s, allowZero))

	r := newRevision()
	r.Annotations = bad
	checkFaults(t, ValidateRevision(r, DefaultSettings()), invalid("metadata.annotations[autoscaling.knative.dev/min-scale]", ""))
	checkFaults(t, ValidateRevisionUpdate(r, newRevision()), invalid("metadata.annotations[autoscaling.knative.dev/min-scale]", ""))
	r.Annotations = zero
	checkFaults(t, ValidateRevision(r, DefaultSettings()), invalid("metadata.annotations[autoscaling.knative.dev/initial-scale]", ""))
	checkFaults(t, ValidateRevisionUpdate(r, r.DeepCopy()))
}
