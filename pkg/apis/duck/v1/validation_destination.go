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

// Validate returns the faults of a destination: it is an object, an absolute URL, or an object with a URL
// relative to its address (eventing Destination Resolution). Nil is an optional destination left out.
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

// Validate returns the faults of a reference: kind, name and apiVersion are required (eventing KReference).
// Nil is an optional reference left out. The names are held to what Addressable objects can be called, as
// they become part of request paths.
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

// ValidateTypeMeta returns the faults of the choice of a kind: both kind and apiVersion are required.
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

// isGroupVersion reports whether an apiVersion names a version, and a group unless it is the core one.
func isGroupVersion(apiVersion string) bool {
	gv, err := schema.ParseGroupVersion(apiVersion)
	// The parser lets '/v1' pass as the core group.
	if err != nil || gv.String() != apiVersion || len(validation.IsDNS1035Label(gv.Version)) > 0 {
		return false
	}
	return gv.Group == "" || len(validation.IsDNS1123Subdomain(gv.Group)) == 0
}

// validateAbsoluteURL returns the faults of a URL that events are sent to as it is.
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

// validateRelativeURI returns the faults of a URI that is resolved against the address of a reference. One
// that brings its own scheme or host would discard that address.
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

// parseURL parses a URL or relative reference; its error leaves out the input, which the caller reports.
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

// validateCACerts returns the fault of a bundle of certificates: all its PEM blocks must be certificates.
// Empty is the same as unset. The value is never repeated in the error, as a key may be in it by mistake.
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
	// The decoder passes over blocks it cannot read, which would leave their authority untrusted in silence.
	if blocks == 0 || blocks != strings.Count(*bundle, "-----BEGIN ") {
		return invalid("must be PEM certificates: '-----BEGIN CERTIFICATE-----', base64, '-----END CERTIFICATE-----'")
	}
	return nil
}
