//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	// nodeName is the name of the only node.
	nodeName = "node"
	// maxHome is the maximum length of the path, in bytes, so that the paths of the node's sockets fit into a socket address.
	maxHome = 80
	// registryUser and registryPassword are the credentials of the private registry, which only this machine reaches.
	registryUser     = "puller"
	registryPassword = "pull-secret"
)

// node holds the inputs of the node's programs: the control plane's plan and more.
type node struct {
	controlPlane
	bin     string // directory of the programs that were built
	cniBin  string // directory of Debian's CNI plugins
	pods    netip.Prefix
	gateway netip.Addr // of Pods: this machine's address, at which they reach registries and DNS
	dns     netip.Addr // of the Service kube-dns
	cgroups cgroupTree

	kubeletPort         int // on the machine's own address
	registryPort        int // on loopback and gateway, as the others below
	privateRegistryPort int
	dnsPort             int
	proxyHealthPort     int // on loopback, as the others below
	proxyMetricsPort    int
	dnsReadyPort        int
}

// checkMachine returns an error with the reason if the machine cannot run a node.
func checkMachine(h home) error {
	if os.Geteuid() != 0 {
		return errors.New("a node needs root: it makes network interfaces, mounts and cgroups; without root, 'cluster up' starts a control plane only")
	}
	if len(h) > maxHome {
		return fmt.Errorf("the path %s is too long for the node's sockets: at most %d bytes", h, maxHome)
	}
	bin, _, err := binDir()
	if err != nil {
		return err
	}
	for _, path := range []string{string(h), bin} {
		for _, hidden := range hiddenDirs() {
			if rest, err := filepath.Rel(hidden, path); err == nil && filepath.IsLocal(rest) {
				return fmt.Errorf("the node cannot use %s: it has a %s of its own", path, hidden)
			}
		}
	}
	return nil
}

// planNode chooses the node's addresses and ports.
func planNode(ctx context.Context, c controlPlane, bin string) (*node, error) {
	n := &node{controlPlane: c, bin: bin, dns: c.services.Addr()}
	for range 10 {
		n.dns = n.dns.Next()
	}
	plugin, err := dependency{program: "ptp", dirs: cniDirs()}.find()
	if err != nil {
		return nil, fmt.Errorf("find the CNI plugins: %w", err)
	}
	n.cniBin = filepath.Dir(plugin)
	if n.cgroups, err = machineCgroups(); err != nil {
		return nil, err
	}
	used, err := machinePrefixes()
	if err != nil {
		return nil, err
	}
	routes, err := exec.CommandContext(ctx, "ip", "-4", "route", "show").Output()
	if err != nil {
		return nil, fmt.Errorf("list the machine's routes: %w", err)
	}
	used = append(used, routedPrefixes(string(routes))...)
	if n.pods, err = podRange(append(used, c.services)); err != nil {
		return nil, err
	}
	n.gateway = n.pods.Addr().Next()
	own, err := freePorts(c.address.String(), 1)
	if err != nil {
		return nil, err
	}
	n.kubeletPort = own[0]
	// On all addresses, because the gateway's does not exist yet.
	ports, err := freePorts("", 6)
	if err != nil {
		return nil, err
	}
	n.registryPort, n.privateRegistryPort, n.dnsPort = ports[0], ports[1], ports[2]
	n.proxyHealthPort, n.proxyMetricsPort, n.dnsReadyPort = ports[3], ports[4], ports[5]
	return n, nil
}

// path joins the elements to the directory that holds all of the node's data.
func (n *node) path(elem ...string) string {
	return n.home.path(append([]string{"node"}, elem...)...)
}

// registry is the address of the registry that needs no password, for pods, containerd and this machine alike. It is
// always a private address, with which clients speak plain HTTP.
func (n *node) registry() string {
	return netip.AddrPortFrom(n.gateway, uint16(n.registryPort)).String()
}

// privateRegistry returns the address of the registry with authentication.
func (n *node) privateRegistry() string {
	return netip.AddrPortFrom(n.gateway, uint16(n.privateRegistryPort)).String()
}

// loopback is the address of one of these ports for this machine only.
func loopback(port int) string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)).String()
}

func (n *node) containerdSocket() string { return n.path("containerd.sock") }

func (n *node) schedulerArgs() []string {
	return []string{
		"--kubeconfig=" + n.path("scheduler.kubeconfig"),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=200",
		"--kube-api-burst=400",
	}
}

func (n *node) kubeletArgs() []string {
	return []string{
		"--config=" + n.path("kubelet.yaml"),
		"--kubeconfig=" + n.path("kubelet.kubeconfig"),
		"--hostname-override=" + nodeName,
		"--node-ip=" + n.address.String(),
	}
}

func (n *node) proxyArgs() []string {
	return []string{"--config=" + n.path("kube-proxy.yaml")}
}

// addTo adds the description of the node.
func (n *node) addTo(i info) info {
	i.Node = nodeName
	i.Registry = n.registry()
	i.PrivateRegistry = &registryInfo{Address: n.privateRegistry(), User: registryUser, Password: registryPassword}
	i.PodRange, i.ServiceRange = n.pods.String(), n.services.String()
	i.Containerd = n.containerdSocket()
	return i
}
