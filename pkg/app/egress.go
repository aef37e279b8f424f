package app

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"

	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
)

// kubernetesServiceHost is the environment variable of Pods with the address of the Service kubernetes.
const kubernetesServiceHost = "KUBERNETES_SERVICE_HOST"

// newGuard returns the Guard of a server that extends the host cluster: the addresses of the API server and, in a Pod, of the
// node are its own too, as are the addresses of all replicas.
func newGuard(registry metricsRegistry, o egress.Options, host *rest.Config, replica *replica) (*egress.Guard, error) {
	inPod := os.Getenv(kubernetesServiceHost)
	for _, text := range []string{inPod, hostName(host.Host)} {
		if addr, err := netip.ParseAddr(text); err == nil {
			o.Own = append(o.Own, addr.Unmap())
		}
	}
	if inPod != "" {
		gateways, err := egress.DefaultGateways()
		if err != nil {
			return nil, fmt.Errorf("find the addresses of the node: %w", err)
		}
		o.Own = append(o.Own, gateways...)
	}
	if replica != nil {
		o.Replicas = replica.addresses
	}
	o.Register = registry.MustRegister
	return egress.New(o), nil
}

// hostName returns the host of the address of an API server, which is a URL or a host with or without a port.
func hostName(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Hostname()
	}
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}
