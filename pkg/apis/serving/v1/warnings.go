package v1

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

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

// WarnService returns a warning for each field of a Service that is accepted without effect under the current settings.
func WarnService(s *Service, st Settings) []string {
	return append(warnExposed(&s.ObjectMeta, st), warnTemplate(&s.Spec.Template)...)
}

// WarnConfiguration is like WarnService for a Configuration.
func WarnConfiguration(c *Configuration) []string {
	if metav1.GetControllerOf(c) != nil {
		// Its metadata is the Service's.
		return append(WarnMetadata(&c.ObjectMeta, knownLabels(), exposedAnnotations()...), warnTemplate(&c.Spec.Template)...)
	}
	return append(WarnMetadata(&c.ObjectMeta, knownTemplateLabels()), warnTemplate(&c.Spec.Template)...)
}

// WarnRoute is like WarnService for a Route.
func WarnRoute(r *Route, st Settings) []string { return warnExposed(&r.ObjectMeta, st) }

// exposedAnnotations are the annotations with an effect on Services and Routes.
func exposedAnnotations() []string {
	return append(TLSAnnotationKeys(), InvocationAnnotationKey, RolloutDurationAnnotationKey, RolloutDurationLegacyAnnotationKey)
}

// warnExposed returns the warnings about the metadata of a Service or Route.
func warnExposed(meta *metav1.ObjectMeta, st Settings) []string {
	tls := WarnTLSAnnotations(meta.Annotations, st)
	if meta.Labels[VisibilityLabelKey] == VisibilityClusterLocal {
		tls = unusedTLSAnnotations(meta.Annotations, "all host names are cluster-local")
	}
	return append(WarnMetadata(meta, knownLabels(), exposedAnnotations()...), tls...)
}

// WarnMetadata returns a warning for each label and annotation of an object of this group that has no effect. labels and annotations are the
// keys with an effect, in addition to the ones that the server sets itself.
func WarnMetadata(meta *metav1.ObjectMeta, labels []string, annotations ...string) []string {
	path := field.NewPath("metadata")
	annotations = append(annotations, CreatorAnnotationKey, LastModifierAnnotationKey)
	return append(
		duckv1.UnusedKeys(meta.Labels, path.Child("labels"), warnedGroups(), labels),
		duckv1.UnusedKeys(meta.Annotations, path.Child("annotations"), warnedGroups(), annotations)...)
}

// WarnTLSAnnotations returns a warning for each annotation about TLS without effect on an object with public host names.
func WarnTLSAnnotations(annotations map[string]string, st Settings) []string {
	if !st.ExternalDomainTLS {
		return unusedTLSAnnotations(annotations, "external-domain-tls of config-network is not enabled")
	}
	key, value, ok := firstOf(annotations, disableTLSAnnotationKeys)
	warnings := warnShadowed(annotations, disableTLSAnnotationKeys)
	disabled, err := strconv.ParseBool(value)
	if ok && err != nil {
		warnings = append(warnings, duckv1.Unused(annotationPath(key), fmt.Sprintf("the value %q is neither 'true' nor 'false'", value)))
	}
	if !disabled {
		return slices.Concat(warnings, warnShadowed(annotations, certificateClassAnnotationKeys), warnShadowed(annotations, httpProtocolAnnotationKeys))
	}
	rest := maps.Clone(annotations)
	maps.DeleteFunc(rest, func(name, _ string) bool { return slices.Contains(disableTLSAnnotationKeys, name) })
	return append(warnings, unusedTLSAnnotations(rest, "annotation "+key+" excludes the object from external-domain-tls")...)
}

// WarnOwnTLSAnnotations is like WarnTLSAnnotations for an object whose certificate is in a Secret of the user.
func WarnOwnTLSAnnotations(annotations map[string]string) []string {
	unused := unusedAnnotations(annotations, slices.Concat(disableTLSAnnotationKeys, certificateClassAnnotationKeys), "spec.tls names the certificate")
	return append(unused, warnShadowed(annotations, httpProtocolAnnotationKeys)...)
}

// unusedTLSAnnotations returns a warning for each annotation about TLS, except for http-protocol with an invalid value: that makes IngressReady False.
func unusedTLSAnnotations(annotations map[string]string, why string) []string {
	keys := slices.Concat(disableTLSAnnotationKeys, certificateClassAnnotationKeys)
	if _, err := RedirectsToHTTPS(annotations, false); err == nil {
		keys = append(keys, httpProtocolAnnotationKeys...)
	}
	return unusedAnnotations(annotations, keys, why)
}

// warnShadowed returns a warning for each present annotation among the names of one, except for the first, which counts.
func warnShadowed(annotations map[string]string, keys []string) []string {
	first, _, ok := firstOf(annotations, keys)
	if !ok {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == first })
	return unusedAnnotations(annotations, rest, "annotation "+first+" is present too and counts")
}

// unusedAnnotations returns a warning for each present annotation among keys.
func unusedAnnotations(annotations map[string]string, keys []string, why string) []string {
	var warnings []string
	for _, key := range keys {
		if _, ok := annotations[key]; ok {
			warnings = append(warnings, duckv1.Unused(annotationPath(key), why))
		}
	}
	return warnings
}

func annotationPath(key string) *field.Path { return field.NewPath("metadata", "annotations").Key(key) }

// knownTemplateLabels are the labels with an effect on Configurations and templates.
func knownTemplateLabels() []string {
	return slices.DeleteFunc(knownLabels(), func(key string) bool { return key == VisibilityLabelKey })
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
	return append(
		duckv1.UnusedKeys(template.Labels, path.Child("labels"), warnedGroups(), knownTemplateLabels()),
		duckv1.UnusedKeys(template.Annotations, path.Child("annotations"), warnedGroups(), known)...)
}
