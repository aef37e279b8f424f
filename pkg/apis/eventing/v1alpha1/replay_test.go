package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestReplayFields rejects unknown fields at each depth.
func TestReplayFields(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "", `{"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "Replay", "from": "2026-01-02T15:04:05.5Z", "trigger": "a", "selector": {"type": "t"}, "rate": 1}`: "",
		`{"triger": "a"}`: `unknown field "triger"`, `{"selector": {"typ": "t"}}`: `unknown field "typ"`, `{"from": "yesterday"}`: "yesterday",
	} {
		err := json.Unmarshal([]byte(body), &Replay{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestValidateEventRunOfReplay checks the replay of an EventRun, which has no redrive.
func TestValidateEventRunOfReplay(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		change func(*EventRun)
		want   string
	}{
		"valid":     {func(*EventRun) {}, ""},
		"no source": {func(r *EventRun) { r.Spec.Replay = nil }, "spec.redrive"},
		"both":      {func(r *EventRun) { r.Spec.Redrive = &EventRunRedrive{} }, "spec.replay"},
		"no Broker": {func(r *EventRun) { r.Spec.Replay.Broker = "" }, "spec.replay.broker"},
		"from":      {func(r *EventRun) { r.Spec.Replay.From = ptr.To(metav1.NewMicroTime(now)) }, "spec.replay.from"},
		"rate":      {func(r *EventRun) { r.Spec.Replay.Rate = ptr.To[int32](0) }, "spec.replay.rate"},
		"selector":  {func(r *EventRun) { r.Spec.Replay.Selector = &EventSelector{} }, "spec.replay.selector"},
	} {
		r := &EventRun{Spec: EventRunSpec{Target: EventRunTarget{Kind: "Broker", Name: "orders"}, Replay: &EventRunReplay{Broker: "orders", To: metav1.NewMicroTime(now)}}}
		r.Namespace, r.Name = "shop", "broker-orders"
		test.change(r)
		errs := ValidateEventRun(r)
		if test.want == "" && len(errs) > 0 || test.want != "" && (len(errs) != 1 || errs[0].Field != test.want) {
			t.Errorf("%s: %v", name, errs)
		}
	}
}
