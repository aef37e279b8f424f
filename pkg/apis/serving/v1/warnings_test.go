package v1

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each label or annotation of Knative's groups has an effect on its object, or causes a warning.
func TestWarnings(t *testing.T) {
	s := &Service{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"app": "a", VisibilityLabelKey: VisibilityClusterLocal, "serving.knative.dev/visibility": "cluster-local"},
		Annotations: map[string]string{
			CreatorAnnotationKey: "a", RolloutDurationAnnotationKey: "1s", "example.com/a": "b", "client.knative.dev/user-image": "a",
			"networking.knative.dev/ingress-class": "a", ProgressDeadlineAnnotationKey: "1m",
		},
	}}
	s.Spec.Template.Annotations = map[string]string{
		MinScaleAnnotationKey: "1", AutoscalingGroupName + "/maxScale": "2", ProgressDeadlineAnnotationKey: "1m", NoGCAnnotationKey: "true",
		"autoscaling.knative.dev/min-scales": "1", "autoscaling.knative.dev/metric-aggregation-algorithm": "linear",
		"queue.sidecar.serving.knative.dev/resource-percentage": "10", "features.knative.dev/queueproxy-podinfo": "enabled",
		"notserving.knative.dev/a": "b",
	}
	want := []string{
		"metadata.annotations[networking.knative.dev/ingress-class]",
		"metadata.annotations[serving.knative.dev/progress-deadline]",
		"metadata.labels[serving.knative.dev/visibility]",
		"spec.template.metadata.annotations[autoscaling.knative.dev/metric-aggregation-algorithm]",
		"spec.template.metadata.annotations[autoscaling.knative.dev/min-scales]",
		"spec.template.metadata.annotations[features.knative.dev/queueproxy-podinfo]",
		"spec.template.metadata.annotations[queue.sidecar.serving.knative.dev/resource-percentage]",
	}
	wantWarnings(t, WarnService(s, DefaultSettings()), want...)
}

// TestConfigurationWarnings covers warnings about labels and annotations that have an effect on Services and Routes only, unless a Service
// owns the Configuration.
func TestConfigurationWarnings(t *testing.T) {
	c := &Configuration{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{VisibilityLabelKey: VisibilityClusterLocal, ServiceLabelKey: "a"},
		Annotations: map[string]string{
			CreatorAnnotationKey: "a", InvocationAnnotationKey: InvocationOpen, "networking.knative.dev/http-protocol": "redirected",
		},
	}}
	c.Spec.Template.Annotations = map[string]string{"networking.knative.dev/disableAutoTLS": "true"}
	const template = "spec.template.metadata.annotations[networking.knative.dev/disableAutoTLS]"
	wantWarnings(t, WarnConfiguration(c),
		"metadata.annotations[networking.knative.dev/http-protocol]",
		"metadata.annotations[serving.knative.dev/invocation]",
		"metadata.labels[networking.knative.dev/visibility]",
		template)
	c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&Service{}, SchemeGroupVersion.WithKind("Service"))}
	wantWarnings(t, WarnConfiguration(c), template)
}

// TestDisableTLSWarnings covers warnings about values that are not boolean.
func TestDisableTLSWarnings(t *testing.T) {
	for value, want := range map[string][]string{"true": nil, "false": nil, "yes": {""}, "": {""}} {
		for _, key := range disableTLSAnnotationKeys {
			for i := range want {
				want[i] = "metadata.annotations[" + key + "]"
			}
			meta := metav1.ObjectMeta{Annotations: map[string]string{key: value}}
			wantWarnings(t, WarnService(&Service{ObjectMeta: meta}, withTLS()), want...)
			wantWarnings(t, WarnRoute(&Route{ObjectMeta: meta}, withTLS()), want...)
		}
	}
}

// withTLS returns settings with external-domain-tls.
func withTLS() Settings {
	st := DefaultSettings()
	st.ExternalDomainTLS = true
	return st
}

// TestTLSWarnings covers warnings about annotations about TLS that have no effect because of the settings, the visibility or other annotations.
func TestTLSWarnings(t *testing.T) {
	const disable, class, protocol = "networking.knative.dev/disable-external-domain-tls", "networking.knative.dev/certificate-class", "networking.knative.dev/http-protocol"
	const oldDisable, oldClass, oldProtocol = "networking.knative.dev/disableAutoTLS", "networking.knative.dev/certificate.class", "networking.knative.dev/httpOption"
	all := map[string]string{disable: "false", class: "a", protocol: "Redirected"}
	for name, test := range map[string]struct {
		settings    Settings
		annotations map[string]string
		labels      map[string]string
		want        []string
	}{
		"none":                 {settings: DefaultSettings()},
		"in force":             {settings: withTLS(), annotations: all},
		"without certificates": {settings: DefaultSettings(), annotations: all, want: []string{class, disable, protocol}},
		"former names":         {settings: DefaultSettings(), annotations: map[string]string{oldDisable: "true", oldClass: "a", oldProtocol: "Enabled"}, want: []string{oldClass, oldDisable, oldProtocol}},
		"cluster-local":        {settings: withTLS(), annotations: all, labels: map[string]string{VisibilityLabelKey: VisibilityClusterLocal}, want: []string{class, disable, protocol}},
		"excluded":             {settings: withTLS(), annotations: map[string]string{disable: "true", class: "a", oldProtocol: "Enabled"}, want: []string{class, oldProtocol}},
		"two names of one":     {settings: withTLS(), annotations: map[string]string{oldDisable: "false", disable: "true", oldClass: "a", class: "b", protocol: "Enabled"}, want: []string{class, disable}},
		"an invalid protocol":  {settings: withTLS(), annotations: map[string]string{protocol: "x"}},
		// It makes IngressReady False.
		"an invalid protocol without certificates": {settings: DefaultSettings(), annotations: map[string]string{protocol: "x", class: "a"}, want: []string{class}},
		"an invalid protocol, excluded":            {settings: withTLS(), annotations: map[string]string{protocol: "x", disable: "true"}},
		"excluded and shadowed":                    {settings: withTLS(), annotations: map[string]string{disable: "1", oldClass: "a", class: "b"}, want: []string{class, oldClass}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []string
			for _, key := range test.want {
				want = append(want, "metadata.annotations["+key+"]")
			}
			meta := metav1.ObjectMeta{Annotations: test.annotations, Labels: test.labels}
			wantWarnings(t, WarnService(&Service{ObjectMeta: meta}, test.settings), want...)
			wantWarnings(t, WarnRoute(&Route{ObjectMeta: meta}, test.settings), want...)
		})
	}
}

// wantWarnings compares the fields of warnings, in any order.
func wantWarnings(t *testing.T, warnings []string, want ...string) {
	t.Helper()
	var got []string
	for _, warning := range warnings {
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
