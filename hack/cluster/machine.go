//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// nodeInterface is a bridge without ports. It has the address at which Pods reach this machine, and its existence marks a
	// machine with a node; its alias is the directory of that node's cluster.
	nodeInterface = "knative0"
	// routeProtocol marks the routes of the cluster, among the numbers that are free for local use.
	routeProtocol = "196"
	// nftTable contains the rules of the cluster in addition to kube-proxy's.
	nftTable = "knative-cluster"
)

// sysctls are the kernel's settings that the node changes. The kubelet requires all but the last, which enables routing.
func sysctls() []string {
	return []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
		"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward",
	}
}

// machineState is the content of node/machine.json: the previous state of the machine.
type machineState struct {
	Sysctls map[string]string `json:"sysctls"`
}

// prepareMachine sets up the machine for a node: routes, its interface, the firewall, cgroups. The previous state
// is recorded first, so that restoreMachine can also undo a partial setup.
func (n *node) prepareMachine(ctx context.Context) error {
	state := machineState{Sysctls: map[string]string{}}
	for _, name := range sysctls() {
		value, err := os.ReadFile(filepath.Join("/proc/sys", name))
		if err != nil {
			return fmt.Errorf("read a kernel setting: %w", err)
		}
		state.Sysctls[name] = strings.TrimSpace(string(value))
	}
	if err := os.MkdirAll(n.home.path("node"), 0o755); err != nil {
		return fmt.Errorf("create the node's directory: %w", err)
	}
	if err := writeJSON(n.home.machineFile(), state); err != nil {
		return err
	}
	if err := runCommand(ctx, "ip", "", "link", "add", nodeInterface, "type", "bridge"); err != nil {
		return err
	}
	if err := runCommand(ctx, "ip", "", "link", "set", "dev", nodeInterface, "alias", string(n.home)); err != nil {
		return err
	}
	if err := runCommand(ctx, "ip", n.routes(), "-batch", "-"); err != nil {
		return err
	}
	if err := runCommand(ctx, "nft", n.firewall(), "-f", "-"); err != nil {
		return err
	}
	if err := n.admitForwarding(ctx); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("enable routing between Pods: %w", err)
	}
	return n.cgroups.create()
}

// routes returns the input of ip: no packet for a Pod or Service leaves the machine by its default route. A Pod's own route
// is more specific. Service addresses also have a device, because the machine itself cannot open connections to a blackhole;
// kube-proxy redirects them earlier.
func (n *node) routes() string {
	return fmt.Sprintf(`route add blackhole %[1]s proto %[5]s metric 4096
route add blackhole %[2]s proto %[5]s metric 4096
address add %[3]s/32 dev %[4]s
link set dev %[4]s up
route add %[2]s dev %[4]s src %[3]s proto %[5]s
`, n.pods, n.services, n.gateway, nodeInterface, routeProtocol)
}

// firewall returns the input of nft: Pods can only connect to each other and to this machine. Packets to a Service have
// their final address at this point.
func (n *node) firewall() string {
	return fmt.Sprintf(`table ip %[1]s {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr %[2]s ip daddr != %[2]s reject
		ip daddr %[2]s ip saddr != %[2]s drop
	}
}
`, nftTable, n.pods)
}

// admitForwarding lets Pods reach each other if the machine's firewall rejects forwarding, as with Docker. No rule of another
// table could override that.
func (n *node) admitForwarding(ctx context.Context) error {
	rules, err := forwardRules(ctx)
	if err != nil || !strings.HasPrefix(rules, "-P FORWARD DROP") {
		return err
	}
	return runCommand(ctx, "iptables", "", "--wait", "-I", "FORWARD", "-s", n.pods.String(), "-d", n.pods.String(),
		"-m", "comment", "--comment", nftTable, "-j", "ACCEPT")
}

// removeForwarding deletes what admitForwarding added.
func removeForwarding(ctx context.Context) error {
	rules, err := forwardRules(ctx)
	if err != nil {
		return err
	}
	for line := range strings.Lines(rules) {
		rule, ours := strings.CutPrefix(strings.TrimSpace(line), "-A ")
		if !ours || !strings.Contains(rule, "--comment "+nftTable+" ") {
			continue
		}
		if err := runCommand(ctx, "iptables", "", append([]string{"--wait", "-D"}, strings.Fields(rule)...)...); err != nil {
			return err
		}
	}
	return nil
}

// forwardRules returns the rules for forwarded packets, none without iptables.
func forwardRules(ctx context.Context) (string, error) {
	if _, err := exec.LookPath("iptables"); err != nil {
		return "", nil //nolint:nilerr // without the program, it has created no rules
	}
	out, err := exec.CommandContext(ctx, "iptables", "--wait", "-S", "FORWARD").Output()
	if err != nil {
		return "", fmt.Errorf("list the machine's rules for forwarding: %w", err)
	}
	return string(out), nil
}

