// Package memorylimit finds the memory limit of this process and keeps the Go runtime below it.
package memorylimit

import (
	"bufio"
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The Go runtime may use the limit of the cgroup less a tenth, at least minRest, but not less than half. The rest is for memory that
// the runtime does not count: the pages of the program, of etcd's database and of the event log, socket buffers, and memory of the
// kernel.
const (
	restShare = 10
	minRest   = 128 << 20
)

// Process returns the memory limit of this process in bytes: the memory of the machine, or the smallest limit of a cgroup if
// that is less.
func Process() int64 { return limit(os.DirFS("/"), machineMemory()) }

// Apply sets the soft memory limit of the Go runtime below the smallest limit of a cgroup of this process, as GOMEMLIMIT would:
// near it, garbage is collected more often. It returns the soft limit, or 0 if it set none, because the environment
// variable GOMEMLIMIT is set or no cgroup limits the process.
func Apply() int64 {
	soft := softLimit(os.Getenv("GOMEMLIMIT"), Process(), machineMemory())
	if soft > 0 {
		debug.SetMemoryLimit(soft)
	}
	return soft
}

// softLimit returns the soft limit for a value of GOMEMLIMIT, the limit of the process and the memory of the machine. 0 means none.
func softLimit(environment string, process, machine int64) int64 {
	if environment != "" || process >= machine {
		return 0
	}
	return process - min(max(process/restShare, minRest), process/2)
}

// machineMemory returns the memory of this machine in bytes.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return math.MaxInt64
	}
	return int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64)) //nolint:unconvert // narrower on other architectures
}

// limit returns the minimum of the machine's memory and the limits of all memory cgroups of this process.
func limit(root fs.FS, machine int64) int64 {
	least := machine
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return least
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
				least = min(least, found)
			}
			if dir == "/" {
				break
			}
		}
	}
	return least
}

// readLimit returns the limit in a file, and false without one.
func readLimit(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	// Version 2 writes "max" for no limit, version 1 a number near the largest one.
	bytes, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return bytes, err == nil && bytes > 0
}
