// Package harness starts and controls the dependencies of integration tests: the server's binary, kubectl, and clients with
// manifests of all served kinds.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience bounds every wait, also for a server that takes its stop timeout for each of several stages: long enough for a slow machine, since a
// passing test never waits so long.
const Patience = 3 * time.Minute

// Root returns the repository's root directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module github.com/knative-apiserver/knative-apiserver\n")) {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("the tests must run inside the repository")
		}
		dir = parent
	}
}

// Binary returns the path of the server under test, which `make build` creates.
func Binary() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(root, "bin", "knative-apiserver")
	if _, err := os.Stat(binary); err != nil {
		return "", fmt.Errorf("the server is not built, run `make build`: %w", err)
	}
	return binary, nil
}

// Eventually calls probe until it succeeds, and fails the test with its last error otherwise.
func Eventually(t testing.TB, what string, probe func() error) {
	t.Helper()
	EventuallyWithin(t, Patience, what, func(context.Context) error { return probe() })
}

// EventuallyWithin calls probe until it succeeds, and fails the test with its last error after a limit, when the context of probe ends.
func EventuallyWithin(t testing.TB, limit time.Duration, what string, probe func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := Poll(ctx, func() error { return probe(ctx) }); err != nil {
		t.Fatalf("wait until %s: %v", what, err)
	}
}

// Poll calls probe until it succeeds or ctx ends, and then returns probe's last error, and the one before it if the end of ctx interrupted the last.
// The pause between two calls is a tenth of the time that has passed, between 20 and 100 ms: dozens of tests wait side by side, and each call
// uses the processors that they wait for.
func Poll(ctx context.Context, probe func() error) error {
	began := time.Now()
	var before error
	for {
		err := probe()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil && before != nil && errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w; before: %w", err, before)
		}
		before = err
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last attempt: %w", ctx.Err(), err)
		case <-time.After(min(max(time.Since(began)/10, 20*time.Millisecond), 100*time.Millisecond)):
		}
	}
}

// Process is a program that a test started.
type Process struct {
	name    string
	cmd     *exec.Cmd
	started chan error
	exited  chan struct{} // closed when the program has exited

	mu      sync.Mutex
	log     bytes.Buffer  // guarded by mu; standard output and error, interleaved
	changed chan struct{} // guarded by mu; closed and replaced when log grows
}

// StartProcess runs a program until Stop or Kill, at the latest until the test binary ends. Its output is
// recorded; env is added to the environment.
func StartProcess(env []string, path string, args ...string) (*Process, error) {
	p := &Process{
		name:    filepath.Base(path),
		cmd:     exec.Command(path, args...),
		started: make(chan error, 1),
		exited:  make(chan struct{}),
		changed: make(chan struct{}),
	}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.WaitDelay = Patience // for programs that it started and that keep its output open
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	go func() {
		// The kernel sends Pdeathsig when the thread that started the program exits, so lock this one.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		p.started <- err
		if err == nil {
			_ = p.cmd.Wait() // ExitCode reports it
			close(p.exited)
		}
	}()
	if err := <-p.started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return p, nil
}

var _ io.Writer = &Process{}

// Write records the output of the program.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
	return p.log.Write(b)
}

// Log returns the output of the program so far.
func (p *Process) Log() string {
	log, _ := p.snapshot()
	return log
}

func (p *Process) snapshot() (log string, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String(), p.changed
}

// PID returns the program's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// tick is the unit of CPU time in /proc.
const tick = 10 * time.Millisecond

// CPUTime returns the CPU time of the program so far, without its children (proc_pid_stat(5), utime and stime).
func (p *Process) CPUTime(t testing.TB) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	// The fields after the name, which may contain spaces, start with the third.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	var ticks int64
	for _, field := range []int{14, 15} {
		n, err := strconv.ParseInt(fields[field-3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// ResidentMemory returns the resident memory of the program in bytes, without its children (proc_pid_statm(5)).
func (p *Process) ResidentMemory(t testing.TB) int {
	t.Helper()
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}

// Exited returns a channel that is closed when the program has exited.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode waits until the program exits and returns its exit code, -1 if it was killed by a signal.
func (p *Process) ExitCode() (int, error) {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(Patience):
		return 0, fmt.Errorf("%s is still running after %s", p.name, Patience)
	}
}

// WaitForOutput waits until the output of the program matches pattern, and returns the submatches. It fails
// if the program exits first.
func (p *Process) WaitForOutput(pattern *regexp.Regexp) ([]string, error) {
	timeout := time.After(Patience)
	for {
		log, changed := p.snapshot()
		if match := pattern.FindStringSubmatch(log); match != nil {
			return match, nil
		}
		select {
		case <-changed:
		case <-p.exited:
			if match := pattern.FindStringSubmatch(p.Log()); match != nil {
				return match, nil
			}
			return nil, fmt.Errorf("%s exited (%v) before it printed %q; its output:\n%s", p.name, p.cmd.ProcessState, pattern, p.Log())
		case <-timeout:
			return nil, fmt.Errorf("%s did not print %q within %s; its output:\n%s", p.name, pattern, Patience, p.Log())
		}
	}
}

// Stop sends SIGTERM to the program and waits until it exits. If it does not, Stop kills it and returns
// an error.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails if the program has already exited
	select {
	case <-p.exited:
		return nil
	case <-time.After(Patience):
		// The goroutine dump shows where it hangs.
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		select {
		case <-p.exited:
		case <-time.After(Patience):
			p.Kill()
		}
		return fmt.Errorf("%s did not exit within %s of SIGTERM", p.name, Patience)
	}
}

// Kill kills the program (kill -9) and waits until it has exited.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails if the program has already exited
	<-p.exited
}

