package v1

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/url"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns the errors of a destination: it is an object, an absolute URL, or an object with a URL
// relative to its address (eventing Destination Resolution). Nil means unset.
func (d *Destination) Validate(path *field.Path) field.ErrorList {
	if d == nil {
		return nil
	}
	var errs field.ErrorList
	if d.Ref == nil && d.URI == "" {
		errs = append(errs, field.Required(path, "must have at least one of `ref` and `uri`"))
	}
	errs = append(errs, d.Ref.Validate(path.Child("ref"))...)
	switch uri := path.Child("uri"); {
	case d.URI == "":
	case d.Ref == nil:
		errs = append(errs, validateAbsoluteURL(d.URI, uri)...)
	default:
		errs = append(errs, validateRelativeURI(d.URI, uri)...)
	}
	return append(errs, validateCACerts(d.CACerts, path.Child("CACerts"))...)
}

// Validate returns the errors of a reference: kind, name and apiVersion are required (eventing KReference). Nil means
// unset. The names must be valid names of Addressable objects, because they become part of request paths.
func (r *KReference) Validate(path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	errs := ValidateTypeMeta(metav1.TypeMeta{APIVersion: r.APIVersion, Kind: r.Kind}, path)
	if r.Namespace != "" {
		for _, message := range validation.IsDNS1123Label(r.Namespace) {
			errs = append(errs, field.Invalid(path.Child("namespace"), r.Namespace, message))
		}
	}
	if r.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "must name the object"))
	} else {
		for _, message := range validation.IsDNS1123Subdomain(r.Name) {
			errs = append(errs, field.Invalid(path.Child("name"), r.Name, message))
		}
	}
	return errs
}

// RequireReference returns the errors of a reference whose apiVersion, kind and name may have any value that is not empty.
func RequireReference(apiVersion, kind, name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, required := range []struct{ name, value string }{{"apiVersion", apiVersion}, {"kind", kind}, {"name", name}} {
		if required.value == "" {
			errs = append(errs, field.Required(path.Child(required.name), ""))
		}
	}
	return errs
}

// ValidateTypeMeta returns the errors of a reference to a kind: both kind and apiVersion are required.
func ValidateTypeMeta(t metav1.TypeMeta, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.APIVersion == "" {
		errs = append(errs, field.Required(path.Child("apiVersion"), "must be '<group>/<version>' or '<version>'"))
	} else if !isGroupVersion(t.APIVersion) {
		errs = append(errs, field.Invalid(path.Child("apiVersion"), t.APIVersion, "must be '<group>/<version>' or '<version>'"))
	}
	if t.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), "must name a kind"))
	}
	return errs
}

// isGroupVersion reports whether an apiVersion consists of a version, and of a group unless it is the core group.
func isGroupVersion(apiVersion string) bool {
	gv, err := schema.ParseGroupVersion(apiVersion)
	// The parser accepts '/v1' as the core group.
	if err != nil || gv.String() != apiVersion || len(validation.IsDNS1035Label(gv.Version)) > 0 {
		return false
	}
	return gv.Group == "" || len(validation.IsDNS1123Subdomain(gv.Group)) == 0
}

// validateAbsoluteURL returns the errors of a URL to which events are sent.
func validateAbsoluteURL(value string, path *field.Path) field.ErrorList {
	parsed, err := parseURL(value)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, value, "must be a URL: "+err.Error())}
	case !parsed.IsAbs():
		return field.ErrorList{field.Invalid(path, value, "must be an absolute URL, such as 'http://host/path'")}
	}
	var errs field.ErrorList
	if parsed.Scheme != "http" && parsed.Scheme != "https" {
		errs = append(errs, field.Invalid(path, value, "must have the scheme 'http' or 'https'"))
	}
	if parsed.Hostname() == "" {
		errs = append(errs, field.Invalid(path, value, "must name a host"))
	}
	return errs
}

// validateRelativeURI returns the errors of a URI that is resolved against the address of a reference. A URI with a
// scheme or host would discard that address.
func validateRelativeURI(value string, path *field.Path) field.ErrorList {
	parsed, err := parseURL(value)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, value, "must be a URI: "+err.Error())}
	case parsed.IsAbs() || parsed.Host != "":
		return field.ErrorList{field.Invalid(path, value, "may not be absolute when `ref` is set: must be relative to the address of `ref`, such as '/path'")}
	}
	return nil
}

// parseURL parses a URL or relative reference. Its error omits the input, which the caller reports.
func parseURL(value string) (*url.URL, error) {
	parsed, err := url.Parse(value)
	if err != nil {
		if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, err
	}
	if port := parsed.Port(); port != "" {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, errors.New("the port must be between 0 and 65535")
		}
	}
	return parsed, nil
}

// validateCACerts returns the error of a certificate bundle: all its PEM blocks must be certificates. Empty is equivalent to
// unset. The error never contains the value, which may contain a key by mistake.
func validateCACerts(bundle *string, path *field.Path) field.ErrorList {
	if bundle == nil || *bundle == "" {
		return nil
	}
	invalid := func(message string) field.ErrorList {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, message)}
	}
	blocks := 0
	for block, rest := pem.Decode([]byte(*bundle)); block != nil; block, rest = pem.Decode(rest) {
		blocks++
		if block.Type != "CERTIFICATE" {
			return invalid("must hold PEM blocks of type 'CERTIFICATE' alone, not '" + block.Type + "'")
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return invalid("must hold X.509 certificates: " + err.Error())
		}
	}
	// The decoder skips blocks that it cannot parse. Their authority would silently be untrusted.
	if blocks == 0 || blocks != strings.Count(*bundle, "-----BEGIN ") {
		return invalid("must be PEM certificates: '-----BEGIN CERTIFICATE-----', base64, '-----END CERTIFICATE-----'")
	}
	return nil
}
