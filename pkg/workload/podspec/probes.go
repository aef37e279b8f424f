package podspec

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const (
	// DefaultProbePeriod is the period of probes in core/v1, in seconds.
	DefaultProbePeriod = 10
	// DefaultFailureThreshold is the failure threshold of probes in core/v1.
	DefaultFailureThreshold = 3
	// unhealthyGrace bounds the preStop hook of a container that failed its probe, in seconds. The container is not
	// drained, because its Pod remains.
	unhealthyGrace = 5
)

// setProbes completes the probes of a container: the port defaults to the container's, and the period to the minimum
// (serving 10.9). A startup probe without a period keeps the total time of the default period.
func setProbes(c *corev1.Container) {
	var port int32
	if len(c.Ports) > 0 {
		port = c.Ports[0].ContainerPort
	}
	if p := c.ReadinessProbe; p != nil {
		setPort(p, port)
		if p.PeriodSeconds == 0 {
			p.PeriodSeconds = 1
			p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, 1)
			p.FailureThreshold = cmp.Or(p.FailureThreshold, DefaultFailureThreshold)
		}
	}
	if p := c.StartupProbe; p != nil {
		setPort(p, port)
		setGrace(p)
		if p.PeriodSeconds == 0 {
			p.PeriodSeconds = 1
			p.FailureThreshold = cmp.Or(p.FailureThreshold, DefaultFailureThreshold) * DefaultProbePeriod
		}
	}
	if p := c.LivenessProbe; p != nil {
		setPort(p, port)
		setGrace(p)
	}
}

// setGrace bounds the preStop hook of a container that failed its probe.
func setGrace(p *corev1.Probe) {
	if p.TerminationGracePeriodSeconds == nil {
		p.TerminationGracePeriodSeconds = ptr.To[int64](unhealthyGrace)
	}
}

// setPort sets the container's port on a probe without one.
func setPort(p *corev1.Probe, port int32) {
	if p.HTTPGet == nil && p.TCPSocket == nil && p.Exec == nil && p.GRPC == nil {
		p.TCPSocket = &corev1.TCPSocketAction{}
	}
	if port == 0 {
		return
	}
	unset := func(p intstr.IntOrString) bool { return p.String() == "0" || p.String() == "" }
	switch {
	case p.HTTPGet != nil && unset(p.HTTPGet.Port):
		p.HTTPGet.Port = intstr.FromInt32(port)
	case p.TCPSocket != nil && unset(p.TCPSocket.Port):
		p.TCPSocket.Port = intstr.FromInt32(port)
	case p.GRPC != nil && p.GRPC.Port == 0:
		p.GRPC.Port = port
	}
}