// StopAfter stops the program when the test ends, and logs its output if the test failed.
func (p *Process) StopAfter(t testing.TB) {
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s", p.name, tail(p.Log(), 4000))
		}
	})
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Standalone is a server without a host cluster.
type Standalone struct {
	*Process
	// URL is the address of the API, Kubeconfig the file of its administrator.
	URL, Kubeconfig string
	// Gateway is the URL of the gateway, such as http://localhost:8080; empty without a gateway.
	Gateway string
	// Broker is the URL of the event ingress, such as http://127.0.0.1:8081; empty without a broker.
	Broker string
	// Console is the URL of the console; empty without controllers.
	Console string
}

// readyLine contains, in parentheses, the name and address of each component, separated by commas.
var readyLine = regexp.MustCompile(`(?m)^knative-apiserver is ready at (https://\S+), kubeconfig (\S+)(?: \((.+)\))?$`)

// DetectMutationsVariable is the environment variable that DetectMutations sets.
const DetectMutationsVariable = "KUBE_CACHE_MUTATION_DETECTOR"

// DetectMutations makes all servers that start afterwards panic when anything changes an object in the cache of an informer, which shares memory
// with the watch cache of the API. They keep copies for that and compare them each second, so they use more memory and CPU time.
func DetectMutations() {
	if err := os.Setenv(DetectMutationsVariable, "true"); err != nil {
		panic(err)
	}
}

// StartStandalone starts a server on dataDir and free ports, and waits until it is ready.
func StartStandalone(dataDir string, args ...string) (*Standalone, error) {
	return StartStandaloneBy(nil, dataDir, args...)
}

// StartStandaloneBy is like StartStandalone, but wrapper, if not empty, is a command that executes the command line in its last
// arguments.
func StartStandaloneBy(wrapper []string, dataDir string, args ...string) (*Standalone, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	command := slices.Concat(wrapper, []string{binary, "standalone", "--data-dir", dataDir, "--secure-port", "0", "--gateway-port", "0", "--gateway-tls-port", "0", "--broker-port", "0", "--broker-tls-port", "0", "--console-port", "0"}, args)
	process, err := StartProcess(nil, command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	match, err := process.WaitForOutput(readyLine)
	if err != nil {
		process.Kill()
		return nil, err
	}
	server := &Standalone{Process: process, URL: match[1], Kubeconfig: match[2]}
	for part := range strings.SplitSeq(match[3], ", ") {
		switch name, address, _ := strings.Cut(part, " "); name {
		case "gateway":
			server.Gateway = address
		case "broker":
			server.Broker = address
		case "console":
			server.Console = address
		}
	}
	if dir := os.Getenv(ProfilesVariable); dir != "" {
		go server.record(dir)
	}
	return server, nil
}

// RunStandalone is like StartStandalone for one test: the server stops when the test ends.
func RunStandalone(t testing.TB, dataDir string, args ...string) *Standalone {
	t.Helper()
	server, err := StartStandalone(dataDir, args...)
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	return server
}

// apiOnly is the flag of servers that only serve the API: no controller processes the objects.
const apiOnly = "--components=apiserver"

// StartAPI is like StartStandalone for a server without controllers and data plane.
func StartAPI(dataDir string, args ...string) (*Standalone, error) {
	return StartStandalone(dataDir, append([]string{apiOnly}, args...)...)
}

// RunAPI is like RunStandalone for a server without controllers and data plane.
func RunAPI(t testing.TB, dataDir string, args ...string) *Standalone {
	t.Helper()
	return RunStandalone(t, dataDir, append([]string{apiOnly}, args...)...)
}
