package v1

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// UnusedKeys returns a warning for each label or annotation of some groups that is not in known: it is misspelt, or not
// supported by this server. A key belongs to a group if its prefix is the group, or ends in a dot and the group.
func UnusedKeys(values map[string]string, path *field.Path, groups, known []string) []string {
	var warnings []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		prefix, _, found := strings.Cut(key, "/")
		ours := found && slices.ContainsFunc(groups, func(group string) bool { return prefix == group || strings.HasSuffix(prefix, "."+group) })
		if ours && !slices.Contains(known, key) {
			warnings = append(warnings, Unused(path.Key(key), "see docs/compatibility.md of this server"))
		}
	}
	return warnings
}

// Unused returns the warning that a field has no effect.
func Unused(path *field.Path, why string) string {
	return fmt.Sprintf("%s: has no effect: %s", path, why)
}

// WarnDestination returns the warnings about a destination. authenticated is true if deliveries are authenticated by tokens.
func WarnDestination(d *Destination, path *field.Path, authenticated bool) []string {
	if d == nil {
		return nil
	}
	var warnings []string
	if d.Audience != nil && !authenticated {
		warnings = append(warnings, Unused(path.Child("audience"), "no token is sent while authentication-oidc of config-features is not enabled"))
	}
	if parsed, err := url.Parse(d.URI); d.CACerts != nil && err == nil && parsed.Scheme == "http" {
		warnings = append(warnings, Unused(path.Child("CACerts"), "deliveries to an http URL are not encrypted"))
	}
	return warnings
}

// WarnDelivery returns the warnings about delivery options. authenticated is as for WarnDestination.
func WarnDelivery(d *DeliverySpec, path *field.Path, authenticated bool) []string {
	if d == nil {
		return nil
	}
	return WarnDestination(d.DeadLetterSink, path.Child("deadLetterSink"), authenticated)
}
