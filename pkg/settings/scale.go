package settings

import (
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// InitialScaleOf returns the initial number of backends of a Revision with the given annotations, which it must reach once to
// become ready.
func (s *Settings) InitialScaleOf(annotations map[string]string) int32 {
	initial := ptr.Deref(servingv1.CountAnnotation(annotations, servingv1.InitialScaleAnnotationKey), s.Autoscaler.InitialScale)
	if initial == 0 && !s.API.AllowZeroInitialScale {
		initial = max(1, s.Autoscaler.InitialScale)
	}
	return max(initial, ptr.Deref(servingv1.CountAnnotation(annotations, servingv1.MinScaleAnnotationKey), s.Autoscaler.MinScale))
}
