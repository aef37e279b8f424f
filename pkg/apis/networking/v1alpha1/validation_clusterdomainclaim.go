package v1alpha1

import (
	"fmt"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// ValidateClusterDomainClaim returns all errors of a ClusterDomainClaim. As in Knative's releases, spec.namespace may be any text.
func ValidateClusterDomainClaim(c *ClusterDomainClaim) field.ErrorList {
	return apivalidation.ValidateObjectMeta(&c.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
}

// WarnClusterDomainClaim returns a warning if no DomainMapping can use the name of a ClusterDomainClaim, and for each field without
// effect.
func WarnClusterDomainClaim(c *ClusterDomainClaim) []string {
	metadata, groups := field.NewPath("metadata"), []string{"serving.knative.dev", "networking.knative.dev", GroupName}
	warnings := append(WarnWildcard(c.Annotations), duckv1.UnusedKeys(c.Labels, metadata.Child("labels"), groups, nil)...)
	known := []string{WildcardAnnotationKey, GroupName + "/creator", GroupName + "/lastModifier"}
	warnings = append(warnings, duckv1.UnusedKeys(c.Annotations, metadata.Child("annotations"), groups, known)...)
	if messages := validation.IsDNS1123Label(c.Spec.Namespace); len(messages) > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.namespace: no namespace can have the name %q, so that no DomainMapping can use the host name: %s", c.Spec.Namespace, messages[0]))
	}
	return warnings
}

// WarnWildcard returns a warning if WildcardAnnotationKey among annotations has no effect. Knative's releases do not have the annotation,
// so they accept all values.
func WarnWildcard(annotations map[string]string) []string {
	if value, ok := annotations[WildcardAnnotationKey]; ok && value != "true" && value != "false" {
		return []string{duckv1.Unused(field.NewPath("metadata", "annotations").Key(WildcardAnnotationKey), fmt.Sprintf("the value %q is neither 'true' nor 'false'", value))}
	}
	return nil
}

// ValidateClusterDomainClaimUpdate returns all errors of a ClusterDomainClaim that replaces old. All of spec may change.
func ValidateClusterDomainClaimUpdate(c, _ *ClusterDomainClaim) field.ErrorList {
	return ValidateClusterDomainClaim(c)
}
