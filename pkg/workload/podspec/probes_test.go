package podspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestProbes(t *testing.T) {
	http := func(change func(*corev1.Probe)) *corev1.Probe {
		p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz"}}}
		if change != nil {
			change(p)
		}
		return p
	}
	c := &corev1.Container{
		Ports:          []corev1.ContainerPort{{ContainerPort: 3000}},
		ReadinessProbe: http(func(p *corev1.Probe) { p.PeriodSeconds, p.FailureThreshold = 5, 7 }),
		StartupProbe:   http(func(p *corev1.Probe) { p.FailureThreshold = 6 }),
		LivenessProbe:  http(func(p *corev1.Probe) { p.TerminationGracePeriodSeconds = ptr.To[int64](40) }),
	}
	setProbes(c)
	at := intstr.FromInt32(3000)
	want := &corev1.Container{
		Ports: c.Ports,
		ReadinessProbe: http(func(p *corev1.Probe) {
			p.PeriodSeconds, p.FailureThreshold, p.HTTPGet.Port = 5, 7, at
		}),
		StartupProbe: http(func(p *corev1.Probe) {
			p.PeriodSeconds, p.FailureThreshold, p.HTTPGet.Port, p.TerminationGracePeriodSeconds = 1, 60, at, ptr.To[int64](5)
		}),
		LivenessProbe: http(func(p *corev1.Probe) {
			p.HTTPGet.Port, p.TerminationGracePeriodSeconds = at, ptr.To[int64](40)
		}),
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("container (-want +got):\n%s", diff)
	}
}
