package eventlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const crashDir = "EVENTLOG_CRASH_DIR"

// TestCrashChild is the process that TestCrash kills: it appends from several goroutines, and has a consumer that
// acknowledges every second segment and prints the appended and the acknowledged records.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("runs as a process of TestCrash")
	}
	l, err := Open(context.Background(), Options{Dir: dir, Logger: klog.Background()})
	if err != nil {
		t.Fatal(err)
	}
	s := stream(t, l, "a")
	var mu sync.Mutex
	say := func(word, data string) {
		mu.Lock()
		defer mu.Unlock()
		// One write per line, so that a line is either complete or missing.
		fmt.Fprintf(os.Stdout, "%s %s\n", word, data)
	}
	n := 0
	_, err = s.Consume("", ConsumeOptions{MaxSegments: 1000}, func(f *Segment) {
		if n++; n%2 == 0 {
			for _, r := range f.Records {
				say("done", string(r))
			}
			f.Ack()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for a := range 16 {
		go func() {
			for i := range 1 << 30 {
				data := fmt.Sprintf("%d-%d-%d", os.Getpid(), a, i)
				if s.Append(context.Background(), Record{Data: []byte(data)}) == nil {
					say("stored", data)
				}
			}
		}()
	}
	<-t.Context().Done()
}

// eventing Content Based Routing-3, eventing Topology Based Routing-3: acknowledged records survive SIGKILL.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	stored, done := map[string]bool{}, map[string]bool{}
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.timeout=10m")
		cmd.Env = append(os.Environ(), crashDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		killed := false
		acknowledged := 0
		for n := 0; lines.Scan(); n++ {
			// Segments that are not acknowledged were delivered as well, then.
			if n >= 2000 && acknowledged >= 20 && !killed {
				killed = true
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			word, data, _ := strings.Cut(lines.Text(), " ")
			switch word {
			case "stored":
				stored[data] = true
			case "done":
				done[data] = true
				acknowledged++
			}
		}
		// It was killed.
		_ = cmd.Wait()
	}
	if len(stored) < 1000 {
		t.Fatalf("only %d records were stored", len(stored))
	}
	killed := time.Now()
	s := stream(t, open(t, Options{Dir: dir}), "a")
	k, _ := start(t, s, "", ConsumeOptions{MaxSegments: 100000})
	duplicates := 0
	missing := map[string]bool{}
	for r := range stored {
		if !done[r] {
			missing[r] = true
		}
	}
	attempts := 0
	for len(missing) > 0 {
		select {
		case f := <-k.segments:
			attempts = max(attempts, f.Attempt)
			for _, r := range f.Records {
				if done[string(r)] {
					duplicates++
				}
				delete(missing, string(r))
			}
			f.Ack()
		case <-time.After(patience):
			t.Fatalf("%d of %d records that were stored and not acknowledged were lost", len(missing), len(stored))
		}
	}
	if attempts < 2 {
		t.Errorf("redelivered segments have attempt %d, want 2 or more", attempts)
	}
	t.Logf("%d stored, %d acknowledged, %d acknowledged ones redelivered, all delivered after %v", len(stored), len(done), duplicates, time.Since(killed))
}

// small mounts a filesystem of a few MiB. It skips the test if that is not allowed.
func small(t *testing.T, mib int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("mounting a small filesystem requires root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// faults are ways in which a disk fails, and recovers.
var faults = map[string]struct {
	options   Options
	unwatched bool // the free space is not checked
	fail      func(t *testing.T, dir string)
	further   func(t *testing.T, l *Log, dir string)
	repair    func(t *testing.T, dir string)
	want      []error
	restarts  bool
}{
	// Checked: the limit is reached before the disk is full.
	"little space": {
		options: Options{MinFreeBytes: 4 << 20},
		fail:    func(t *testing.T, dir string) { fill(t, dir, 60) },
		repair:  unfill,
		want:    []error{ErrFull},
	},
	// The server reaches the end of the disk and fails.
	"no space": {
		unwatched: true,
		fail:      func(t *testing.T, dir string) { fill(t, dir, 100) },
		repair:    unfill,
		want:      []error{ErrFull, ErrUnavailable},
		restarts:  true,
	},
	// The kernel makes a filesystem read-only when its disk fails. A test has no failing disk, so it does that while the server is down.
	"read-only": {
		unwatched: true,
		fail:      func(t *testing.T, dir string) { fill(t, dir, 100) },
		further: func(t *testing.T, l *Log, dir string) {
			eventually(t, "the server is stopped and the filesystem read-only", func() bool {
				return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") == nil
			})
			eventually(t, "the log is unavailable", func() bool { return errors.Is(l.server.Err(), unix.EROFS) })
			if err := stream(t, l, "a").Append(t.Context(), Record{}); !errors.Is(err, ErrUnavailable) || !errors.Is(err, unix.EROFS) {
				t.Errorf("append: %v, want ErrUnavailable and EROFS", err)
			}
		},
		repair: func(t *testing.T, dir string) {
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
				t.Fatal(err)
			}
			unfill(t, dir)
		},
		want:     []error{ErrFull, ErrUnavailable},
		restarts: true,
	},
}

// fill writes a file of at most n MiB, until the disk is full.
func fill(t *testing.T, dir string, mib int) {
	t.Helper()
	f, err := os.Create(dir + "/fill")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range mib * 256 {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return
		}
	}
}

func unfill(t *testing.T, dir string) {
	if err := os.Remove(dir + "/fill"); err != nil {
		t.Fatal(err)
	}
}

// Appends to a full or read-only disk fail with a clear error. The log recovers by itself, and no record is lost.
func TestDiskFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			o := fault.options
			dir := small(t, 64)
			o.Dir = dir + "/data"
			l := open(t, o)
			before := l.server.Current()
			if fault.unwatched {
				l.space = nil
			}
			s := stream(t, l, "a")
			stored := map[string]bool{}
			data := func(i int) string { return strconv.Itoa(i) + "-" + strings.Repeat("x", 4096) }
			for i := range 100 {
				appendAll(t, s, "", data(i))
				stored[data(i)] = true
			}
			k, _ := start(t, s, "", ConsumeOptions{MaxSegments: 4})
			held := k.next(t)

			fault.fail(t, dir)
			i := 100
			var err error
			for ; i < 400 && err == nil; i++ {
				if err = s.Append(t.Context(), Record{Data: []byte(data(i))}); err == nil {
					stored[data(i)] = true
				}
			}
			matches := false
			for _, want := range fault.want {
				matches = matches || errors.Is(err, want)
			}
			if !matches {
				t.Fatalf("append: %v, want one of %v", err, fault.want)
			}
			started := time.Now()
			if err := s.Append(t.Context(), Record{Data: []byte("refused")}); err == nil {
				t.Error("append was accepted at once after one was refused")
			}
			t.Logf("%v (the next in %v)", err, time.Since(started))
			if fault.further != nil {
				fault.further(t, l, dir)
			}
			fault.repair(t, dir)

			eventually(t, "append works again", func() bool { return s.Append(t.Context(), Record{Data: []byte("again")}) == nil })
			stored["again"] = true
			if restarted := l.server.Current() != before; restarted != fault.restarts {
				t.Errorf("the server was restarted: %v, want %v", restarted, fault.restarts)
			}
			for _, r := range held.Records {
				delete(stored, string(r))
			}
			held.Ack()
			for len(stored) > 0 {
				f := k.next(t)
				for _, r := range f.Records {
					delete(stored, string(r))
				}
				f.Ack()
			}
		})
	}
}

func TestOpenErrors(t *testing.T) {
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"a file instead of a directory": {Dir: file},
		"no directory can be created":   {Dir: file + "/data"},
		"installation":                  {Dir: t.TempDir(), Installation: "a.b"},
		"no server listens":             {URL: "nats://127.0.0.1:1"},
		"no credentials":                {URL: "nats://127.0.0.1:1", CredentialsFile: file + "x"},
	} {
		l, err := Open(t.Context(), o)
		if err == nil {
			l.Close()
			t.Errorf("%s: no error", name)
			continue
		}
		t.Logf("%s: %v", name, err)
	}
	dir := small(t, 16)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Skipf("remounting read-only: %v", err)
	}
	_, err := Open(t.Context(), Options{Dir: dir})
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("read-only directory: %v, want EROFS", err)
	}
}
