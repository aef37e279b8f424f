package registry

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// labelsSizeLimit bounds the total size of an object's labels in bytes, as Kubernetes bounds annotations: each label has its
// own entry in the managed fields and is matched by every selector.
const labelsSizeLimit = 256 << 10

// ValidateLabelsSize validates the total size of an object's labels.
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
