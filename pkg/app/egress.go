package app

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// kubernetesServiceHost is the environment variable with the address of the Service kubernetes, which Pods have.
const kubernetesServiceHost = "KUBERNETES_SERVICE_HOST"

// newGuard returns the Guard of a server that extends the host cluster: the addresses of the API server and, in a Pod, of the
// node are its own too, as are the addresses of all replicas.
func newGuard(o egress.Options, host *rest.Config, replica *Replica) (*egress.Guard, error) {
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
	o.Register = legacyregistry.MustRegister
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

// addresses returns the addresses of the replicas.
func (r *Replica) addresses() []netip.Addr {
	var addresses []netip.Addr
	for _, view := range []*membership.View{r.Members(), r.Gateways()} {
		for _, member := range view.Current().Members() {
			if at, err := netip.ParseAddrPort(member.Address); err == nil {
				addresses = append(addresses, at.Addr().Unmap())
			}
		}
	}
	return addresses
}
