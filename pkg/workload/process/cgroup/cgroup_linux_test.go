//go:build linux

package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
)

// TestCgroupSettings checks what limits become (serving 10.4-11).
func TestCgroupSettings(t *testing.T) {
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
			if diff := cmp.Diff(test.want, cgroupSettings(test.limits)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestNoCgroups checks that limits are no obstacle where they cannot be enforced.
func TestNoCgroups(t *testing.T) {
	root := t.TempDir()
	base, err := cgroupBase(root, "/proc/self/cgroup", "test")
	if base != "" || err == nil {
		t.Fatalf("cgroupBase() = %q, %v in a directory without control groups", base, err)
	}
	c := &cgroups{why: err, logger: klog.NewKlogr()}
	dir, err := c.create("instance", "c", corev1.ResourceList{"memory": resource.MustParse("1Gi")})
	if dir != nil || err != nil {
		t.Errorf("create() = %v, %v, want neither", dir, err)
	}
	c.remove("instance")
}

// TestCgroupBase checks which group is taken, by plain files.
func TestCgroupBase(t *testing.T) {
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
	// The kernel would have put these there.
	write("user/server/test/cgroup.controllers", "")
	write("user/test/cgroup.controllers", "cpu io memory")
	base, err := cgroupBase(root, self, "test")
	if want := filepath.Join(root, "user/test"); base != want || err != nil {
		t.Fatalf("cgroupBase() = %q, %v, want %q", base, err, want)
	}
	data, err := os.ReadFile(filepath.Join(base, "cgroup.subtree_control"))
	if err != nil || string(data) != "+cpu +memory" {
		t.Errorf("subtree_control is %q, %v", data, err)
	}
}

// TestLimits checks that a process with limits is in a group that has them (serving 10.4-11).
func TestLimits(t *testing.T) {
	h := start(t, Options{})
	if h.cgroups.base == "" {
		t.Skipf("limits are not enforced here: %v", h.cgroups.why)
	}
	r := sample("limited", "serve")
	r.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("256Mi")}
	h.apply(r, 1)
	i := h.await(r, "an instance", ready(1)).Instances[0]
	group := filepath.Join(h.cgroups.base, i.Name+".user-container")
	if data, err := os.ReadFile(filepath.Join(group, "memory.max")); err != nil || strings.TrimSpace(string(data)) != "268435456" {
		t.Errorf("memory.max is %q, %v", data, err)
	}
	h.scale(r, 0)
	h.Drained(keyOf(r), i.Name)
	h.eventually("the group to go", func() bool {
		_, err := os.Stat(group)
		return err != nil
	})
}
