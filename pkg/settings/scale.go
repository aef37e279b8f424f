package settings

import (
	"strconv"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// InitialScaleOf returns the initial number of backends of a Revision with the given annotations, which it must reach once to
// become ready.
func (s *Settings) InitialScaleOf(annotations map[string]string) int32 {
	initial := instances(annotations, servingv1.InitialScaleAnnotationKey, s.Autoscaler.InitialScale)
	if initial == 0 && !s.API.AllowZeroInitialScale {
		initial = max(1, s.Autoscaler.InitialScale)
	}
	return max(initial, instances(annotations, servingv1.MinScaleAnnotationKey, s.Autoscaler.MinScale))
}

// instances parses an annotation with a number of backends. Admission rejects invalid values.
func instances(annotations map[string]string, key string, otherwise int32) int32 {
	if _, value, ok := servingv1.AutoscalingAnnotation(annotations, key); ok {
		if n, err := strconv.ParseInt(value, 10, 32); err == nil && n >= 0 {
			return int32(n)
		}
	}
	return otherwise
}
