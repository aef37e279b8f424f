//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	// Fields 4 to 21 and the fields after 22.
	const middle, rest = " 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 ", " 2457600 100 18446744073709551615"
	for name, test := range map[string]struct {
		stat      string
		state     byte
		startTime uint64
		wantErr   bool
	}{
		"plain":                          {"7 (etcd) S" + middle + "129252" + rest, 'S', 129252, false},
		"spaces and parentheses in name": {"7 (a) R 1 (b) Z" + middle + "42" + rest, 'Z', 42, false},
		"too short":                      {"7 (etcd) S 1 7", 0, 0, true},
		"no number":                      {"7 (etcd) S" + middle + "x" + rest, 0, 0, true},
		"empty":                          {"", 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			state, startTime, err := parseStat(test.stat)
			if state != test.state || startTime != test.startTime || (err != nil) != test.wantErr {
				t.Errorf("got %q, %d, %v", state, startTime, err)
			}
		})
	}
}

// startChild runs a shell script until the end of the test and returns its identity.
func startChild(t *testing.T, script string) (*exec.Cmd, identity) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// The script prints a line when it is set up, or ends.
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, id
}

func TestStopEndsTheProcess(t *testing.T) {
	for name, script := range map[string]string{
		"that obeys SIGTERM":   "echo; exec sleep 1000",
		"that ignores SIGTERM": "trap '' TERM; echo; while :; do sleep 0.1; done",
	} {
		t.Run(name, func(t *testing.T) {
			_, id := startChild(t, script)
			if !id.running() {
				t.Fatal("a running process counts as dead")
			}
			if err := id.stop(200 * time.Millisecond); err != nil {
				t.Fatal(err)
			}
			// It has not been reaped yet: it is a zombie, which must not count as running.
			if id.running() {
				t.Error("a killed process counts as running")
			}
			if err := id.stop(time.Second); err != nil {
				t.Errorf("stopping it again: %v", err)
			}
		})
	}
}

func TestStopSparesAnotherProcessWithThePID(t *testing.T) {
	_, id := startChild(t, "echo; exec sleep 1000")
	earlier, otherBoot := id, id
	earlier.StartTime--
	otherBoot.BootID = "another"
	for _, other := range []identity{earlier, otherBoot} {
		if other.running() {
			t.Errorf("%+v counts as %+v", id, other)
		}
		if err := other.stop(time.Second); err != nil {
			t.Error(err)
		}
		if !id.running() {
			t.Fatalf("stopping %+v ended %+v", other, id)
		}
	}
}

func TestStartRecordsADaemon(t *testing.T) {
	h := home(t.TempDir())
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(shell, h.path("etcd")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ETCD_NAME", "from the environment")
	p, err := h.start(string(h), "etcd", "-c", `echo "started $ETCD_NAME"; exec sleep 1000`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.stopAll(context.WithoutCancel(t.Context()), t.Output()) })
	logged := func(context.Context) error {
		if tail(p.logFile) == "started" {
			return nil
		}
		return errors.New(tail(p.logFile))
	}
	if err := waitFor(t.Context(), "it logs", []*process{p}, logged); err != nil {
		t.Fatal(err)
	}
	alive, dead, err := h.running(false)
	if err != nil || strings.Join(alive, " ") != "etcd" || len(dead) != 2 {
		t.Errorf("running: %v, not running: %v, %v", alive, dead, err)
	}
	if err := h.stopAll(t.Context(), t.Output()); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	if _, found, err := readPIDFile(h.pidFile("etcd")); found || err != nil {
		t.Errorf("the pid file is still there (%t), %v", found, err)
	}
}

func TestWaitForGivesUpWhenAProcessEnds(t *testing.T) {
	p := &process{name: "etcd", logFile: t.TempDir() + "/etcd.log", exited: make(chan struct{}), err: errors.New("exit status 1")}
	if err := os.WriteFile(p.logFile, []byte("first\nwhy it failed\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	close(p.exited)
	err := waitFor(t.Context(), "etcd is healthy", []*process{p}, func(context.Context) error { return errors.New("refused") })
	for _, part := range []string{"etcd is healthy", "exit status 1", "why it failed"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
}
