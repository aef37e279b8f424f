//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

func TestNodeFiles(t *testing.T) {
	n := testNode(t)
	files, err := n.files()
	if err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"kubelet.yaml": {"address: 192.0.2.7", "port: 20002", "clusterDNS: [10.96.0.10]", "cgroupRoot: /knative-cluster",
			"containerRuntimeEndpoint: unix://" + n.path("containerd.sock")},
		"kube-proxy.yaml":                        {"clusterCIDR: 10.244.0.0/20", "healthzBindAddress: 127.0.0.1:20006", "nodePortAddresses: [192.0.2.7/32]"},
		"Corefile":                               {"cluster.local:20005", "bind 10.244.0.1", "ready 127.0.0.1:20008"},
		"containerd.toml":                        {`bin_dir = "/usr/lib/cni"`, `sandbox_image = "` + pauseImage + `"`},
		"manifests.yaml":                         {"clusterIP: 10.96.0.10", "targetPort: 20005", "provisioner: " + provisionerName},
		"resolv.conf":                            {"nameserver 10.96.0.10"},
		"registries/10.244.0.1:20003/hosts.toml": {`[host."http://10.244.0.1:20003"]`},
		"registries/127.0.0.1:20004/hosts.toml":  {`[host."http://127.0.0.1:20004"]`},
	} {
		for _, want := range wants {
			if !strings.Contains(string(files[name]), want) {
				t.Errorf("%s misses %q", name, want)
			}
		}
	}
	var cni struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct{ Subnet, Gateway string }
			}
		}
	}
	if err := json.Unmarshal(files["cni/cluster.conflist"], &cni); err != nil {
		t.Fatal(err)
	}
	if r := cni.Plugins[0].IPAM.Ranges[0][0]; r.Subnet != "10.244.0.0/20" || r.Gateway != "10.244.0.1" {
		t.Errorf("pods get addresses from %+v", r)
	}
}

func TestNodeWriteFilesKeepsSecretsPrivate(t *testing.T) {
	n := testNode(t)
	creds, err := newCredentials(n.address, n.services.Addr().Next(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := n.writeFiles(creds); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet.kubeconfig", "kube-proxy.kubeconfig", "coredns.kubeconfig", "scheduler.kubeconfig", "keeper.json"} {
		stat, err := os.Stat(n.path(name))
		if err != nil {
			t.Error(err)
		} else if stat.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, stat.Mode())
		}
	}
}

func TestAPIServerCallsKubeletOfANode(t *testing.T) {
	n := testNode(t)
	const flag = "--kubelet-preferred-address-types=InternalIP"
	if !slices.Contains(n.apiServerArgs(), flag) {
		t.Errorf("kube-apiserver misses %s", flag)
	}
	n.node = false
	if slices.Contains(n.apiServerArgs(), flag) {
		t.Error("kube-apiserver of a control plane alone has a flag for kubelets")
	}
}

func TestCheckMachineRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		if err := checkMachine("/home/cluster"); err == nil || !strings.HasPrefix(err.Error(), "a node needs root") {
			t.Errorf("without root: %v", err)
		}
		return
	}
	t.Setenv("XDG_CACHE_HOME", "/root/.cache")
	for home, want := range map[home]string{
		"/srv/cluster":     "",
		"/runs/cluster":    "",
		"/var/lib/cluster": "it has a /var/lib of its own",
		"/run":             "it has a /run of its own",
		home("/srv/" + strings.Repeat("x", maxHome)): "is too long",
	} {
		err := checkMachine(home)
		if got := err != nil; got != (want != "") || got && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", home, err, want)
		}
	}
}

func TestClusterJSONOfANode(t *testing.T) {
	h := home(t.TempDir())
	want := testNode(t).addTo(info{Kubeconfig: "kubeconfig"})
	if err := writeJSON(h.path("cluster.json"), want); err != nil {
		t.Fatal(err)
	}
	got, err := h.readInfo()
	if err != nil {
		t.Fatal(err)
	}
	if got.Registry != "10.244.0.1:20003" || got.PrivateRegistry == nil || got.PrivateRegistry.Address != "10.244.0.1:20004" {
		t.Errorf("got %+v", got)
	}
	content, err := json.Marshal(info{Kubeconfig: "kubeconfig"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(content), "egistry") {
		t.Errorf("a cluster without a node has registries: %s", content)
	}
}

func TestDaemonsStopBeforeWhatTheyNeed(t *testing.T) {
	all := daemons(true)
	for _, name := range daemons(false) {
		if !slices.Contains(all, name) {
			t.Errorf("%s is no daemon of a cluster with a node", name)
		}
	}
	for _, order := range [][2]string{{"kubelet", "containerd"}, {"keeper", "kube-apiserver"}, {"kube-apiserver", "etcd"}} {
		if slices.Index(all, order[0]) > slices.Index(all, order[1]) {
			t.Errorf("%s stops after %s", order[0], order[1])
		}
	}
}

func TestProgramImage(t *testing.T) {
	image, err := programImage("pause", []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture == "" || !slices.Equal(config.Config.Entrypoint, []string{"/pause"}) {
		t.Errorf("the image is of %s/%s and runs %v", config.OS, config.Architecture, config.Config.Entrypoint)
	}
	if size := extractedSize(t, image); size == 0 {
		t.Error("the image is empty")
	}
}

// extractedSize returns how many bytes the image's file system has as an archive.
func extractedSize(t *testing.T, image v1.Image) int64 {
	t.Helper()
	archive := mutate.Extract(image)
	defer archive.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size, err := file.ReadFrom(archive)
	if err != nil {
		t.Fatal(err)
	}
	return size
}
