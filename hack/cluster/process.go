//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// identity identifies a process, also after its pid was reused. It is the content of a pid file.
type identity struct {
	PID int `json:"pid"`
	// StartTime is in clock ticks since boot, as /proc/<pid>/stat counts them.
	StartTime uint64 `json:"startTime"`
	// BootID identifies the boot that StartTime is relative to.
	BootID string `json:"bootID"`
}

// identify returns the identity of the process that has the pid now.
func identify(pid int) (identity, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	_, startTime, err := parseStat(string(stat))
	if err != nil {
		return identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	boot, err := bootID()
	if err != nil {
		return identity{}, err
	}
	return identity{PID: pid, StartTime: startTime, BootID: boot}, nil
}

// bootID returns the kernel's random name for the current boot.
func bootID() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(boot)), nil
}

// parseStat reads the state letter (field 3) and the start time (field 22) of /proc/<pid>/stat. Field 2
// is the program's name in parentheses and may itself hold spaces and parentheses.
func parseStat(stat string) (state byte, startTime uint64, err error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 20 || len(fields[0]) != 1 {
		return 0, 0, fmt.Errorf("unexpected content of a /proc stat file: %q", stat)
	}
	startTime, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("unexpected start time in a /proc stat file: %w", err)
	}
	return fields[0][0], startTime, nil
}

// running reports whether the process still runs. A zombie does not: it waits for its parent, possibly forever in a container.
func (id identity) running() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id.PID))
	if err != nil {
		return false
	}
	state, startTime, err := parseStat(string(stat))
	if err != nil || startTime != id.StartTime || state == 'Z' || state == 'X' {
		return false
	}
	boot, err := bootID()
	return err == nil && boot == id.BootID
}

// stop stops the process: SIGTERM, and SIGKILL if it still runs after grace. It returns once the process has ended. Another
// process with the same pid receives no signal.
func (id identity) stop(grace time.Duration) error {
	// FindProcess opens a pidfd, so that the verified process also receives the signals.
	process, err := os.FindProcess(id.PID)
	if err != nil {
		return fmt.Errorf("open process %d: %w", id.PID, err)
	}
	defer func() { _ = process.Release() }()
	if !id.running() {
		return nil
	}
	for _, step := range []struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, 10 * time.Second}} {
		if err := process.Signal(step.signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("send %v to process %d: %w", step.signal, id.PID, err)
		}
		for deadline := time.Now().Add(step.wait); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if !id.running() {
				return nil
			}
		}
	}
	return fmt.Errorf("process %d still runs after SIGKILL", id.PID)
}

// readPIDFile returns the identity in a pid file, and false if the file does not exist.
func readPIDFile(path string) (identity, bool, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return identity{}, false, nil
	}
	if err != nil {
		return identity{}, false, fmt.Errorf("read pid file: %w", err)
	}
	var id identity
	if err := json.Unmarshal(content, &id); err != nil {
		return identity{}, false, fmt.Errorf("read pid file %s: %w", path, err)
	}
	return id, true, nil
}

// process is a program of the cluster that this command started.
type process struct {
	name    string
	pid     int
	logFile string
	exited  chan struct{} // closed once the process ended and err is set
	err     error
}

// start runs a program of bin as a daemon of the same name.
func (h home) start(bin, name string, args ...string) (*process, error) {
	return h.startCommand(name, exec.Command(filepath.Join(bin, name), args...))
}

// startCommand runs a daemon: detached from the terminal, with its output in <name>.log and its identity in
// <name>.pid of the cluster's directory.
func (h home) startCommand(name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, logFile: h.path(name + ".log"), exited: make(chan struct{})}
	log, err := os.Create(p.logFile)
	if err != nil {
		return nil, fmt.Errorf("create the log of %s: %w", name, err)
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = string(h), log, log
	// A separate environment: etcd would read settings from ETCD_* variables, and the Kubernetes clients would send calls
	// between the programs to the user's HTTP proxy.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + string(h)}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	id, err := identify(cmd.Process.Pid)
	if err == nil {
		err = writeJSON(h.pidFile(name), id)
	}
	if err != nil {
		// Without a PID file, the process could not be found later.
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	p.pid = id.PID
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// waitFor calls probe until it succeeds. It fails when ctx is canceled or one of the processes ends.
func waitFor(ctx context.Context, what string, processes []*process, probe func(context.Context) error) error {
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		for _, p := range processes {
			select {
			case <-p.exited:
				how := "successfully"
				if p.err != nil {
					how = p.err.Error()
				}
				return fmt.Errorf("wait until %s: %s ended (%s); the end of %s:\n%s",
					what, p.name, how, p.logFile, tail(p.logFile))
			default:
			}
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return fmt.Errorf("interrupted while waiting until %s", what)
			}
			return fmt.Errorf("wait until %s: %w; last attempt: %w", what, ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tail returns the last lines of a log, or the reason why they cannot be read.
func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
