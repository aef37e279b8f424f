package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// Groups enforces memory and CPU limits with control groups, version 2:
//
//	<the server's group, or its parent>/knative-apiserver-<id>/<backend>.<container>
//
// It does not use github.com/containerd/cgroups, which moves processes into a group after they have started. Here processes
// start in their group.
type Groups struct {
	// base is empty if the server may not create groups. Limits are then not enforced, and err is the reason.
	base   string
	err    error
	logger klog.Logger
	warn   sync.Once
}

const (
	root   = "/sys/fs/cgroup"
	period = 100_000 // microseconds, of cpu.max
)

// New creates the parent group of all backends if the server may, and removes groups of an earlier server with the same id.
func New(id string, logger klog.Logger) *Groups {
	c := &Groups{logger: logger}
	c.base, c.err = createRoot(root, "/proc/self/cgroup", "knative-apiserver-"+id)
	if c.base != "" {
		c.clear()
	}
	return c
}

// createRoot creates the parent group of all backends below the server's own group. The kernel allows no controllers for
// the children of a group with processes, except for the root: then the group is created next to the server's.
func createRoot(root, self, name string) (string, error) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		return "", errors.New("control groups version 2 are not mounted at " + root)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	own := ""
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own = filepath.Join(root, path)
		}
	}
	if own == "" {
		return "", errors.New("the server is not in a control group")
	}
	var errs []error
	for _, parent := range slices.Compact([]string{own, filepath.Dir(own)}) {
		if !strings.HasPrefix(parent, root) {
			continue
		}
		base := filepath.Join(parent, name)
		if err := createBase(base); err != nil {
			_ = os.Remove(base)
			errs = append(errs, err)
			continue
		}
		return base, nil
	}
	return "", errors.Join(errs...)
}

func createBase(base string) error {
	if err := os.Mkdir(base, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	controllers, err := os.ReadFile(filepath.Join(base, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, controller := range []string{"cpu", "memory"} {
		if !slices.Contains(strings.Fields(string(controllers)), controller) {
			return fmt.Errorf("control group %s has no %s controller", base, controller)
		}
	}
	return os.WriteFile(filepath.Join(base, "cgroup.subtree_control"), []byte("+cpu +memory"), 0o644)
}

// Dir returns the directory of the group of a container, and an error if limits are not enforced.
func (c *Groups) Dir(backend, container string) (string, error) {
	if c.base == "" {
		return "", c.err
	}
	return c.path(backend, container), nil
}

func (c *Groups) path(backend, container string) string {
	return filepath.Join(c.base, backend+"."+container)
}

// Create returns the directory of a new group with the limits of a container, or nil if it has no limits or they cannot be
// enforced.
func (c *Groups) Create(backend, container string, limits corev1.ResourceList) (*os.File, error) {
	settings := settingsOf(limits)
	if len(settings) == 0 {
		return nil, nil
	}
	if c.base == "" {
		c.warn.Do(func() { c.logger.Info("Memory and CPU limits are not enforced", "reason", c.err.Error()) })
		return nil, nil
	}
	dir := c.path(backend, container)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("set resource limits: %w", err)
	}
	for file, value := range settings {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644); err != nil {
			return nil, fmt.Errorf("set resource limits: %w", err)
		}
	}
	return os.Open(dir)
}

// settingsOf returns the content of the files of a group with the given limits.
func settingsOf(limits corev1.ResourceList) map[string]string {
	settings := map[string]string{}
	if memory, ok := limits[corev1.ResourceMemory]; ok && memory.Value() > 0 {
		settings["memory.max"] = strconv.FormatInt(memory.Value(), 10)
	}
	if cpu, ok := limits[corev1.ResourceCPU]; ok && cpu.MilliValue() > 0 {
		// The kernel rejects quotas below a millisecond.
		quota := max(cpu.MilliValue()*period/1000, 1000)
		settings["cpu.max"] = fmt.Sprintf("%d %d", quota, period)
	}
	return settings
}

// Remove deletes the groups of a backend and kills the remaining processes in them.
func (c *Groups) Remove(backend string) {
	if c.base == "" {
		return
	}
	groups, err := filepath.Glob(filepath.Join(c.base, backend+".*"))
	if err != nil {
		return
	}
	for _, group := range groups {
		removeGroup(group)
	}
}

func (c *Groups) clear() {
	entries, err := os.ReadDir(c.base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if entry.IsDir() {
			removeGroup(filepath.Join(c.base, entry.Name()))
		}
	}
}

// removeGroup deletes a group. If a process in it is still exiting, the group remains until the server is restarted.
func removeGroup(group string) {
	_ = os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0o644)
	_ = os.Remove(group)
}

// Close deletes all groups.
func (c *Groups) Close() {
	if c.base != "" {
		c.clear()
		_ = os.Remove(c.base)
	}
}
