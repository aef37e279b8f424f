package v1beta1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// WarnDomainMapping returns a warning for each field of a DomainMapping that is accepted without effect under the current settings.
func WarnDomainMapping(m *DomainMapping, st servingv1.Settings) []string {
	known := append(servingv1.TLSAnnotationKeys(), networkingv1alpha1.WildcardAnnotationKey, servingv1.InvocationAnnotationKey)
	warnings := append(servingv1.WarnMetadata(&m.ObjectMeta, nil, known...), networkingv1alpha1.WarnWildcard(m.Annotations)...)
	if m.Spec.TLS != nil {
		warnings = append(warnings, servingv1.WarnOwnTLSAnnotations(m.Annotations)...)
	} else {
		warnings = append(warnings, servingv1.WarnTLSAnnotations(m.Annotations, st)...)
	}
	if _, ok := m.Annotations[servingv1.InvocationAnnotationKey]; ok {
		path := field.NewPath("metadata", "annotations").Key(servingv1.InvocationAnnotationKey)
		warnings = append(warnings, duckv1.Unused(path, "the Service or Route decides who may send requests"))
	}
	spec := field.NewPath("spec")
	warnings = append(warnings, warnRef(&m.Spec.Ref, spec.Child("ref"))...)
	for i := range m.Spec.Paths {
		warnings = append(warnings, warnRef(&m.Spec.Paths[i].Ref, spec.Child("paths").Index(i).Child("ref"))...)
	}
	return append(warnings, warnTLS(m.Spec.TLS, spec.Child("tls"))...)
}

// warnTLS returns a warning if no Secret can have the name in spec.tls. Knative's releases accept all names.
func warnTLS(tls *SecretTLS, path *field.Path) []string {
	if tls == nil {
		return nil
	}
	messages := validation.IsDNS1123Subdomain(tls.SecretName)
	if len(messages) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: no Secret can have the name %q, so that the host name has no certificate: %s", path.Child("secretName"), tls.SecretName, messages[0])}
}

// warnRef returns the warnings about a reference to an application.
func warnRef(ref *duckv1.KReference, path *field.Path) []string {
	if ref.Address == nil {
		return nil
	}
	return []string{duckv1.Unused(path.Child("address"), "the gateway sends requests to Revisions, not to an address")}
}
