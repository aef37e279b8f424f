//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestClaimRefusesADirectoryOfSomethingElse(t *testing.T) {
	h := home(t.TempDir())
	if err := os.Mkdir(h.path("etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if lock, err := h.claim(t.Context(), io.Discard); err == nil {
		lock.release()
		t.Fatal("claimed a directory with other contents")
	}
	if err := down(t.Context(), h, io.Discard); err != nil {
		t.Errorf("down: %v", err)
	}
	if _, err := os.Stat(h.path("etcd")); err != nil {
		t.Errorf("down deleted a file outside of the cluster: %v", err)
	}
}

func TestDownKeepsWhatIsNotTheClusters(t *testing.T) {
	for name, test := range map[string]struct {
		other    string
		wantHome bool
	}{
		"only the cluster":     {"", false},
		"a file of the user's": {"notes.txt", true},
	} {
		t.Run(name, func(t *testing.T) {
			h := home(filepath.Join(t.TempDir(), "new", "cluster"))
			lock, err := h.claim(t.Context(), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			lock.release()
			if err := writeJSON(h.path("cluster.json"), info{Bin: "bin"}); err != nil {
				t.Fatal(err)
			}
			if test.other != "" {
				if err := os.WriteFile(h.path(test.other), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := down(t.Context(), h, io.Discard); err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(string(h))
			switch {
			case !test.wantHome && !errors.Is(err, os.ErrNotExist):
				t.Errorf("the directory is still there: %v, %v", entries, err)
			case test.wantHome && (len(entries) != 1 || entries[0].Name() != test.other):
				t.Errorf("left %v, want only %s", entries, test.other)
			}
		})
	}
}

func TestLockKilled(t *testing.T) {
	h := home(t.TempDir())
	_, daemon := startChild(t, "echo; exec sleep 60")
	if err := writeJSON(h.pidFile("kubelet"), daemon); err != nil {
		t.Fatal(err)
	}
	lockKilled := func() bool {
		t.Helper()
		lock, err := h.lockKilled()
		if err != nil {
			t.Fatal(err)
		}
		if lock == nil {
			return false
		}
		lock.release()
		return true
	}
	if lockKilled() {
		t.Error("locked a cluster that runs")
	}
	if err := daemon.stop(0); err != nil {
		t.Fatal(err)
	}
	command, err := h.lock(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if lockKilled() {
		t.Error("locked a cluster during another command")
	}
	command.release()
	if !lockKilled() {
		t.Error("did not lock a cluster without a running daemon")
	}
}

func TestLockExcludesAndSurvivesDeletion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "home", "lock")
	first, err := acquireLock(t.Context(), path, "", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := acquireLock(ended, path, "", io.Discard); !errors.Is(err, context.Canceled) {
		t.Fatalf("locked twice: %v", err)
	}

	waiting, told := make(chan *fileLock), newNotifier()
	go func() {
		second, err := acquireLock(t.Context(), path, "waits", told)
		if err != nil {
			t.Error(err)
		}
		waiting <- second
	}()
	<-told.written
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	first.release()
	second := <-waiting
	defer second.release()
	if !isFile(second.file, path) {
		t.Error("the second lock is on a file that no longer exists")
	}
}

// notifier is a writer that notifies of writes.
type notifier struct{ written chan struct{} }

func newNotifier() notifier { return notifier{written: make(chan struct{}, 1)} }

func (s notifier) Write(p []byte) (int, error) {
	s.written <- struct{}{}
	return len(p), nil
}
