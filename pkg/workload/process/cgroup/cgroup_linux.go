package process

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

// cgroups enforces limits of memory and CPU by control groups, version 2:
//
//	<the server's group, or the one around it>/knative-apiserver-<id>/<instance>.<container>
type cgroups struct {
	// base is empty where the server may create no groups; then limits are not enforced.
	base   string
	why    error
	logger klog.Logger
	warn   sync.Once
}

const (
	cgroupRoot   = "/sys/fs/cgroup"
	cgroupPeriod = 100_000 // microseconds, of cpu.max
)

// newCgroups finds out whether the server may create groups.
func newCgroups(id string, logger klog.Logger) *cgroups {
	c := &cgroups{logger: logger}
	c.base, c.why = cgroupBase(cgroupRoot, "/proc/self/cgroup", "knative-apiserver-"+id)
	if c.base != "" {
		// What an earlier server has left: its processes are gone already.
		c.clear()
	}
	return c
}

// cgroupBase creates the group of all instances. The kernel lets groups with processes, such as the server's
// own, share out nothing, unless it is the root: then the group around it may.
func cgroupBase(root, self, name string) (string, error) {
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
		return "", errors.New("the server is in no control group")
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
			return fmt.Errorf("%s has no controller of %s", base, controller)
		}
	}
	return os.WriteFile(filepath.Join(base, "cgroup.subtree_control"), []byte("+cpu +memory"), 0o644)
}

// create returns the directory of a new group with the limits of a container, or nil where it has none or
// they cannot be enforced.
func (c *cgroups) create(instance, container string, limits corev1.ResourceList) (*os.File, error) {
	settings := cgroupSettings(limits)
	if len(settings) == 0 {
		return nil, nil
	}
	if c.base == "" {
		c.warn.Do(func() { c.logger.Info("Memory and CPU limits are not enforced", "reason", c.why.Error()) })
		return nil, nil
	}
	dir := filepath.Join(c.base, instance+"."+container)
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

// cgroupSettings are the files of a group, and what is written to them for limits.
func cgroupSettings(limits corev1.ResourceList) map[string]string {
	settings := map[string]string{}
	if memory, ok := limits[corev1.ResourceMemory]; ok && memory.Value() > 0 {
		settings["memory.max"] = strconv.FormatInt(memory.Value(), 10)
	}
	if cpu, ok := limits[corev1.ResourceCPU]; ok && cpu.MilliValue() > 0 {
		// The kernel takes no quota below a millisecond.
		quota := max(cpu.MilliValue()*cgroupPeriod/1000, 1000)
		settings["cpu.max"] = fmt.Sprintf("%d %d", quota, cgroupPeriod)
	}
	return settings
}

// remove deletes the groups of an instance whose processes are gone. Stragglers end with them.
func (c *cgroups) remove(instance string) {
	if c.base == "" {
		return
	}
	groups, err := filepath.Glob(filepath.Join(c.base, instance+".*"))
	if err != nil {
		return
	}
	for _, group := range groups {
		removeGroup(group)
	}
}

func (c *cgroups) clear() {
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

// removeGroup deletes a group. One that still has a dying process stays until the server starts again.
func removeGroup(group string) {
	_ = os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0o644)
	_ = os.Remove(group)
}

func (c *cgroups) close() {
	if c.base != "" {
		c.clear()
		_ = os.Remove(c.base)
	}
}
