//go:build linux

package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseCgroupMounts(t *testing.T) {
	for name, test := range map[string]struct {
		mounts string
		want   []string
	}{
		"v2": {
			mounts: "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n",
			want:   []string{"/sys/fs/cgroup/knative-cluster"},
		},
		"v1 first where both are": {
			mounts: "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\ntmpfs /sys/fs/cgroup tmpfs rw 0 0\n" +
				"cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n",
			want: []string{"/sys/fs/cgroup/memory/knative-cluster", "/sys/fs/cgroup/unified/knative-cluster"},
		},
		"none": {mounts: "proc /proc proc rw 0 0\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := parseCgroupMounts(test.mounts); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestInNodeCgroup(t *testing.T) {
	for membership, want := range map[string]bool{
		"0::/knative-cluster/daemons\n": true,
		"0::/knative-cluster\n":         true,
		"4:memory:/user.slice\n1:name=systemd:/knative-cluster/kubepods/pod1\n": true,
		"0::/knative-cluster-of-someone-else\n":                                 false,
		"0::/docker/knative-cluster\n":                                          false,
		"":                                                                      false,
	} {
		if got := inNodeCgroup(membership); got != want {
			t.Errorf("%q: got %t", membership, got)
		}
	}
}

func TestCgroupTree(t *testing.T) {
	v1, other := t.TempDir(), t.TempDir()
	for name, value := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
		if err := os.WriteFile(filepath.Join(v1, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree := cgroupTree{filepath.Join(v1, cgroupName), filepath.Join(other, cgroupName)}
	if err := tree.create(); err != nil {
		t.Fatal(err)
	}
	if cpus, err := os.ReadFile(filepath.Join(tree[0], "cpuset.cpus")); err != nil || string(cpus) != "0-1\n" {
		t.Errorf("the CPUs are %q, %v", cpus, err)
	}
	// Unlike these files, the files of a cgroup are deleted with it.
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := os.Remove(filepath.Join(tree[0], name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(tree[1], "kubepods", "burstable", "pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tree.remove(); err != nil {
		t.Fatal(err)
	}
	for _, path := range tree {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if pids, err := processesBelow(tree[0]); err != nil || len(pids) > 0 {
		t.Errorf("a deleted cgroup has processes %v, %v", pids, err)
	}
}

func TestRoutedPrefixes(t *testing.T) {
	const routes = `default via 192.0.2.1 dev eth0
10.8.0.0/16 via 192.0.2.9 dev eth0 proto static
blackhole 172.30.0.0/16 proto static
10.9.0.7 dev tun0 scope link

`
	want := prefixes("10.8.0.0/16", "172.30.0.0/16", "10.9.0.7/32")
	if got := routedPrefixes(routes); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRoutesAndFirewallKeepTrafficOnTheMachine(t *testing.T) {
	n := testNode(t)
	for _, want := range []string{
		"route add blackhole 10.244.0.0/20 proto 196", "route add blackhole 10.96.0.0/20 proto 196",
		"address add 10.244.0.1/32 dev knative0", "route add 10.96.0.0/20 dev knative0 src 10.244.0.1 proto 196",
	} {
		if !strings.Contains(n.routes(), want) {
			t.Errorf("the routes miss %q", want)
		}
	}
	if want := "ip saddr 10.244.0.0/20 ip daddr != 10.244.0.0/20 reject"; !strings.Contains(n.firewall(), want) {
		t.Errorf("the firewall misses %q", want)
	}
}

func TestMissingPackages(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	t.Setenv("PATH", dir)
	for _, path := range []string{filepath.Join(dir, "runc"), filepath.Join(other, "ptp")} {
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := missingPackages([]dependency{
		{pkg: "containerd", program: "containerd"},
		{pkg: "containerd", program: "ctr"},
		{pkg: "runc", program: "runc"},
		{pkg: "plugins", program: "ptp", dirs: []string{t.TempDir(), other}},
		{pkg: "nftables", program: "nft", dirs: []string{other}},
	})
	if want := []string{"containerd", "nftables"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// testNode returns the plan of a node.
func testNode(t *testing.T) *node {
	t.Helper()
	return &node{
		controlPlane: controlPlane{
			home: home(t.TempDir()), node: true,
			address: netip.MustParseAddr("192.0.2.7"), apiServerPort: 20001, services: netip.MustParsePrefix("10.96.0.0/20"),
		},
		bin: "/bin", cniBin: "/usr/lib/cni",
		pods: netip.MustParsePrefix("10.244.0.0/20"), gateway: netip.MustParseAddr("10.244.0.1"),
		dns:         netip.MustParseAddr("10.96.0.10"),
		kubeletPort: 20002, registryPort: 20003, privateRegistryPort: 20004,
		dnsPort: 20005, proxyHealthPort: 20006, proxyMetricsPort: 20007, dnsReadyPort: 20008,
	}
}
