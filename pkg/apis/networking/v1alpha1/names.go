package v1alpha1

// WildcardAnnotationKey on a DomainMapping makes it serve all names with one label before its own name too, if it is true. On a
// ClusterDomainClaim, it allows that, and reserves all names below the claim's for its namespace.
const WildcardAnnotationKey = "serving.knative.dev/wildcard"

// IsWildcard reports whether annotations have WildcardAnnotationKey with the value true.
func IsWildcard(annotations map[string]string) bool {
	return annotations[WildcardAnnotationKey] == "true"
}
