package plugin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
)

// TestReplayRequest makes the request of flags. Durations are before now.
func TestReplayRequest(t *testing.T) {
	now := time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	for name, test := range map[string]struct {
		options replayOptions
		want    eventingv1alpha1.Replay
	}{
		"none": {},
		"all": {
			replayOptions{
				runOptions: runOptions{chosen: eventingv1alpha1.EventSelector{Type: "order"}, cesql: "a > 1", perSec: 5},
				from:       "1h30m", to: "2026-01-02T14:04:05Z", trigger: "bill",
			},
			eventingv1alpha1.Replay{
				From: ptr.To(metav1.NewTime(now.Add(-90 * time.Minute))), To: ptr.To(metav1.NewTime(now.Add(-time.Hour))), Trigger: "bill", Rate: ptr.To[int32](5),
				Selector: &eventingv1alpha1.EventSelector{Type: "order", Filters: []eventingv1.SubscriptionsAPIFilter{{CESQL: "a > 1"}}},
			},
		},
	} {
		got, err := test.options.request(now)
		if diff := cmp.Diff(&test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}
