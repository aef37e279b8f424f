// Package resources makes the Revisions of Configurations.
package resources

import (
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// RevisionName is the name of the Revision for a Configuration's current generation: the user's choice, or a name made
// from the Configuration's name and generation, so that each generation has at most one Revision (serving 7.2-3).
func RevisionName(configuration *servingv1.Configuration) string {
	if name := configuration.Spec.Template.Name; name != "" {
		return name
	}
	name, suffix := configuration.Name, fmt.Sprintf("-%05d", configuration.Generation)
	if excess := len(name) + len(suffix) - validation.DNS1035LabelMaxLength; excess > 0 {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(name)) // documented to never fail
		suffix = fmt.Sprintf("-%08x%s", hash.Sum32(), suffix)
		name = strings.TrimRight(name[:validation.DNS1035LabelMaxLength-len(suffix)], "-")
	}
	return name + suffix
}

// Revision returns the Revision for a Configuration's current generation: its template, and labels and annotations that
// identify its origin, but not the Configuration's own labels and annotations (serving 7.2-4, 7.2-6, 9.2.1-3, 9.2.1-4).
// Its creator is the user who last changed the Configuration.
func Revision(configuration *servingv1.Configuration, now time.Time) *servingv1.Revision {
	template := &configuration.Spec.Template
	labels := make(map[string]string, len(template.Labels)+6)
	maps.Copy(labels, template.Labels)
	maps.Copy(labels, OwnerLabels(configuration))
	labels[servingv1.ConfigurationGenerationLabelKey] = strconv.FormatInt(configuration.Generation, 10)
	labels[servingv1.RoutingStateLabelKey] = servingv1.RoutingStatePending

	annotations := make(map[string]string, len(template.Annotations)+3)
	maps.Copy(annotations, template.Annotations)
	annotations[servingv1.RoutingStateModifiedAnnotationKey] = now.UTC().Format(time.RFC3339)
	if modifier := configuration.Annotations[servingv1.LastModifierAnnotationKey]; modifier != "" {
		annotations[servingv1.CreatorAnnotationKey] = modifier
		annotations[servingv1.LastModifierAnnotationKey] = modifier
	}
	return &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       configuration.Namespace,
			Name:            RevisionName(configuration),
			Labels:          labels,
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(configuration, servingv1.SchemeGroupVersion.WithKind("Configuration"))},
		},
		Spec: *template.Spec.DeepCopy(),
	}
}

// OwnerLabels are the labels of a Configuration's Revisions that name it and its Service (serving 9.2.1-3).
func OwnerLabels(configuration *servingv1.Configuration) map[string]string {
	labels := map[string]string{
		servingv1.ConfigurationLabelKey:    configuration.Name,
		servingv1.ConfigurationUIDLabelKey: string(configuration.UID),
	}
	if owner := metav1.GetControllerOfNoCopy(configuration); owner != nil && owner.Kind == "Service" {
		labels[servingv1.ServiceLabelKey] = owner.Name
		labels[servingv1.ServiceUIDLabelKey] = string(owner.UID)
	}
	return labels
}
