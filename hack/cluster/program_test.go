//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestStopAndStartOneProgram(t *testing.T) {
	h := home(t.TempDir())
	ctx := t.Context()
	if err := h.stopProgram(ctx, "etcd", io.Discard); err == nil || !strings.Contains(err.Error(), "there is no cluster") {
		t.Errorf("without a cluster: %v", err)
	}
	if err := h.stopProgram(ctx, "kubelet", io.Discard); err == nil || !strings.Contains(err.Error(), "cannot be stopped alone") {
		t.Errorf("a program of the node: %v", err)
	}
	file := h.path("two words")
	if err := errors.Join(writeJSON(h.path("cluster.json"), info{}), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := h.startProgram(ctx, "etcd", io.Discard); err == nil || !strings.Contains(err.Error(), "was not stopped") {
		t.Errorf("program that was not stopped: %v", err)
	}

	p, err := h.startCommand("etcd", exec.Command("tail", "-f", file))
	if err != nil {
		t.Fatal(err)
	}
	first, err := identify(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.stop(0) })
	if err := h.stopProgram(ctx, "etcd", io.Discard); err != nil || first.running() {
		t.Fatalf("stop: %v, running %v", err, first.running())
	}
	if err := h.stopProgram(ctx, "etcd", io.Discard); err == nil || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("stopping twice: %v", err)
	}
	if err := h.startProgram(ctx, "etcd", io.Discard); err != nil {
		t.Fatal(err)
	}
	second, found, err := readPIDFile(h.pidFile("etcd"))
	if err != nil || !found || !second.running() || second == first {
		t.Fatalf("start: %v, %v, %v", second, found, err)
	}
	t.Cleanup(func() { _ = second.stop(0) })
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", second.PID))
	if want := "tail\x00-f\x00" + file + "\x00"; err != nil || string(line) != want {
		t.Errorf("started as %q, want %q (%v)", line, want, err)
	}
}
