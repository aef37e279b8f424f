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
	// defaultShare is the part of the memory limit of the process that a Budget takes by default, and maxDefault its most.
	defaultShare = 4
	maxDefault   = 512 << 20
)

// DefaultLimit returns the default limit of the Budget of this process: a quarter of the memory that the process may
// use, at most 512 MiB.
func DefaultLimit() int64 {
	return min(memoryLimit(os.DirFS("/"), machineMemory())/defaultShare, maxDefault)
}

func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return math.MaxInt64
	}
	return int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64)) //nolint:unconvert // narrower on other architectures
}

// memoryLimit returns the least of the machine's memory and the limits of all memory cgroups that contain this process.
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
		// A container may see its own cgroup as the root, while the path is that of the host.
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

func readLimit(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	// Version 2 writes "max" for no limit, version 1 a number near the largest one.
	limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return limit, err == nil && limit > 0
}
