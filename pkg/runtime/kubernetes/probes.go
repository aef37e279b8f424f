package kubernetes

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const (
	// usualPeriod is that of probes in core/v1 which name none, in seconds.
	usualPeriod = 10
	// usualThreshold is how many failures in a row count there.
	usualThreshold = 3
	// unhealthyGrace is how long a container that fails its probe is held before it is told to end, in seconds: it is
	// not drained, since it stays in its Pod.
	unhealthyGrace = 5
)

// SetProbes completes the probes of a container for the kubelet: the port is the container's where a probe names none, and
// no period asks for the shortest there is (serving 10.9). A startup probe without a period gives as much time as it would with the
// usual one.
func SetProbes(c *corev1.Container) {
	var port int32
	if len(c.Ports) > 0 {
		port = c.Ports[0].ContainerPort
	}
	if p := c.ReadinessProbe; p != nil {
		setPort(p, port)
		if p.PeriodSeconds == 0 {
			p.PeriodSeconds = 1
			p.TimeoutSeconds = cmp.Or(p.TimeoutSeconds, 1)
			p.FailureThreshold = cmp.Or(p.FailureThreshold, usualThreshold)
		}
	}
	if p := c.StartupProbe; p != nil {
		setPort(p, port)
		setGrace(p)
		if p.PeriodSeconds == 0 {
			p.PeriodSeconds = 1
			p.FailureThreshold = cmp.Or(p.FailureThreshold, usualThreshold) * usualPeriod
		}
	}
	if p := c.LivenessProbe; p != nil {
		setPort(p, port)
		setGrace(p)
	}
}

// setGrace bounds how long the hook of hold keeps a container that has failed its probe.
func setGrace(p *corev1.Probe) {
	if p.TerminationGracePeriodSeconds == nil {
		p.TerminationGracePeriodSeconds = ptr.To[int64](unhealthyGrace)
	}
}

// setPort fills in the container's port where the probe names none.
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
