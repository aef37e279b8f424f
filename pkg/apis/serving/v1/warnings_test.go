package v1

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each label or annotation of Knative's groups has an effect where it stands, or is warned of.
func TestWarnings(t *testing.T) {
	s := &Service{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"app": "a", VisibilityLabelKey: VisibilityClusterLocal, "serving.knative.dev/visibility": "cluster-local"},
		Annotations: map[string]string{
			CreatorAnnotationKey: "a", RolloutDurationAnnotationKey: "1s", "example.com/a": "b", "client.knative.dev/user-image": "a",
			"networking.knative.dev/ingress-class": "a", "networking.knative.dev/http-protocol": "redirected",
			"networking.knative.dev/disable-external-domain-tls": "true", ProgressDeadlineAnnotationKey: "1m",
		},
	}}
	s.Spec.Template.Annotations = map[string]string{
		MinScaleAnnotationKey: "1", AutoscalingGroupName + "/maxScale": "2", ProgressDeadlineAnnotationKey: "1m", NoGCAnnotationKey: "true",
		"autoscaling.knative.dev/min-scales": "1", "autoscaling.knative.dev/metric-aggregation-algorithm": "linear",
		"queue.sidecar.serving.knative.dev/resource-percentage": "10", "features.knative.dev/queueproxy-podinfo": "enabled",
		"notserving.knative.dev/a": "b",
	}
	want := []string{
		"metadata.annotations[networking.knative.dev/disable-external-domain-tls]",
		"metadata.annotations[networking.knative.dev/http-protocol]",
		"metadata.annotations[networking.knative.dev/ingress-class]",
		"metadata.annotations[serving.knative.dev/progress-deadline]",
		"metadata.labels[serving.knative.dev/visibility]",
		"spec.template.metadata.annotations[autoscaling.knative.dev/metric-aggregation-algorithm]",
		"spec.template.metadata.annotations[autoscaling.knative.dev/min-scales]",
		"spec.template.metadata.annotations[features.knative.dev/queueproxy-podinfo]",
		"spec.template.metadata.annotations[queue.sidecar.serving.knative.dev/resource-percentage]",
	}
	var got []string
	for _, warning := range WarnService(s) {
		path, why, _ := strings.Cut(warning, ": ")
		if !strings.HasPrefix(why, "has no effect") {
			t.Errorf("the warning is %q", warning)
		}
		got = append(got, path)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("warned of\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
