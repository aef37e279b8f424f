package port

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

// childDir makes TestChild reserve a port in a directory.
const childDir = "PORT_TEST_DIR"

// TestChild is the process of TestReservedByAnotherProcess. It reserves a port, prints it, and exits when its input is closed.
func TestChild(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs as a process of TestReservedByAnotherProcess")
	}
	port, err := Stable()
	if err == nil {
		err = try(dir, port)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stdout.WriteString(strconv.Itoa(port) + "\n"); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // it ends with io.EOF
}

// TestReservedByAnotherProcess checks that a port belongs to a process until that process ends.
func TestReservedByAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^TestChild$")
	child.Env = append(os.Environ(), childDir+"="+dir)
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 16)
	n, err := output.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	if err := try(dir, port); !errors.Is(err, errReserved) {
		t.Errorf("while the other process runs: %v, want errReserved", err)
	}
	if err := errors.Join(input.Close(), child.Wait()); err != nil {
		t.Fatal(err)
	}
	if err := try(dir, port); err != nil {
		t.Errorf("after the other process: %v", err)
	}
	if err := try(dir, port); !errors.Is(err, errReserved) {
		t.Errorf("twice: %v, want errReserved", err)
	}
}

// TestInUse checks that a port in use is not reserved.
func TestInUse(t *testing.T) {
	dir := t.TempDir()
	listener := Listen(t)
	port := listener.Addr().(*net.TCPAddr).Port
	if err := try(dir, port); err == nil || errors.Is(err, errReserved) {
		t.Errorf("a port in use: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := try(dir, port); err != nil {
		t.Errorf("a free port: %v", err)
	}
}

// TestListenBesidePrograms checks that one can listen on a port, also for the second time, although other programs start all the time.
func TestListenBesidePrograms(t *testing.T) {
	var programs errgroup.Group
	var ended atomic.Bool
	defer ended.Store(true)
	for range 4 {
		programs.Go(func() error {
			for !ended.Load() {
				if err := exec.Command(os.Args[0], "-test.run=^$").Run(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 300 {
		listener := Listen(t)
		for range 10 {
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
			var err error
			if listener, err = ListenOn(listener.Addr().String()); err != nil {
				t.Fatal(err)
			}
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
	ended.Store(true)
	if err := programs.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestStable checks that a process gets no port twice.
func TestStable(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		port, err := Stable()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d is returned twice", port)
		}
		seen[port] = true
	}
}
