//go:build linux

package process

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	testport "github.com/knative-apiserver/knative-apiserver/test/port"
)

// TestKilledServer checks that no process remains after SIGKILL of the server: leaders of process groups exit with the
// server, their descendants are killed before the next server has started.
func TestKilledServer(t *testing.T) {
	t.Run("plain", func(t *testing.T) { testKilledServer(t, "") })
	t.Run("with a volume", func(t *testing.T) { testKilledServer(t, "/knative-apiserver-test") })
}

// testKilledServer kills a server whose sample has an empty volume at a path, unless the path is empty.
func testKilledServer(t *testing.T, volume string) {
	dir := t.TempDir()
	server := exec.Command("/proc/self/exe")
	server.Env = append(os.Environ(), sampleVariable+"=server", "DATA_DIR="+dir, "VOLUME="+volume)
	server.Stderr = os.Stderr
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the server prints no address: %v", err)
	}
	leader := ask(t, strings.TrimSpace(address)).Pid
	if _, err := New(Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "another server uses") {
		t.Errorf("New in the directory of a running server: %v", err)
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()

	o := &owner{mark: ownerVariable + "=" + ownID(t, dir) + "@" + dir + "/"}
	left := marked(o, func(string) bool { return true })
	if len(left) < 2 {
		t.Errorf("%d processes outlive the server before it starts again, want its 2 children", len(left))
	}
	h := start(t, Options{DataDir: dir})
	for _, pid := range append(left, leader) {
		// SIGKILL takes effect with a delay.
		h.eventually("the end of a process", func() bool { return !alive(pid) })
	}
	if entries, err := os.ReadDir(h.volumes); len(entries) > 0 {
		t.Errorf("volumes %v remained, %v", entries, err)
	}
	if h.owner.id != ownID(t, dir) {
		t.Error("the directory has another id")
	}
}

func ownID(t *testing.T, dir string) string {
	t.Helper()
	id, err := os.ReadFile(filepath.Join(dir, "id"))
	if err != nil {
		t.Fatal(err)
	}
	return string(id)
}

// TestRecords checks that among a thousand records, the record of an unmarked process kills it, and the records of reused
// PIDs kill nothing.
func TestRecords(t *testing.T) {
	dir := t.TempDir()
	o, err := newOwner(dir)
	if err != nil {
		t.Fatal(err)
	}
	sleeper := func() *exec.Cmd {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd
	}
	recorded, other := sleeper(), sleeper()
	o.record(recorded.Process.Pid)
	files := []string{strconv.Itoa(other.Process.Pid) + ".1", "1.1", "0.0", "-1.1", "garbage"}
	for n := range 1000 {
		// These PIDs exceed the maximum of the kernel.
		files = append(files, strconv.Itoa(1<<22+n)+"."+strconv.Itoa(n))
	}
	for _, file := range files {
		if err := os.WriteFile(filepath.Join(o.records, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := filepath.Join(dir, "processes", "earlier-boot")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	o.close()

	began := time.Now()
	h := start(t, Options{DataDir: dir})
	t.Logf("recovery with %d records took %v", len(files), time.Since(began))
	// Recovery waits for the end of the process, but not for long.
	h.eventually("the end of the recorded process", func() bool { return !alive(recorded.Process.Pid) })
	if !alive(other.Process.Pid) {
		t.Error("a process with a recorded PID was killed")
	}
	entries, err := os.ReadDir(h.owner.records)
	if err != nil || len(entries) != 0 {
		t.Errorf("records %v, %v after recovery, want none", entries, err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("records of an earlier start of the machine are kept")
	}
}

// TestRecordsOfRunning checks that each running process has a record, and ended processes have none.
func TestRecordsOfRunning(t *testing.T) {
	h := start(t, Options{})
	r := sample("recorded", "serve")
	h.apply(r, 2)
	s := h.await(r, "two backends", ready(2))
	for _, i := range s.Instances {
		pid := ask(t, i.Address).Pid
		start, err := startTime(pid)
		if err != nil {
			t.Fatal(err)
		}
		// A process is recorded after its start.
		h.eventually("the record of a running process", func() bool {
			_, err := os.Stat(filepath.Join(h.owner.records, strconv.Itoa(pid)+"."+start))
			return err == nil
		})
	}
	h.shutdown()
	if entries, err := os.ReadDir(h.owner.records); err != nil || len(entries) != 0 {
		t.Errorf("records %v, %v of no process", entries, err)
	}
}

// TestOthersMark checks that marks with another id or directory do not match.
func TestOthersMark(t *testing.T) {
	h := start(t, Options{})
	for _, mark := range []string{
		ownerVariable + "=another@" + filepath.Dir(h.owner.records) + "/x",
		strings.Replace(h.owner.mark, "@", "@/copy", 1) + "x",
		"X" + h.owner.mark + "x",
		"OTHER=" + h.owner.mark + "x",
	} {
		cmd := exec.Command("sleep", "60")
		cmd.Env = []string{mark}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if backend, ok := h.owner.backend(cmd.Process.Pid, &bytes.Buffer{}); ok {
			t.Errorf("the process with %s counts as backend %q", mark, backend)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func TestPorts(t *testing.T) {
	for _, test := range []struct{ low, high, first, last int }{
		{32768, 60999, 10000, 32767},
		{1024, 60999, 61000, 65535},
		{1024, 65535, 10000, 65535},
		{20000, 30000, 30001, 65535},
	} {
		if first, last := portRange(test.low, test.high); first != test.first || last != test.last {
			t.Errorf("portRange(%d, %d) = %d, %d, want %d, %d", test.low, test.high, first, last, test.first, test.last)
		}
	}
	p := newPorts()
	used := testport.Listen(t).Addr().(*net.TCPAddr).Port
	p.next, p.first, p.last = used, used, used+1
	port, err := p.allocate()
	if err != nil || port != used+1 {
		t.Errorf("allocate() = %d, %v, want the only one free, %d", port, err, used+1)
	}
	if port, err := p.allocate(); err == nil {
		t.Errorf("allocate() = %d, want an error if all are allocated", port)
	}
	p.release(port)
	if reused, err := p.allocate(); err != nil || reused != port {
		t.Errorf("allocate() = %d, %v, want the released %d", reused, err, port)
	}
}
