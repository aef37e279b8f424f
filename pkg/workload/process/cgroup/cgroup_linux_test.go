package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
)

// TestSettingsOf checks the files of a group with limits (serving 10.4-11).
func TestSettingsOf(t *testing.T) {
	for name, test := range map[string]struct {
		limits corev1.ResourceList
		want   map[string]string
	}{
		"none":   {want: map[string]string{}},
		"memory": {limits: corev1.ResourceList{"memory": resource.MustParse("64Mi")}, want: map[string]string{"memory.max": "67108864"}},
		"cpu":    {limits: corev1.ResourceList{"cpu": resource.MustParse("1500m")}, want: map[string]string{"cpu.max": "150000 100000"}},
		"little": {limits: corev1.ResourceList{"cpu": resource.MustParse("1m")}, want: map[string]string{"cpu.max": "1000 100000"}},
		"others": {limits: corev1.ResourceList{"ephemeral-storage": resource.MustParse("1Gi")}, want: map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, settingsOf(test.limits)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnsupported checks that containers with limits start if limits cannot be enforced.
func TestUnsupported(t *testing.T) {
	root := t.TempDir()
	base, err := createRoot(root, "/proc/self/cgroup", "test")
	if base != "" || err == nil {
		t.Fatalf("createRoot() = %q, %v in a directory without control groups", base, err)
	}
	c := &Groups{err: err, logger: klog.NewKlogr()}
	dir, err := c.Create("backend", "c", corev1.ResourceList{"memory": resource.MustParse("1Gi")})
	if dir != nil || err != nil {
		t.Errorf("Create() = %v, %v, want neither", dir, err)
	}
	c.Remove("backend")
}

// TestCreateRoot checks the location of the group, using plain files.
func TestCreateRoot(t *testing.T) {
	root := t.TempDir()
	write := func(path, content string) string {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("cgroup.controllers", "cpu memory")
	self := write("self", "1:name=systemd:/\n0::/user/server\n")
	// The kernel creates these files.
	write("user/server/test/cgroup.controllers", "")
	write("user/test/cgroup.controllers", "cpu io memory")
	base, err := createRoot(root, self, "test")
	if want := filepath.Join(root, "user/test"); base != want || err != nil {
		t.Fatalf("createRoot() = %q, %v, want %q", base, err, want)
	}
	data, err := os.ReadFile(filepath.Join(base, "cgroup.subtree_control"))
	if err != nil || string(data) != "+cpu +memory" {
		t.Errorf("subtree_control is %q, %v", data, err)
	}
}
