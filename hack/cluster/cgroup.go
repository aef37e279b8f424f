//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cgroupName is the cgroup below which the node's daemons and all pods are, in every hierarchy. It has one name for all
// clusters, because a machine carries one node: the remains of a cluster are found even if its directory is lost.
const cgroupName = "knative-cluster"

// cgroupTree is the node's cgroup in each of the machine's hierarchies: one with cgroup v2, several with v1. All
// processes are in the first one.
type cgroupTree []string

// machineCgroups finds the hierarchies that are mounted.
func machineCgroups() (cgroupTree, error) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup hierarchies: %w", err)
	}
	tree := parseCgroupMounts(string(mounts))
	if len(tree) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted: containers need them")
	}
	return tree, nil
}

// parseCgroupMounts reads /proc/mounts. Hierarchies of v1 come first: if any exist, containers use them.
func parseCgroupMounts(mounts string) cgroupTree {
	var v1, v2 cgroupTree
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		switch path := filepath.Join(fields[1], cgroupName); fields[2] {
		case "cgroup":
			v1 = append(v1, path)
		case "cgroup2":
			v2 = append(v2, path)
		}
	}
	return append(v1, v2...)
}

// daemons is the cgroup of containerd and kubelet, and of containerd's shims.
func (t cgroupTree) daemons() string { return filepath.Join(t[0], "daemons") }

// create creates the cgroups. The kubelet creates the cgroups of Pods.
func (t cgroupTree) create() error {
	for _, path := range t {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("create a cgroup: %w", err)
		}
		// With v1, a new cgroup has no CPUs and no memory, and rejects processes until both are set.
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(filepath.Dir(path), name))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(path, name), value, 0o644); err != nil {
				return fmt.Errorf("set up a cgroup: %w", err)
			}
		}
	}
	if err := os.MkdirAll(t.daemons(), 0o755); err != nil {
		return fmt.Errorf("create a cgroup: %w", err)
	}
	return nil
}

// add moves a process to the daemons.
func (t cgroupTree) add(pid int) error {
	if err := os.WriteFile(filepath.Join(t.daemons(), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("move process %d to its cgroup: %w", pid, err)
	}
	return nil
}

// kill kills every process in the tree and waits until all have exited.
func (t cgroupTree) kill() error {
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		pids, err := processesBelow(t[0])
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in the cgroup %s still run after SIGKILL", pids, t[0])
		}
		for _, pid := range pids {
			if err := killMember(pid); err != nil {
				return err
			}
		}
	}
}

// killMember sends SIGKILL to a process if it is in the node's cgroup.
func killMember(pid int) error {
	// FindProcess opens a pidfd, so that the verified process also receives the signal.
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer func() { _ = process.Release() }()
	membership, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !inNodeCgroup(string(membership)) {
		return nil
	}
	if err := process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// inNodeCgroup reads /proc/<pid>/cgroup, whose lines are like "4:memory:/path".
func inNodeCgroup(membership string) bool {
	for line := range strings.Lines(membership) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && strings.HasPrefix(parts[2]+"/", "/"+cgroupName+"/") {
			return true
		}
	}
	return false
}

// processesBelow lists the processes in a cgroup and in those below it.
func processesBelow(cgroup string) ([]int, error) {
	var pids []int
	err := walkCgroups(cgroup, func(path string) error {
		procs, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return err
		}
		for _, field := range strings.Fields(string(procs)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			pids = append(pids, pid)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the processes of the node: %w", err)
	}
	return pids, nil
}

// remove deletes the cgroups, whose processes must have exited. A cgroup stays busy for a moment after its last process.
func (t cgroupTree) remove() error {
	for _, root := range t {
		var paths []string
		if err := walkCgroups(root, func(path string) error {
			paths = append(paths, path)
			return nil
		}); err != nil {
			return fmt.Errorf("list the node's cgroups: %w", err)
		}
		slices.Reverse(paths)
		for _, path := range paths {
			deadline := time.Now().Add(5 * time.Second)
			err := syscall.Rmdir(path)
			for ; errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline); err = syscall.Rmdir(path) {
				time.Sleep(20 * time.Millisecond)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("delete the cgroup %s: %w", path, err)
			}
		}
	}
	return nil
}

// walkCgroups visits a cgroup and its descendants, parents first. Other processes may delete cgroups concurrently.
func walkCgroups(root string, visit func(path string) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			err = visit(path)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil
		}
		return err
	})
}
