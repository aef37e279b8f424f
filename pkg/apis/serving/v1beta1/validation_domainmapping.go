package v1beta1

import (
	"fmt"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
)

// ValidateDomainMapping returns all errors of a DomainMapping after defaulting. clusterDomain is the DNS domain of the cluster, whose
// names belong to core Services. As in Knative's releases, spec.tls.secretName may be any text: CertificateProvisioned reports a missing Secret.
func ValidateDomainMapping(m *DomainMapping, clusterDomain string) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&m.ObjectMeta, true, validateName, metadata)
	if m.GenerateName != "" {
		errs = append(errs, field.Forbidden(metadata.Child("generateName"), "may not be set: the name of a DomainMapping is a host name"))
	}
	errs = append(errs, validateHostName(m.Name, clusterDomain, metadata.Child("name"))...)
	errs = append(errs, validateRef(m, &m.Spec.Ref, spec.Child("ref"))...)
	return append(errs, validatePaths(m, spec.Child("paths"))...)
}

// validateName returns the errors of the name of an object. A name that begins with "*." is invalid; the error names the annotation for wildcards.
func validateName(name string, prefix bool) []string {
	domain, wildcard := strings.CutPrefix(name, "*.")
	if wildcard && len(validation.IsDNS1123Subdomain(domain)) == 0 && len(validation.IsFullyQualifiedDomainName(nil, domain)) == 0 {
		return []string{fmt.Sprintf("invalid name %q: must be %q, with the annotation %s: \"true\", to serve all names below it", name, domain, networkingv1alpha1.WildcardAnnotationKey)}
	}
	return apivalidation.NameIsDNSSubdomain(name, prefix)
}

// validateHostName returns the errors of the host name of a DomainMapping beyond the errors of any name of an object.
func validateHostName(name, clusterDomain string, path *field.Path) field.ErrorList {
	if name == "" || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil
	}
	if errs := validation.IsFullyQualifiedDomainName(path, name); len(errs) > 0 {
		return field.ErrorList{field.Invalid(path, name, fmt.Sprintf("invalid name %q: must be a fully qualified DNS name, such as 'www.example.com'", name))}
	}
	if strings.HasSuffix(name, "."+clusterDomain) {
		return field.ErrorList{field.Invalid(path, name, fmt.Sprintf("invalid name %q: may not be a subdomain of the cluster's domain %q", name, clusterDomain))}
	}
	return nil
}

// validateRef returns the errors of a reference. As in Knative's releases, a reference to an object that cannot exist is not an error:
// ReferenceResolved reports it.
func validateRef(m *DomainMapping, ref *duckv1.KReference, path *field.Path) field.ErrorList {
	errs := duckv1.RequireReference(ref.APIVersion, ref.Kind, ref.Name, path)
	if ref.Namespace != "" && ref.Namespace != m.Namespace {
		errs = append(errs, field.Invalid(path.Child("namespace"), ref.Namespace,
			fmt.Sprintf("mismatched namespaces: must be the namespace of the DomainMapping, %q", m.Namespace)))
	}
	return errs
}

const (
	// maxPaths bounds the paths of a DomainMapping: the gateway compares a request with each of them.
	maxPaths = 32
	// maxPrefix bounds the length of a prefix, in bytes.
	maxPrefix = 256
)

// validatePaths returns the errors of the paths of a DomainMapping.
func validatePaths(m *DomainMapping, path *field.Path) field.ErrorList {
	if n := len(m.Spec.Paths); n > maxPaths {
		return field.ErrorList{field.TooMany(path, n, maxPaths)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i := range m.Spec.Paths {
		p, path := &m.Spec.Paths[i], path.Index(i)
		if seen[p.Prefix] {
			errs = append(errs, field.Duplicate(path.Child("prefix"), p.Prefix))
		} else {
			errs = append(errs, validatePrefix(p.Prefix, path.Child("prefix"))...)
		}
		seen[p.Prefix] = true
		errs = append(errs, validateRef(m, &p.Ref, path.Child("ref"))...)
	}
	return errs
}

// validatePrefix returns the errors of a path. It has only the unreserved characters of RFC 3986 2.3, which no party encodes or interprets, so
// that a path has one spelling.
func validatePrefix(prefix string, path *field.Path) field.ErrorList {
	switch {
	case prefix == "":
		return field.ErrorList{field.Required(path, "must be a path, such as '/api'")}
	case prefix == "/":
		return field.ErrorList{field.Invalid(path, prefix, "must have a segment: spec.ref receives all other requests")}
	case len(prefix) > maxPrefix:
		return field.ErrorList{field.TooLong(path, prefix, maxPrefix)}
	case prefix[0] != '/':
		return field.ErrorList{field.Invalid(path, prefix, "must begin with '/'")}
	}
	for segment := range strings.SplitSeq(prefix[1:], "/") {
		switch {
		case segment == "":
			return field.ErrorList{field.Invalid(path, prefix, "may not contain '//' or end with '/'")}
		case segment == "." || segment == "..":
			return field.ErrorList{field.Invalid(path, prefix, "may not contain the segments '.' and '..'")}
		case strings.IndexFunc(segment, reserved) >= 0:
			return field.ErrorList{field.Invalid(path, prefix, "may contain only letters, digits, '-', '.', '_', '~' and '/'")}
		}
	}
	return nil
}

// reserved reports whether a character is not one of the unreserved ones of URLs (RFC 3986 2.3).
func reserved(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-._~", r))
}

// ValidateDomainMappingUpdate returns all errors of a DomainMapping that replaces old. All of spec may change.
func ValidateDomainMappingUpdate(m, _ *DomainMapping, clusterDomain string) field.ErrorList {
	return ValidateDomainMapping(m, clusterDomain)
}
