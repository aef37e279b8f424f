package flow

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// The default limit of a Budget is the memory limit of the process divided by defaultShare, at most maxDefault.
	defaultShare = 4
	maxDefault   = 512 << 20
)

// DefaultLimit returns the default limit of the Budget of this process: a quarter of its memory limit, at most 512 MiB.
func DefaultLimit() int64 {
	return min(memoryLimit(os.DirFS("/"), machineMemory())/defaultShare, maxDefault)
}

// machineMemory returns the memory of this machine in bytes.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return math.MaxInt64
	}
	return int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64)) //nolint:unconvert // narrower on other architectures
}

// memoryLimit returns the minimum of the machine's memory and the limits of all memory cgroups of this process.
func memoryLimit(root fs.FS, machine int64) int64 {
	limit := machine
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return limit
	}
	for scanner := bufio.NewScanner(bytes.NewReader(groups)); scanner.Scan(); {
		// Lines are <hierarchy>:<controllers>:<path>, with no controllers for version 2.
		_, rest, _ := strings.Cut(scanner.Text(), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		mount, file := "sys/fs/cgroup", "memory.max"
		if controllers != "" {
			if controllers != "memory" {
				continue
			}
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// In a container, the root may be its own cgroup, while the path is the path on the host.
		for dir := path.Join("/", group); ; dir = path.Dir(dir) {
			if found, ok := readLimit(root, path.Join(mount, dir, file)); ok {
				limit = min(limit, found)
			}
			if dir == "/" {
				break
			}
		}
	}
	return limit
}

// readLimit returns the limit in a file, and false without one.
func readLimit(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	// Version 2 writes "max" for no limit, version 1 a number near the largest one.
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return limit, err == nil && limit > 0
}
