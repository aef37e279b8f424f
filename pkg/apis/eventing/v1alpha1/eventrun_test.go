package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// TestRedriveFields rejects unknown fields at each depth.
func TestRedriveFields(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "", `{"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "Redrive", "metadata": {"name": "a"}, "selector": {"type": "t", "filters": [{"cesql": "TRUE"}]}, "rate": 1}`: "",
		`{"selectr": {"type": "t"}}`: `unknown field "selectr"`, `{"selector": {"typ": "t"}}`: `unknown field "typ"`, `{"spec": {}}`: `unknown field "spec"`, `{"rate": "1"}`: "rate",
	} {
		err := json.Unmarshal([]byte(body), &Redrive{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestValidateEventRun requires a target and a source, and checks the source.
func TestValidateEventRun(t *testing.T) {
	valid := func() *EventRun {
		r := &EventRun{Spec: EventRunSpec{Target: EventRunTarget{Kind: "Trigger", Name: "bill"}, Redrive: &EventRunRedrive{}}}
		r.Namespace, r.Name = "shop", "trigger-bill"
		return r
	}
	for name, test := range map[string]struct {
		change func(*EventRun)
		want   string
	}{
		"valid":     {func(*EventRun) {}, ""},
		"no name":   {func(r *EventRun) { r.Name = "" }, "metadata.name"},
		"no kind":   {func(r *EventRun) { r.Spec.Target.Kind = "" }, "spec.target.kind"},
		"no target": {func(r *EventRun) { r.Spec.Target.Name = "" }, "spec.target.name"},
		"no source": {func(r *EventRun) { r.Spec.Redrive = nil }, "spec.redrive"},
		"rate":      {func(r *EventRun) { r.Spec.Redrive.Rate = ptr.To[int32](0) }, "spec.redrive.rate"},
		"selector":  {func(r *EventRun) { r.Spec.Redrive.Selector = &EventSelector{} }, "spec.redrive.selector"},
	} {
		r := valid()
		test.change(r)
		errs := ValidateEventRun(r)
		if test.want == "" && len(errs) > 0 || test.want != "" && (len(errs) != 1 || errs[0].Field != test.want) {
			t.Errorf("%s: %v", name, errs)
		}
	}
}
