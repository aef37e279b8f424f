//go:build linux

package main

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestReadVersions(t *testing.T) {
	for name, test := range map[string]struct {
		goMod, wantErr string
		want           versions
	}{
		"block": {
			goMod: "module m\nrequire (\n\tk8s.io/kubernetes v1.36.3 // indirect\n\tgo.etcd.io/etcd/server/v3 v3.6.8\n)\n",
			want:  versions{kubernetes: "v1.36.3", etcd: "v3.6.8"},
		},
		"single lines": {
			goMod: "require k8s.io/kubernetes v1.36.3\nrequire go.etcd.io/etcd/server/v3 v3.6.8-rc.1\n",
			want:  versions{kubernetes: "v1.36.3", etcd: "v3.6.8-rc.1"},
		},
		"tool directives and longer paths are no requirement": {
			goMod:   "tool k8s.io/kubernetes/cmd/kubectl\nrequire go.etcd.io/etcd/server/v3 v3.6.8\n",
			wantErr: "go.mod does not require k8s.io/kubernetes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readVersions([]byte(test.goMod))
			if test.wantErr != "" {
				if err == nil || err.Error() != test.wantErr {
					t.Fatalf("error %v, want %q", err, test.wantErr)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %+v, %v; want %+v", got, err, test.want)
			}
		})
	}
}

func TestEmbeddedModuleHasVersions(t *testing.T) {
	v, err := readVersions(goMod)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{v.kubernetes, v.etcd} {
		if !strings.Contains(string(goSum), " "+version+" h1:") {
			t.Errorf("go.sum has no checksum of version %s", version)
		}
	}
}

func TestCacheNameDependsOnAllParts(t *testing.T) {
	const want = "kubernetes-v1.36.3-etcd-v3.6.8-linux-arm64"
	if got := (versions{kubernetes: "v1.36.3", etcd: "v3.6.8"}).cacheName("linux", "arm64"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBuildTakesWhatIsInTheCache(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("PATH", "") // without the go command, any attempt to build fails
	v, err := readVersions(goMod)
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(cache, "knative-apiserver", v.cacheName(runtime.GOOS, runtime.GOARCH))
	if _, err := build(t.Context(), io.Discard); err == nil {
		t.Fatal("an empty cache was taken for a complete one")
	}
	for _, p := range programs() {
		if err := os.WriteFile(filepath.Join(want, p.name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := build(t.Context(), io.Discard); err != nil || got != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}
