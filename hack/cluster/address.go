//go:build linux

package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
)

// machinePrefixes returns the addresses of the machine's interfaces that are up, with their networks.
func machinePrefixes() ([]netip.Prefix, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces: %w", err)
	}
	var out []netip.Prefix
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", i.Name, err)
		}
		for _, address := range addresses {
			if prefix, err := netip.ParsePrefix(address.String()); err == nil {
				out = append(out, prefix)
			}
		}
	}
	return out, nil
}

// apiServerAddress returns the address for kube-apiserver: the wanted one, or else the first of the
// machine's that pods and the cluster's endpoints can use.
func apiServerAddress(wanted string, machine []netip.Prefix) (netip.Addr, error) {
	if wanted == "" {
		for _, prefix := range machine {
			if usable(prefix.Addr()) == nil {
				return prefix.Addr(), nil
			}
		}
		return netip.Addr{}, errors.New("this machine has no IPv4 address besides loopback: kube-apiserver needs one, " +
			"because Kubernetes refuses loopback addresses in endpoints; add one, for example " +
			"with 'ip link add cluster0 type dummy', 'ip addr add 10.98.0.1/32 dev cluster0', 'ip link set cluster0 up'")
	}
	address, err := netip.ParseAddr(wanted)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--bind-address: %w", err)
	}
	if err := usable(address); err != nil {
		return netip.Addr{}, fmt.Errorf("--bind-address %s: %w", wanted, err)
	}
	return address, nil
}

func usable(address netip.Addr) error {
	switch {
	case !address.Is4():
		return errors.New("must be an IPv4 address: the service range is one")
	case !address.IsGlobalUnicast():
		return errors.New("must be an address that is not loopback, link-local or unspecified: " +
			"Kubernetes refuses those in endpoints")
	}
	return nil
}

// serviceRange selects a private range for Service addresses that does not overlap with networks of the machine, so
// that the addresses are not in use.
func serviceRange(machine []netip.Prefix) (netip.Prefix, error) {
	return freeRange("Service", machine, "10.96.0.0/20", "172.28.240.0/20", "192.168.224.0/20")
}

// podRange selects a private range for Pod addresses likewise. It has several addresses for each Pod that a node can have, so that an
// address is not reused immediately.
func podRange(used []netip.Prefix) (netip.Prefix, error) {
	return freeRange("pod", used, "10.244.0.0/20", "172.29.240.0/20", "192.168.208.0/20")
}

// freeRange returns the first candidate that does not overlap with a range in use.
func freeRange(what string, used []netip.Prefix, candidates ...string) (netip.Prefix, error) {
	for _, candidate := range candidates {
		prefix, free := netip.MustParsePrefix(candidate), true
		for _, other := range used {
			free = free && !other.Overlaps(prefix)
		}
		if free {
			return prefix, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no range for %s addresses is free: the machine's networks overlap all candidates", what)
}

// reservations are the locks of the ports that freePorts returned. The kernel releases them when the process exits. The servers listen
// on the ports by then.
var reservations []*fileLock

// freePorts returns n different TCP ports that are free on the address, or on all addresses if it is empty. It avoids the ranges of
// ephemeral ports and of NodePorts, so that no outgoing connection uses a port before its server does, and reserves each port against
// clusters and tests of other processes.
func freePorts(address string, n int) ([]int, error) {
	const first, count = 20000, 10000
	var ports []int
	var lastErr error
	for try := 0; len(ports) < n; try++ {
		if try == 100*n {
			return nil, fmt.Errorf("find a free port on %s, which must be an address of this machine: %w", address, lastErr)
		}
		port := first + rand.IntN(count)
		lock, err := tryLock(portFile(port))
		if err != nil {
			return nil, err
		}
		if lock == nil {
			lastErr = fmt.Errorf("port %d is reserved", port)
			continue
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err == nil {
			err = listener.Close()
		}
		if err != nil {
			lock.release()
			lastErr = err
			continue
		}
		reservations = append(reservations, lock)
		ports = append(ports, port)
	}
	return ports, nil
}

// portFile returns the lock file of a port. The package test/port of the product uses the same.
func portFile(port int) string {
	return filepath.Join(os.TempDir(), "knative-apiserver-ports-"+strconv.Itoa(os.Getuid()), strconv.Itoa(port))
}
