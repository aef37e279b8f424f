package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a separate filesystem, which can be full or slow.
type disk struct{ dir string }

// diskBytes is enough for an hour: the access log grows by 7 MiB a minute until it rotates, and etcd reserves space for its log.
const diskBytes = 4 << 30

// newDisk mounts a filesystem in a file until the test ends. Without the permission to mount it returns nil.
func newDisk(t *testing.T) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	dir := t.TempDir()
	image, d := filepath.Join(dir, "image"), &disk{filepath.Join(dir, "disk")}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, diskBytes), os.Mkdir(d.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, d.dir}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Logf("without faults of the disk: %v: %v\n%s", args, err, out)
			return nil
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", d.dir).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v\n%s", d.dir, err, out)
		}
	})
	return d
}

// fill uses all space for some time.
func (d *disk) fill(t *testing.T, duration time.Duration) {
	t.Helper()
	if err := fill(filepath.Join(d.dir, "filler"), duration); err != nil {
		t.Error(err)
	}
}

// fill reserves all space of the filesystem of a new file for some time.
func fill(path string, duration time.Duration) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	end := time.After(duration)
	for offset, size := int64(0), int64(diskBytes); size >= 1<<12; {
		switch err := unix.Fallocate(int(file.Fd()), 0, offset, size); {
		case err == nil:
			offset += size
		case errors.Is(err, unix.ENOSPC):
			size /= 2
		case !errors.Is(err, unix.EINTR):
			return errors.Join(fmt.Errorf("reserve %d bytes: %w", size, err), os.Remove(path))
		}
	}
	<-end
	return os.Remove(path)
}

// slow blocks all writes for three quarters of some time. A separate process freezes and thaws the filesystem, so that it does
// not stay frozen if the test is killed.
func (d *disk) slow(t *testing.T, duration time.Duration) {
	t.Helper()
	for began := time.Now(); time.Since(began) < duration; {
		out, err := exec.Command("sh", "-c", `fsfreeze -f "$1" && sleep 0.15 && fsfreeze -u "$1" && sleep 0.05`, "sh", d.dir).CombinedOutput()
		if err != nil {
			t.Errorf("freeze %s: %v\n%s", d.dir, err, out)
			return
		}
	}
}
