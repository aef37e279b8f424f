package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// warnedGroups are the groups whose labels and annotations should have an effect, including subgroups such as
// queue.sidecar.serving.knative.dev.
func warnedGroups() []string {
	return []string{GroupName, AutoscalingGroupName, "networking.knative.dev", "networking.internal.knative.dev", "features.knative.dev"}
}

func knownLabels() []string {
	return []string{
		ServiceLabelKey, ServiceUIDLabelKey, ConfigurationLabelKey, ConfigurationUIDLabelKey, ConfigurationGenerationLabelKey,
		RoutingStateLabelKey, VisibilityLabelKey, GroupName + "/route",
	}
}

// WarnService returns a warning for each field of a Service that is accepted without effect.
func WarnService(s *Service) []string {
	return append(warnMetadata(&s.ObjectMeta), warnTemplate(&s.Spec.Template)...)
}

// WarnConfiguration is like WarnService for a Configuration.
func WarnConfiguration(c *Configuration) []string {
	return append(warnMetadata(&c.ObjectMeta), warnTemplate(&c.Spec.Template)...)
}

// WarnRoute is like WarnService for a Route.
func WarnRoute(r *Route) []string { return warnMetadata(&r.ObjectMeta) }

func warnMetadata(meta *metav1.ObjectMeta) []string {
	path := field.NewPath("metadata")
	known := []string{CreatorAnnotationKey, LastModifierAnnotationKey, RolloutDurationAnnotationKey, RolloutDurationLegacyAnnotationKey}
	return append(
		duckv1.UnusedKeys(meta.Labels, path.Child("labels"), warnedGroups(), knownLabels()),
		duckv1.UnusedKeys(meta.Annotations, path.Child("annotations"), warnedGroups(), known)...)
}

func warnTemplate(template *RevisionTemplateSpec) []string {
	path := field.NewPath("spec", "template", "metadata")
	known := []string{
		CreatorAnnotationKey, LastModifierAnnotationKey, ProgressDeadlineAnnotationKey, NoGCAnnotationKey, RoutesAnnotationKey,
		RoutingStateModifiedAnnotationKey,
	}
	for _, rule := range autoscalingRules(true) {
		known = append(known, rule.key, legacyAutoscalingKeys[rule.key])
	}
	labels := slices.DeleteFunc(knownLabels(), func(key string) bool { return key == VisibilityLabelKey })
	return append(
		duckv1.UnusedKeys(template.Labels, path.Child("labels"), warnedGroups(), labels),
		duckv1.UnusedKeys(template.Annotations, path.Child("annotations"), warnedGroups(), known)...)
}
