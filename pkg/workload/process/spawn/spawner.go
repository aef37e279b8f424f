// Package spawn starts the programs of containers: as leaders of process groups that the kernel kills when the server exits,
// with the user, the control group and the mounts that a container requires.
//
// A program with mounts runs in a mount namespace of its own. Go cannot mount between fork and exec, so the server starts its
// own binary as a helper, which mounts and then executes the program.
package spawn

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/knative-apiserver/knative-apiserver/pkg/timerslack"
)

// Command is a program to start.
type Command struct {
	Argv []string
	// Env begins with the variable that marks the processes of a backend.
	Env []string
	Dir string
	// User is the user of the process, or nil for the server's.
	User           *User
	Stdout, Stderr *os.File
	// Mounts are the mounts of the program, parents before nested ones. Staging is an empty directory for its root.
	Mounts  []Mount
	Staging string
	// Cgroup is the directory of the control group for the process, or nil.
	Cgroup *os.File
}

// User is the user and group of a process.
type User struct{ UID, GID uint32 }

// Spawner starts all processes from one thread. The kernel kills a process when the thread that started it exits; this
// thread lives as long as the server.
type Spawner struct {
	record   func(pid int) (remove func())
	requests chan func()
}

// New starts the thread. record is called for each started process, and its result after the process has exited.
func New(record func(pid int) (remove func())) *Spawner {
	setCloseOnExec()
	s := &Spawner{record: record, requests: make(chan func())}
	go func() {
		goruntime.LockOSThread()
		// The delay of timers is for the server, not for programs of users. It fails on systems that delay none.
		_ = timerslack.Reset()
		for request := range s.requests {
			request()
		}
	}()
	return s
}

// Close stops the thread. All processes must have exited.
func (s *Spawner) Close() { close(s.requests) }

// Process is the leader of a process group.
type Process struct {
	os    *os.Process
	done  chan struct{}
	state *os.ProcessState

	mu     sync.Mutex
	reaped bool
}

// Start starts a program. When the program exits, its process group is killed, as in a container.
func (s *Spawner) Start(c *Command) (*Process, error) {
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	p := &Process{done: make(chan struct{})}
	var pidfd int
	if len(c.Mounts) > 0 {
		// The program may be in a volume, so the helper looks it up.
		p.os, pidfd, err = s.startMounted(c, stdin)
	} else {
		p.os, pidfd, err = s.startPlain(c, stdin)
	}
	if err != nil {
		return nil, err
	}
	go func() {
		deleteRecord := s.record(p.os.Pid)
		p.reap(pidfd)
		deleteRecord()
		close(p.done)
	}()
	return p, nil
}

// startPlain starts a program without volumes.
func (s *Spawner) startPlain(c *Command, stdin *os.File) (p *os.Process, pidfd int, err error) {
	path, err := lookup(c.Argv[0], c.Env)
	if err != nil {
		return nil, -1, err
	}
	// The error of os.StartProcess would name the program instead of the missing directory.
	if c.Dir != "" {
		if info, err := os.Stat(c.Dir); err != nil {
			return nil, -1, fmt.Errorf("change working directory: %w", err)
		} else if !info.IsDir() {
			return nil, -1, &os.PathError{Op: "chdir", Path: c.Dir, Err: syscall.ENOTDIR}
		}
	}
	descriptor := -1
	p, err = s.fork(path, c.Argv, &os.ProcAttr{
		Dir: c.Dir, Env: c.Env, Files: []*os.File{stdin, c.Stdout, c.Stderr}, Sys: attributes(c, &descriptor),
	})
	return p, descriptor, err
}

// fork starts a process from the spawner's thread.
func (s *Spawner) fork(path string, argv []string, attributes *os.ProcAttr) (p *os.Process, err error) {
	started := make(chan struct{})
	s.requests <- func() {
		p, err = os.StartProcess(path, argv, attributes)
		close(started)
	}
	<-started
	return p, err
}

// reap waits until the process has exited, and kills its group.
func (p *Process) reap(pidfd int) {
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

// PID returns the ID of the process.
func (p *Process) PID() int { return p.os.Pid }

// Done is closed when the process has exited and its group was killed.
func (p *Process) Done() <-chan struct{} { return p.done }

// State returns the state of the process after Done is closed.
func (p *Process) State() *os.ProcessState { return p.state }

// Signal sends a signal to all processes of the group.
func (p *Process) Signal(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		// Errors only occur if the group is exiting.
		_ = syscall.Kill(-p.os.Pid, signal)
	}
}

// lookup finds the program in the PATH of the process, as a shell would. Names with a slash are relative to the working
// directory.
func lookup(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, variable := range env {
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
