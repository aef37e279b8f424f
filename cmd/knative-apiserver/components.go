package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The components of the server, as --components names them.
const (
	componentAPIServer   = "apiserver"
	componentControllers = "controllers"
	componentGateway     = "gateway"
	componentBroker      = "broker"
)

var allComponents = componentList{componentAPIServer, componentControllers, componentGateway, componentBroker}

// componentList is the value of --components.
type componentList []string

// has reports whether a component is in the list.
func (l componentList) has(component string) bool { return slices.Contains(l, component) }

// group returns the name of the group of replicas that run these components.
func (l componentList) group() string { return strings.Join(slices.Sorted(slices.Values(l)), ".") }

func (l componentList) validate() error {
	var errs []error
	for _, component := range l {
		if !allComponents.has(component) {
			errs = append(errs, fmt.Errorf("--components %q must be among %s", component, strings.Join(allComponents, ", ")))
		}
	}
	if len(l) == 0 {
		errs = append(errs, fmt.Errorf("--components must name some of %s", strings.Join(allComponents, ", ")))
	}
	return errors.Join(errs...)
}

// defaultClusterDomain is the default of --cluster-domain.
const defaultClusterDomain = "cluster.local"

// addClusterDomainFlag registers the flag of the domain that all cluster-internal host names end in.
func addClusterDomainFlag(flags *pflag.FlagSet, domain *string) {
	flags.StringVar(domain, "cluster-domain", *domain,
		"DNS domain of the cluster, as in kubelet's clusterDomain: the suffix of the host names of Services, cluster-local Routes, Brokers, Channels and replicas.")
}

// validatePort returns an error for a port of a flag that is not from minimum to 65535.
func validatePort(flag string, port, minimum int) error {
	if port < minimum || port > 65535 {
		return fmt.Errorf("--%s %d must be from %d to 65535", flag, port, minimum)
	}
	return nil
}

func validateClusterDomain(domain string) error {
	if faults := validation.IsDNS1123Subdomain(domain); len(faults) > 0 {
		return fmt.Errorf("--cluster-domain %q: %s", domain, strings.Join(faults, "; "))
	}
	return nil
}

// listenHTTP3 opens the UDP port with the number of --gateway-tls-port.
func listenHTTP3(ctx context.Context, tls net.Listener) (net.PacketConn, error) {
	var config net.ListenConfig
	socket, err := config.ListenPacket(ctx, "udp", tls.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("listen on the UDP port of --gateway-tls-port for --gateway-http3: %w", err)
	}
	return socket, nil
}

// listen opens the port of a flag.
func listen(ctx context.Context, host net.IP, flag string, port int) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(host.String(), strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen on --%s %d: %w", flag, port, err)
	}
	return listener, nil
}
