package serving

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestRestricted checks that a Service without security settings runs in a namespace of the restricted Pod Security level, and
// elsewhere with the same restrictions if its image permits.
func TestRestricted(t *testing.T) {
	t.Parallel()
	want := &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), RunAsNonRoot: new(true),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	for name, labels := range map[string]map[string]string{
		"restricted": {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"},
		"baseline":   {"pod-security.kubernetes.io/enforce": "baseline"},
		"anything":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, name, labels)
			service := s.deploy(t, s.app("hello"))
			if got := s.get(t, service.Status.URL); got != "Hello World!\n" {
				t.Errorf("it answers %q", got)
			}
			pod := s.untilPods(t, service.Status.LatestReadyRevisionName, 1)[0]
			if diff := cmp.Diff(want, pod.Spec.Containers[0].SecurityContext); diff != "" {
				t.Errorf("the container's security context (-want +got):\n%s", diff)
			}
		})
	}
}
