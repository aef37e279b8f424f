package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"
)

// command is a program to start.
type command struct {
	argv, env      []string
	dir            string
	user           *user
	stdout, stderr *os.File
	// mounts are the volumes that the program sees, in a mount namespace of its own; staging is an empty directory for its root.
	mounts  []mount
	staging string
	// cgroup is the directory of the group that the process is started in, or nil.
	cgroup *os.File
}

// spawner starts processes, one at a time and all from one thread, with which the kernel ends them: a thread
// that lives as long as the server.
type spawner struct {
	owner    *owner
	requests chan func()
}

func newSpawner(o *owner) *spawner {
	keepFiles()
	s := &spawner{owner: o, requests: make(chan func())}
	go func() {
		goruntime.LockOSThread()
		for request := range s.requests {
			request()
		}
	}()
	return s
}

// close ends the thread. No process may be left.
func (s *spawner) close() { close(s.requests) }

// process is the leader of a process group.
type process struct {
	os *os.Process
	// done is closed when the process and its group are gone. state is how it ended, valid from then on.
	done  chan struct{}
	state *os.ProcessState

	mu     sync.Mutex
	reaped bool
}

// start starts a program. Its process group is killed when it exits, like a container when its first process exits.
func (s *spawner) start(c *command) (*process, error) {
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	p := &process{done: make(chan struct{})}
	var pidfd int
	if len(c.mounts) > 0 {
		// The helper looks up the program, which may be in a volume.
		p.os, pidfd, err = s.startMounted(c, stdin)
	} else {
		p.os, pidfd, err = s.startPlain(c, stdin)
	}
	if err != nil {
		return nil, err
	}
	go func() {
		forget := s.owner.record(p.os.Pid)
		p.reap(pidfd)
		forget()
		close(p.done)
	}()
	return p, nil
}

// startPlain starts a program that sees the files of this machine as they are.
func (s *spawner) startPlain(c *command, stdin *os.File) (p *os.Process, pidfd int, err error) {
	path, err := c.lookup()
	if err != nil {
		return nil, -1, err
	}
	// Starting the process would blame the program for a directory that is missing.
	if c.dir != "" {
		if info, err := os.Stat(c.dir); err != nil {
			return nil, -1, fmt.Errorf("change working directory: %w", err)
		} else if !info.IsDir() {
			return nil, -1, &os.PathError{Op: "chdir", Path: c.dir, Err: syscall.ENOTDIR}
		}
	}
	descriptor := -1
	p, err = s.fork(path, c.argv, &os.ProcAttr{
		Dir: c.dir, Env: c.env, Files: []*os.File{stdin, c.stdout, c.stderr}, Sys: attributes(c, &descriptor),
	})
	return p, descriptor, err
}

// fork starts a process from the thread of the spawner.
func (s *spawner) fork(path string, argv []string, attributes *os.ProcAttr) (p *os.Process, err error) {
	started := make(chan struct{})
	s.requests <- func() {
		p, err = os.StartProcess(path, argv, attributes)
		close(started)
	}
	<-started
	return p, err
}

// reap waits until the process has exited, and kills the rest of its group.
func (p *process) reap(pidfd int) {
	if !awaitExit(p.os.Pid, pidfd) {
		// Waiting for a child process does not fail.
		p.state, _ = p.os.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// As long as the leader is not reaped, its number names no other group.
	_ = syscall.Kill(-p.os.Pid, syscall.SIGKILL)
	if p.state == nil {
		p.state, _ = p.os.Wait()
	}
	p.reaped = true
}

// signal sends a signal to all processes of the group.
func (p *process) signal(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		// Nothing to do about a group that is ending.
		_ = syscall.Kill(-p.os.Pid, signal)
	}
}

// lookup finds the program as a shell would with the PATH that the process gets: names with a slash are
// relative to the working directory.
func (c *command) lookup() (string, error) {
	name := c.argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, variable := range c.env {
		list, ok := strings.CutPrefix(variable, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && filepath.IsAbs(path) {
				return path, nil
			}
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}
