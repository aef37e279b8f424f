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
	// mounts are the volumes of the program, in a mount namespace of its own; staging is an empty directory for its root.
	mounts  []mount
	staging string
	// cgroup is the directory of the control group for the process, or nil.
	cgroup *os.File
}

// spawner starts all processes from one thread. The kernel kills a process when the thread that started it exits; this
// thread lives as long as the server.
type spawner struct {
	owner    *owner
	requests chan func()
}

func newSpawner(o *owner) *spawner {
	setCloseOnExec()
	s := &spawner{owner: o, requests: make(chan func())}
	go func() {
		goruntime.LockOSThread()
		for request := range s.requests {
			request()
		}
	}()
	return s
}

// close stops the thread. All processes must have exited.
func (s *spawner) close() { close(s.requests) }

// process is the leader of a process group.
type process struct {
	os *os.Process
	// done is closed when the process has exited and its group was killed. state is valid after that.
	done  chan struct{}
	state *os.ProcessState

	mu     sync.Mutex
	reaped bool
}

// start starts a program. When the program exits, its process group is killed, as in a container.
func (s *spawner) start(c *command) (*process, error) {
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	p := &process{done: make(chan struct{})}
	var pidfd int
	if len(c.mounts) > 0 {
		// The program may be in a volume, so the helper looks it up.
		p.os, pidfd, err = s.startMounted(c, stdin)
	} else {
		p.os, pidfd, err = s.startPlain(c, stdin)
	}
	if err != nil {
		return nil, err
	}
	go func() {
		deleteRecord := s.owner.record(p.os.Pid)
		p.reap(pidfd)
		deleteRecord()
		close(p.done)
	}()
	return p, nil
}

// startPlain starts a program without volumes.
func (s *spawner) startPlain(c *command, stdin *os.File) (p *os.Process, pidfd int, err error) {
	path, err := c.lookup()
	if err != nil {
		return nil, -1, err
	}
	// The error of os.StartProcess would name the program instead of the missing directory.
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

// fork starts a process from the spawner's thread.
func (s *spawner) fork(path string, argv []string, attributes *os.ProcAttr) (p *os.Process, err error) {
	started := make(chan struct{})
	s.requests <- func() {
		p, err = os.StartProcess(path, argv, attributes)
		close(started)
	}
	<-started
	return p, err
}

// reap waits until the process has exited, and kills its group.
func (p *process) reap(pidfd int) {
	if !awaitExit(p.os.Pid, pidfd) {
		// Waiting for a child does not fail.
		p.state, _ = p.os.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	// The PID is not reused for another group before the leader is reaped.
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
		// Errors only occur if the group is exiting.
		_ = syscall.Kill(-p.os.Pid, signal)
	}
}

// lookup finds the program in the PATH of the process, as a shell would. Names with a slash are relative to the working
// directory.
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
