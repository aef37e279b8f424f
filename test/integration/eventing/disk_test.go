package eventing

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// mount mounts a small in-memory filesystem until the test ends. The test is skipped without permission to mount.
func mount(t *testing.T, size string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
	if errors.Is(err, unix.EPERM) {
		t.Skipf("mounting a small filesystem: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill uses all space of a directory's filesystem until the returned function is called.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for size := 1 << 20; size >= 1<<12; {
		if _, err := file.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// outage is a server that cannot store events for some time.
type outage struct {
	*server
	namespace, address string
	sink               *harness.Sink
	subscriber         *harness.Subscriber
	acknowledged       []string
	posted             int
}

// newOutage starts a server with a Broker whose subscriber is down, so the log holds all events.
func newOutage(t *testing.T, dataDir string, args ...string) *outage {
	t.Helper()
	o := &outage{server: start(t, dataDir, args...), namespace: namespace(), sink: harness.NewSink(t)}
	o.subscriber = o.sink.At("/")
	o.address = o.broker(t, o.namespace, "orders")
	o.trigger(t, o.namespace, "orders", "orders", o.subscriber.URL, delivered(retries(1000, "PT0.5S")))
	o.sink.Stop()
	for range 100 {
		if a := o.post(t); a.code != http.StatusAccepted {
			t.Fatalf("before the outage an event got %d %s", a.code, a.body)
		}
	}
	return o
}

// post posts an event and records it if it is acknowledged.
func (o *outage) post(t *testing.T) *answer {
	t.Helper()
	e := event{id: fmt.Sprint(o.posted), kind: "order", data: `"` + strings.Repeat("x", 16<<10) + `"`}
	o.posted++
	a, err := post(t.Context(), o.address, e)
	if err != nil {
		t.Fatal(err)
	}
	if a.code == http.StatusAccepted {
		o.acknowledged = append(o.acknowledged, e.id)
	}
	return a
}

// refused waits until events are rejected, and asserts that they stay rejected during the outage and that the server does not
// exit. Space that failed attempts free when they are rewritten may admit other events.
func (o *outage) refused(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "events are refused", func() error {
		if a := o.post(t); a.code != http.StatusServiceUnavailable {
			return fmt.Errorf("an event got %d %s", a.code, a.body)
		}
		return nil
	})
	// The number of events that are accepted in between depends on how often attempts fail.
	const wanted = 10
	var body string
	ctx := bounded(t)
	for rejected, accepted := 0, 0; rejected < wanted; {
		a := o.post(t)
		switch {
		case ctx.Err() != nil:
			t.Fatalf("%d events were rejected and %d accepted, want %d rejected", rejected, accepted, wanted)
		case a.code == http.StatusAccepted:
			accepted++
			continue
		case a.code != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "":
			t.Errorf("an event got %d with Retry-After %q, want %d with one: %s",
				a.code, a.header.Get("Retry-After"), http.StatusServiceUnavailable, a.body)
		}
		rejected++
		body = a.body
	}
	t.Logf("senders receive %q", body)
	if _, err := o.Knative.EventingV1().Brokers(o.namespace).Get(t.Context(), "orders", metav1.GetOptions{}); err != nil {
		t.Errorf("the API does not serve: %v", err)
	}
	select {
	case <-o.Exited():
		t.Fatal("the server has ended")
	default:
	}
}

// recovers waits until events are accepted, and until all accepted ones are delivered.
func (o *outage) recovers(t *testing.T) {
	t.Helper()
	pid := o.PID()
	began := time.Now()
	harness.Eventually(t, "events are accepted", func() error {
		if a := o.post(t); a.code != http.StatusAccepted {
			return fmt.Errorf("an event got %d %s", a.code, a.body)
		}
		return nil
	})
	t.Logf("events were accepted %s after the outage", time.Since(began).Round(time.Millisecond))
	o.sink.Start(t)
	if err := o.subscriber.AwaitAll(bounded(t), o.acknowledged); err != nil {
		t.Errorf("acknowledged events are lost: %v", err)
	}
	if o.PID() != pid {
		t.Error("the server was started again")
	}
}

// TestFullDisk checks that senders receive Retry-After while the disk is full, and are accepted again without a restart once it
// has space. All acknowledged events are delivered (eventing Content Based Routing-3).
func TestFullDisk(t *testing.T) {
	for _, tt := range []struct {
		name string
		// log is true if the small filesystem holds only the event log.
		log bool
	}{{"of the event log", true}, {"of all data", false}} {
		t.Run(tt.name, func(t *testing.T) {
			disk := mount(t, "512m")
			dataDir := filepath.Join(disk, "data")
			if tt.log {
				dataDir = t.TempDir()
				if err := os.Symlink(disk, filepath.Join(dataDir, "events")); err != nil {
					t.Fatal(err)
				}
			}
			o := newOutage(t, dataDir)
			for range 3 {
				free := fill(t, disk)
				o.refused(t)
				free()
				harness.Eventually(t, "events are accepted", func() error {
					if a := o.post(t); a.code != http.StatusAccepted {
						return fmt.Errorf("an event got %d %s", a.code, a.body)
					}
					return nil
				})
			}
			o.recovers(t)
		})
	}
}

// chattr changes the immutable attribute of a directory and its content, which forbids every change, also to open files and for
// root.
func chattr(t *testing.T, change, dir string) {
	t.Helper()
	if output, err := exec.CommandContext(t.Context(), "chattr", "-R", change, dir).CombinedOutput(); err != nil {
		t.Skipf("chattr %s: %v\n%s", change, err, output)
	}
}

// TestReadOnlyLog checks that an event log that cannot be written behaves like a full one.
func TestReadOnlyLog(t *testing.T) {
	o := newOutage(t, t.TempDir())
	events := filepath.Join(o.dataDir, "events")
	if _, err := os.Stat(events); err != nil {
		t.Fatalf("the event log is not in the expected directory: %v", err)
	}
	chattr(t, "+i", events)
	writable := false
	t.Cleanup(func() {
		if !writable {
			_ = exec.Command("chattr", "-R", "-i", events).Run() // or the directory cannot be removed
		}
	})
	o.refused(t)
	chattr(t, "-i", events)
	writable = true
	o.recovers(t)
}

// TestUnwritableData checks that a server that cannot write its data logs that and exits.
func TestUnwritableData(t *testing.T) {
	disk := mount(t, "16m")
	if err := unix.Mount("", disk, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, dataDir string
	}{
		{"all data", filepath.Join(disk, "data")},
		{"the event log", func() string {
			dir := t.TempDir()
			if err := os.Symlink(disk, filepath.Join(dir, "events")); err != nil {
				t.Fatal(err)
			}
			return dir
		}()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			process, err := harness.StartProcess(nil, binary,
				"standalone", "--data-dir", tt.dataDir, "--secure-port", "0", "--gateway-port", "0", "--broker-port", "0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(process.Kill)
			code, err := process.ExitCode()
			if err != nil {
				t.Fatal(err)
			}
			if code == 0 || code == 2 {
				t.Errorf("exit code %d, want neither the code of success nor of a panic", code)
			}
			lines := strings.Split(strings.TrimSpace(process.Log()), "\n")
			if last := lines[len(lines)-1]; !strings.Contains(last, "read-only file system") || !strings.Contains(last, tt.dataDir) {
				t.Errorf("the last line of output must name directory and reason, but is %q", last)
			}
		})
	}
}
