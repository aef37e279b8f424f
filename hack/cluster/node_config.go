//go:build linux

package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// manifests is a template of the objects that the cluster has from its start.
//
//go:embed manifests.yaml
var manifests string

// pauseImage is imported into containerd and never pulled.
const pauseImage = "cluster.local/pause:1"

// kubeletConfig also works with cgroup v1, with swap and with little free disk space. kube-proxy configures the firewall.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {{.Address}}
port: {{.KubeletPort}}
readOnlyPort: 0
healthzPort: 0
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: {{.PKI}}/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: {{.PKI}}/kubelet.crt
tlsPrivateKeyFile: {{.PKI}}/kubelet.key
clusterDomain: cluster.local
clusterDNS: [{{.DNS}}]
resolvConf: {{.Dir}}/resolv.conf
containerRuntimeEndpoint: unix://{{.Containerd}}
volumePluginDir: {{.Dir}}/flexvolume
cgroupDriver: cgroupfs
cgroupRoot: /{{.Cgroup}}
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
maxPods: 250
serializeImagePulls: false
registryPullQPS: 0
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
`

// proxyConfig makes kube-proxy use nftables: its rules are in separate tables, and do not change the machine's.
const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: {{.Dir}}/kube-proxy.kubeconfig}
hostnameOverride: {{.Node}}
clusterCIDR: {{.Pods}}
detectLocalMode: ClusterCIDR
healthzBindAddress: {{.ProxyHealth}}
metricsBindAddress: {{.ProxyMetrics}}
nodePortAddresses: [{{.Address}}/32]
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// corefile serves the cluster's names only. Other names do not exist, because no query leaves the machine.
const corefile = `cluster.local:{{.DNSPort}} in-addr.arpa:{{.DNSPort}} ip6.arpa:{{.DNSPort}} {
	bind {{.Gateway}}
	errors
	ready {{.DNSReady}}
	kubernetes cluster.local in-addr.arpa ip6.arpa {
		kubeconfig {{.Dir}}/coredns.kubeconfig cluster
		pods insecure
		ttl 5
	}
}

.:{{.DNSPort}} {
	bind {{.Gateway}}
	errors
	template IN ANY . {
		rcode NXDOMAIN
	}
}
`

// containerdConfig disables features that would change the machine: AppArmor profiles are loaded into the kernel, and
// the plugin opt creates a directory in /opt. State is in the node's own /run.
const containerdConfig = `version = 2
root = "{{.Dir}}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
address = "{{.Containerd}}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{{.PauseImage}}"
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
enable_unprivileged_ports = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{{.CNIBin}}"
conf_dir = "{{.Dir}}/cni"

[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{{.Dir}}/registries"
`

// cniConfig routes to each Pod. With a bridge, two Pods would answer each other directly, bypassing the translation of
// Service addresses, unless the kernel's br_netfilter is loaded.
const cniConfig = `{
  "cniVersion": "0.4.0",
  "name": "cluster",
  "plugins": [{
    "type": "ptp",
    "ipMasq": false,
    "ipam": {
      "type": "host-local",
      "dataDir": "{{.Dir}}/ipam",
      "ranges": [[{"subnet": "{{.Pods}}", "gateway": "{{.Gateway}}"}]],
      "routes": [{"dst": "0.0.0.0/0"}]
    }
  }]
}
`

// files renders the files of the node's programs except certificates, by path below the node's directory.
func (n *node) files() (map[string][]byte, error) {
	values := map[string]any{
		"Address": n.address, "Gateway": n.gateway, "Pods": n.pods, "DNS": n.dns, "DNSPort": n.dnsPort,
		"KubeletPort": n.kubeletPort, "DNSReady": loopback(n.dnsReadyPort),
		"ProxyHealth": loopback(n.proxyHealthPort), "ProxyMetrics": loopback(n.proxyMetricsPort),
		"Dir": n.path(), "PKI": n.pki(""), "Containerd": n.containerdSocket(), "CNIBin": n.cniBin,
		"Cgroup": cgroupName, "Node": nodeName, "PauseImage": pauseImage, "Provisioner": provisionerName, "StorageClass": storageClass,
	}
	files := map[string][]byte{"resolv.conf": fmt.Appendf(nil, "nameserver %s\n", n.dns)}
	for name, text := range map[string]string{
		"kubelet.yaml": kubeletConfig, "kube-proxy.yaml": proxyConfig, "Corefile": corefile,
		"containerd.toml": containerdConfig, "cni/cluster.conflist": cniConfig, "manifests.yaml": manifests,
	} {
		parsed, err := template.New(name).Option("missingkey=error").Parse(text)
		if err != nil {
			return nil, err
		}
		var out strings.Builder
		if err := parsed.Execute(&out, values); err != nil {
			return nil, err
		}
		files[name] = []byte(out.String())
	}
	for _, registry := range []string{
		n.registry(), n.privateRegistry(), loopback(n.registryPort), loopback(n.privateRegistryPort),
	} {
		files["registries/"+registry+"/hosts.toml"] = fmt.Appendf(nil,
			"server = \"http://%[1]s\"\n\n[host.\"http://%[1]s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", registry)
	}
	return files, nil
}

// writeFiles writes the node's files and the key material that only it needs.
func (n *node) writeFiles(creds *credentials) error {
	files, err := n.files()
	if err != nil {
		return fmt.Errorf("render the node's configuration: %w", err)
	}
	for name, client := range map[string]pair{
		"scheduler": creds.scheduler, "kubelet": creds.kubelet, "kube-proxy": creds.proxy, "coredns": creds.coreDNS,
	} {
		files[name+".kubeconfig"] = kubeconfig(n.apiServerURL(), creds.ca, client)
	}
	files["keeper.json"], err = json.Marshal(n.keeperConfig(creds))
	if err != nil {
		return fmt.Errorf("encode the keeper's configuration: %w", err)
	}
	for name, content := range files {
		path := n.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("create a directory for the node's files: %w", err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("write the node's files: %w", err)
		}
	}
	return nil
}
