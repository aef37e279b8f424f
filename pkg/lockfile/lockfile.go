// Package lockfile keeps two processes from using one directory. It locks with etcd's fileutil, as etcd locks its own files:
// gofrs/flock uses another kind of lock (flock(2)), which does not exclude a process that runs an earlier release.
package lockfile

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

const (
	// Patience is the time that Acquire waits for a lock that another process holds. The kernel releases the lock of a
	// killed process a moment after the kill, and its successor may start before.
	Patience = 2 * time.Second
	// interval is the time between two attempts.
	interval = 20 * time.Millisecond
)

// ErrHeld is returned if another process holds the lock.
var ErrHeld = errors.New("another process holds the lock")

// Acquire locks a file, which it creates if necessary. The kernel releases the lock when the file is closed or the process
// ends. The error is ErrHeld if another process still holds the lock after Patience.
func Acquire(path string) (*fileutil.LockedFile, error) {
	for deadline := time.Now().Add(Patience); ; time.Sleep(interval) {
		file, err := fileutil.TryLockFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		switch {
		case err == nil:
			return file, nil
		case !errors.Is(err, fileutil.ErrLocked):
			return nil, fmt.Errorf("lock %s: %w", path, err)
		case time.Now().After(deadline):
			return nil, fmt.Errorf("lock %s: %w", path, ErrHeld)
		}
	}
}
