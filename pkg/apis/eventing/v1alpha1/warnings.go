package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// targets are the kinds of objects that EventPolicies apply to.
var targets = []schema.GroupKind{{Group: "eventing.knative.dev", Kind: "Broker"}, {Group: "messaging.knative.dev", Kind: "Channel"}}

// IsKind reports whether apiVersion and name stand for a kind: neither the version nor the case have a meaning.
func IsKind(apiVersion, name string, kind schema.GroupKind) bool {
	gv, err := schema.ParseGroupVersion(apiVersion)
	return err == nil && strings.EqualFold(gv.Group, kind.Group) && strings.EqualFold(name, kind.Kind)
}

// WarnEventPolicy returns a warning for each label and annotation without effect, each entry of spec.to that selects nothing, and each filter that
// excludes nothing.
func WarnEventPolicy(p *EventPolicy) []string {
	metadata, groups := field.NewPath("metadata"), []string{GroupName}
	warnings := append(
		duckv1.UnusedKeys(p.Labels, metadata.Child("labels"), groups, nil),
		duckv1.UnusedKeys(p.Annotations, metadata.Child("annotations"), groups, []string{GroupName + "/creator", GroupName + "/lastModifier"})...)
	for i := range p.Spec.To {
		to, path := &p.Spec.To[i], field.NewPath("spec", "to").Index(i)
		apiVersion, kind := "", ""
		switch {
		case to.Ref != nil:
			apiVersion, kind, path = to.Ref.APIVersion, to.Ref.Kind, path.Child("ref")
		case to.Selector != nil:
			apiVersion, kind, path = to.Selector.APIVersion, to.Selector.Kind, path.Child("selector")
			if _, err := metav1.LabelSelectorAsSelector(&to.Selector.LabelSelector); err != nil {
				warnings = append(warnings, fmt.Sprintf("%s: selects nothing: %v", path, err))
				continue
			}
		}
		if !slices.ContainsFunc(targets, func(target schema.GroupKind) bool { return IsKind(apiVersion, kind, target) }) {
			warnings = append(warnings, fmt.Sprintf("%s: has no effect: EventPolicies apply to Brokers of %s and Channels of messaging.knative.dev only", path, GroupName))
		}
	}
	return append(warnings, eventingv1.WarnFilters(p.Spec.Filters, filtersPath())...)
}
