//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadVersion(t *testing.T) {
	for name, test := range map[string]struct{ goMod, want, wantErr string }{
		"block":       {goMod: "module m\nrequire (\n\tk8s.io/kubernetes v1.36.3 // indirect\n\tk8s.io/api v0.36.3\n)\n", want: "v1.36.3"},
		"single line": {goMod: "require k8s.io/kubernetes v1.36.3-rc.1\n", want: "v1.36.3-rc.1"},
		"tool directives and longer paths are not requirements": {
			goMod:   "tool k8s.io/kubernetes/cmd/kubectl\nrequire k8s.io/kubernetes/v2 v2.0.0\n",
			wantErr: "go.mod does not require k8s.io/kubernetes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readVersion([]byte(test.goMod), "k8s.io/kubernetes")
			if test.wantErr != "" {
				if err == nil || err.Error() != test.wantErr {
					t.Fatalf("error %v, want %q", err, test.wantErr)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %s, %v; want %s", got, err, test.want)
			}
		})
	}
}

func TestEmbeddedModulesHaveVersions(t *testing.T) {
	v, err := embeddedVersions()
	if err != nil {
		t.Fatal(err)
	}
	for version, sums := range map[string][]byte{v.kubernetes: goSum, v.etcd: goSum, v.coreDNS: coreDNSSum} {
		if !strings.Contains(string(sums), " "+version+" h1:") {
			t.Errorf("no checksum of version %s is embedded", version)
		}
	}
}

func TestCacheNameDependsOnAllParts(t *testing.T) {
	const want = "kubernetes-v1.36.3-etcd-v3.6.8-coredns-v1.15.0-linux-arm64"
	if got := (versions{kubernetes: "v1.36.3", etcd: "v3.6.8", coreDNS: "v1.15.0"}).cacheName("linux", "arm64"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSelectPrograms(t *testing.T) {
	for name, test := range map[string]struct {
		node  bool
		names []string
		want  string
	}{
		"of a control plane": {false, nil, "etcd kubectl kube-apiserver kube-controller-manager"},
		"of a node too": {true, nil,
			"etcd kubectl kube-apiserver kube-controller-manager pause kube-scheduler kube-proxy kubelet coredns"},
		"named": {false, []string{"coredns", "etcd"}, "coredns etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			selected, err := selectPrograms(test.node, test.names)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range selected {
				got = append(got, p.name)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
	if _, err := selectPrograms(true, []string{"kubeadm"}); err == nil || err.Error() != `there is no program "kubeadm" to build` {
		t.Errorf("an unknown program: %v", err)
	}
}

func TestBuildUsesTheCache(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", "") // without the go command, any attempt to build fails
	want, _, err := binDir()
	if err != nil {
		t.Fatal(err)
	}
	controlPlane := programs(false)
	if _, err := build(t.Context(), io.Discard, controlPlane); err == nil {
		t.Fatal("an empty cache counts as complete")
	}
	for _, p := range controlPlane {
		if err := os.WriteFile(filepath.Join(want, p.name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := build(t.Context(), io.Discard, controlPlane); err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	if _, err := build(t.Context(), io.Discard, programs(true)); err == nil {
		t.Error("the programs of a control plane count as the programs of a node")
	}
}

func TestModuleWriteReplacesAnother(t *testing.T) {
	dir := t.TempDir()
	for _, m := range []module{clusterModule(), coreDNSModule()} {
		if err := m.write(dir); err != nil {
			t.Fatal(err)
		}
		for name, want := range m {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s differs, %v", name, err)
			}
		}
	}
}
