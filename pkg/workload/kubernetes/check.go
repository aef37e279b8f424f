package kubernetes

import (
	"cmp"
	"context"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/probing"
)

// newCheck returns the check for a probe, with the probe's timeout, as the kubelet would make it.
func newCheck(spec *corev1.Probe, c *corev1.Container, ip string) probing.Check {
	timeout := time.Duration(cmp.Or(spec.TimeoutSeconds, 1)) * time.Second
	var check probing.Check
	switch {
	case spec.HTTPGet != nil:
		check = probing.HTTP(spec.HTTPGet, net.JoinHostPort(cmp.Or(spec.HTTPGet.Host, ip), probedPort(spec, c)), nil)
	case spec.GRPC != nil:
		check = probing.GRPC(net.JoinHostPort(ip, probedPort(spec, c)), ptr.Deref(spec.GRPC.Service, ""))
	default:
		tcp := ptr.Deref(spec.TCPSocket, corev1.TCPSocketAction{})
		check = probing.TCP(net.JoinHostPort(cmp.Or(tcp.Host, ip), number(tcp.Port, c)))
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return check(ctx)
	}
}

// probedPort returns the port that a probe connects to, or "".
func probedPort(spec *corev1.Probe, c *corev1.Container) string {
	switch {
	case spec.HTTPGet != nil:
		return number(spec.HTTPGet.Port, c)
	case spec.GRPC != nil:
		return strconv.Itoa(int(spec.GRPC.Port))
	case spec.TCPSocket != nil:
		return number(spec.TCPSocket.Port, c)
	default:
		return ""
	}
}

// number resolves a port of a container that may be given by name.
func number(port intstr.IntOrString, c *corev1.Container) string {
	for i := range c.Ports {
		if port.Type == intstr.String && c.Ports[i].Name == port.StrVal {
			return strconv.Itoa(int(c.Ports[i].ContainerPort))
		}
	}
	return port.String()
}
