package eventing

import (
	"crypto/md5" //nolint:gosec // Knative's releases shorten names with it; nothing depends on its strength.
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// accountPrefix is the number of characters of an object's name in the name of its ServiceAccount if that would be too long.
const accountPrefix = validation.DNS1123LabelMaxLength - 2*md5.Size

// AccountName returns the name of the ServiceAccount with which an object of an API group and kind sends events, such as
// "orders-oidc-eventing.knative.dev-trigger", as in Knative's releases. Names of more than 63 characters are shortened: to 31 characters of the
// object's name, and the hash of the whole name.
func AccountName(group, kind, object string) string {
	name := object + "-oidc-" + group + "-" + kind
	if len(name) > validation.DNS1123LabelMaxLength {
		name = fmt.Sprintf("%s%x", object[:min(len(object), accountPrefix)], md5.Sum([]byte(name))) //nolint:gosec // see above
		// Knative's releases fill up the names of short objects.
		if suffix := "-oidc-" + group + "-" + kind; len(name) < validation.DNS1123LabelMaxLength {
			name = strings.TrimRight(name+suffix[:validation.DNS1123LabelMaxLength-len(name)], "-.")
		}
	}
	return strings.ToLower(name)
}