// nodeOwner returns the directory of the cluster whose node runs on this machine. It is empty if the node has no
// owner yet, and found is false without a node.
func nodeOwner() (owner home, found bool, err error) {
	alias, err := os.ReadFile(filepath.Join("/sys/class/net", nodeInterface, "ifalias"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("find owner of interface %s: %w", nodeInterface, err)
	}
	return home(strings.TrimSpace(string(alias))), true, nil
}

// claimMachine returns an error if this machine cannot run a node. It cleans up after a node whose cluster directory was
// deleted manually, or whose cluster was killed.
func claimMachine(ctx context.Context, progress io.Writer) error {
	owner, found, err := nodeOwner()
	if err != nil {
		return err
	}
	if found {
		if _, err := os.Stat(owner.machineFile()); owner == "" || err != nil {
			return restoreMachine(ctx, owner)
		}
		lock, err := owner.lockKilled()
		if err != nil {
			return err
		}
		if lock == nil {
			return fmt.Errorf("the cluster in %s has its node on this machine, which carries one at a time: "+
				"stop it with 'cluster down --dir %[1]s'", owner)
		}
		defer lock.release()
		fmt.Fprintf(progress, "the cluster in %s was killed: removing its node from this machine\n", owner)
		return owner.stopAll(ctx, progress)
	}
	for _, family := range []string{"ip", "ip6"} {
		if hasTable(ctx, family, "kube-proxy") {
			return fmt.Errorf("this machine is a node of another cluster already: "+
				"it has rules of kube-proxy, see 'nft list table %s kube-proxy'", family)
		}
	}
	return nil
}

// restoreMachine stops the remaining programs of the node of h and reverts its changes to the machine. It does nothing on a
// machine that does not run this node.
func restoreMachine(ctx context.Context, h home) error {
	owner, found, err := nodeOwner()
	if err != nil {
		return err
	}
	_, err = os.Stat(h.machineFile())
	interrupted := err == nil && owner == "" // before the interface had its owner, or after it was deleted
	if !interrupted && (!found || owner != h) {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("the cluster has a node, which only root can stop")
	}
	cgroups, err := machineCgroups()
	if err != nil {
		return err
	}
	// The mounts of the node are in a mount namespace of its own, which ends with the last process in it.
	if err := cgroups.kill(); err != nil {
		return err
	}
	if err := errors.Join(cgroups.remove(), removeRoutes(ctx), removeTables(ctx), removeForwarding(ctx)); err != nil {
		return err
	}
	if found {
		if err := removeInterfaces(ctx); err != nil {
			return err
		}
	}
	return restoreSysctls(h)
}

// removeInterfaces deletes the interfaces of the node and of Pods. Interfaces of Pods are removed with their network
// namespaces, but another process may keep one open; they have the same address.
func removeInterfaces(ctx context.Context) error {
	own, err := net.InterfaceByName(nodeInterface)
	if err != nil {
		return fmt.Errorf("find the interface %s: %w", nodeInterface, err)
	}
	addresses, err := own.Addrs()
	if err != nil {
		return fmt.Errorf("read the address of %s: %w", nodeInterface, err)
	}
	if len(addresses) > 0 {
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			names, err := interfacesWith(addresses[0].String())
			if err != nil {
				return err
			}
			if len(names) == 0 {
				break
			}
			if time.Now().Before(deadline) {
				continue
			}
			for _, name := range names {
				if err := runCommand(ctx, "ip", "", "link", "delete", "dev", name); err != nil {
					return err
				}
			}
			break
		}
	}
	return runCommand(ctx, "ip", "", "link", "delete", "dev", nodeInterface)
}

// interfacesWith returns the interfaces that have an address, such as "10.244.0.1/32", besides the node's.
func interfacesWith(address string) ([]string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces: %w", err)
	}
	var names []string
	for _, i := range interfaces {
		if i.Name == nodeInterface {
			continue
		}
		// An interface that was deleted meanwhile has none.
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if a.String() == address {
				names = append(names, i.Name)
			}
		}
	}
	return names, nil
}

func removeRoutes(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "ip", "-4", "route", "show", "proto", routeProtocol).Output()
	if err != nil {
		return fmt.Errorf("list the cluster's routes: %w", err)
	}
	var batch strings.Builder
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "blackhole" {
			fmt.Fprintf(&batch, "route delete blackhole %s proto %s\n", fields[1], routeProtocol)
		}
	}
	return runCommand(ctx, "ip", batch.String(), "-batch", "-")
}

// removeTables deletes the cluster's rules and the rules that kube-proxy leaves behind.
func removeTables(ctx context.Context) error {
	for _, table := range []struct{ family, name string }{{"ip", nftTable}, {"ip", "kube-proxy"}, {"ip6", "kube-proxy"}} {
		if !hasTable(ctx, table.family, table.name) {
			continue
		}
		if err := runCommand(ctx, "nft", "", "delete", "table", table.family, table.name); err != nil {
			return err
		}
	}
	return nil
}

func hasTable(ctx context.Context, family, name string) bool {
	return exec.CommandContext(ctx, "nft", "list", "table", family, name).Run() == nil
}

// restoreSysctls restores the recorded settings, and deletes the file.
func restoreSysctls(h home) error {
	content, err := os.ReadFile(h.machineFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read previous state of the machine: %w", err)
	}
	var state machineState
	if err := json.Unmarshal(content, &state); err != nil {
		return fmt.Errorf("read %s: %w", h.machineFile(), err)
	}
	for name, value := range state.Sysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("restore the kernel setting %s: %w", name, err)
		}
	}
	return os.Remove(h.machineFile())
}

func (h home) machineFile() string { return h.path("node", "machine.json") }

// runCommand runs a program of the machine with the input. Its error includes the output.
func runCommand(ctx context.Context, name, input string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// routedPrefixes returns the networks in the output of "ip route show", without the default route.
func routedPrefixes(routes string) []netip.Prefix {
	var out []netip.Prefix
	for line := range strings.Lines(routes) {
		fields := strings.Fields(line)
		// "192.0.2.0/24 dev eth0", "192.0.2.9 dev tun0", or with a type before: "blackhole 10.0.0.0/8".
		for _, field := range fields[:min(2, len(fields))] {
			if prefix, err := netip.ParsePrefix(field); err == nil {
				out = append(out, prefix)
				break
			}
			if address, err := netip.ParseAddr(field); err == nil {
				out = append(out, netip.PrefixFrom(address, address.BitLen()))
				break
			}
		}
	}
	return out
}
