package registry

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// labelsSizeLimit bounds all labels of an object together, in bytes, as Kubernetes bounds annotations: every
// label is an entry of its own in the managed fields and is looked at by every selector.
const labelsSizeLimit = 256 << 10

// ValidateLabelsSize checks that all labels of an object together are not too large.
func ValidateLabelsSize(labels map[string]string) field.ErrorList {
	size := 0
	for key, value := range labels {
		size += len(key) + len(value)
	}
	if size > labelsSizeLimit {
		return field.ErrorList{field.TooLong(field.NewPath("metadata", "labels"), "", labelsSizeLimit)}
	}
	return nil
}
