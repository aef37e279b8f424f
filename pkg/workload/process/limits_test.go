//go:build linux

package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestLimits checks that a process with limits runs in a group with these limits (serving 10.4-11).
func TestLimits(t *testing.T) {
	h := start(t, Options{})
	if _, err := h.cgroups.Dir("", ""); err != nil {
		t.Skipf("limits are not enforced here: %v", err)
	}
	r := sample("limited", "serve")
	r.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("256Mi")}
	h.apply(r, 1)
	i := h.await(r, "a backend", ready(1)).Instances[0]
	group, err := h.cgroups.Dir(i.Name, "user-container")
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(group, "memory.max")); err != nil || strings.TrimSpace(string(data)) != "268435456" {
		t.Errorf("memory.max is %q, %v", data, err)
	}
	h.scale(r, 0)
	h.Drained(keyOf(r), i.Name)
	h.eventually("the deletion of the group", func() bool {
		_, err := os.Stat(group)
		return err != nil
	})
}
