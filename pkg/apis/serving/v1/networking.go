package v1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// networkingGroupName is the prefix of annotations about host names.
const networkingGroupName = "networking.knative.dev"

// The annotations of Services, Routes and DomainMappings about TLS, with their former names. The first name that is present counts.
var (
	disableTLSAnnotationKeys       = []string{networkingGroupName + "/disableAutoTLS", networkingGroupName + "/disable-auto-tls", networkingGroupName + "/disable-external-domain-tls"}
	httpProtocolAnnotationKeys     = []string{networkingGroupName + "/httpOption", networkingGroupName + "/http-protocol"}
	certificateClassAnnotationKeys = []string{networkingGroupName + "/certificate.class", networkingGroupName + "/certificate-class"}
)

// TLSAnnotationKeys returns the annotations about TLS, including their former names.
func TLSAnnotationKeys() []string {
	return slices.Concat(disableTLSAnnotationKeys, httpProtocolAnnotationKeys, certificateClassAnnotationKeys)
}

// firstOf returns the value of the first key that is present.
func firstOf(annotations map[string]string, keys []string) (key, value string, ok bool) {
	for _, key := range keys {
		if value, ok := annotations[key]; ok {
			return key, value, true
		}
	}
	return "", "", false
}

// ExternalTLSDisabled reports whether annotations exclude an object from external-domain-tls of config-network. Values that are not boolean
// do not.
func ExternalTLSDisabled(annotations map[string]string) bool {
	_, value, _ := firstOf(annotations, disableTLSAnnotationKeys)
	disabled, err := strconv.ParseBool(value)
	return err == nil && disabled
}

// CertificateClass returns the certificate class in annotations, or otherwise.
func CertificateClass(annotations map[string]string, otherwise string) string {
	if _, value, ok := firstOf(annotations, certificateClassAnnotationKeys); ok && value != "" {
		return value
	}
	return otherwise
}

// RedirectsToHTTPS reports whether requests without TLS are redirected, by annotations or otherwise. It returns the latter with the error of an
// unknown value.
func RedirectsToHTTPS(annotations map[string]string, otherwise bool) (bool, error) {
	key, value, ok := firstOf(annotations, httpProtocolAnnotationKeys)
	switch {
	case !ok:
		return otherwise, nil
	case strings.EqualFold(value, "enabled"):
		return false, nil
	case strings.EqualFold(value, "redirected"):
		return true, nil
	}
	return otherwise, fmt.Errorf("incorrect http-protocol annotation: %q of annotation %q must be 'enabled' or 'redirected'", value, key)
}
