//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// commandFile keeps the command line of a program that stopProgram stopped.
func (h home) commandFile(name string) string { return h.path(name + ".stopped") }

// lockProgram locks the cluster for stopping or starting one program. It rejects programs that
// cannot run alone: programs of the node need its mount namespace.
func (h home) lockProgram(ctx context.Context, name string, progress io.Writer) (*fileLock, error) {
	if !slices.Contains(daemons(false), name) {
		return nil, fmt.Errorf("%q cannot be stopped alone, only %s", name, strings.Join(daemons(false), ", "))
	}
	if _, err := h.readInfo(); err != nil {
		return nil, err
	}
	return h.lock(ctx, progress)
}

// stopProgram kills one program of the cluster, like a crash. It stays stopped until startProgram.
func (h home) stopProgram(ctx context.Context, name string, progress io.Writer) error {
	lock, err := h.lockProgram(ctx, name, progress)
	if err != nil {
		return err
	}
	defer lock.release()
	id, found, err := readPIDFile(h.pidFile(name))
	if err != nil {
		return err
	}
	if !found || !id.running() {
		return fmt.Errorf("%s does not run in %s", name, h)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id.PID))
	if err != nil {
		return fmt.Errorf("read the command line of %s: %w", name, err)
	}
	if err := writeJSON(h.commandFile(name), strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")); err != nil {
		return err
	}
	return id.stop(0)
}

// startProgram starts a program that stopProgram stopped, with the same arguments. It does not wait until the program is ready.
func (h home) startProgram(ctx context.Context, name string, progress io.Writer) error {
	lock, err := h.lockProgram(ctx, name, progress)
	if err != nil {
		return err
	}
	defer lock.release()
	content, err := os.ReadFile(h.commandFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s was not stopped in %s", name, h)
	}
	if err != nil {
		return fmt.Errorf("read command of %s: %w", name, err)
	}
	var line []string
	if err := json.Unmarshal(content, &line); err != nil {
		return fmt.Errorf("read %s: %w", h.commandFile(name), err)
	}
	p, err := h.startCommand(name, exec.Command(line[0], line[1:]...))
	if err != nil {
		return err
	}
	if err := h.rejoin(p.pid); err != nil {
		return err
	}
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended at once (%w); the end of %s:\n%s", name, p.err, p.logFile, tail(p.logFile))
	case <-time.After(200 * time.Millisecond):
	}
	return os.Remove(h.commandFile(name))
}

// rejoin moves a program to the cgroup of the others of a cluster with a node, in which `down` finds remaining processes.
func (h home) rejoin(pid int) error {
	i, err := h.readInfo()
	if err != nil || i.Node == "" {
		return err
	}
	tree, err := machineCgroups()
	if err != nil {
		return err
	}
	return tree.add(pid)
}
