// Package lockfile keeps two processes from using one directory.
package lockfile

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
)

const (
	// Patience is how long Acquire waits for a lock that another process holds. The kernel frees the locks of a
	// process that is killed when it has taken it down, which takes a moment; who starts another one in its place
	// does not wait for that.
	Patience = 2 * time.Second
	// interval is the time between two tries.
	interval = 20 * time.Millisecond
)

// ErrHeld tells that another process holds the lock.
var ErrHeld = errors.New("another process holds the lock")

// Acquire takes the lock of a file, which it makes if need be. The kernel frees it when the file is closed or the
// process ends, however it ends. The error is ErrHeld if another process still has it after Patience.
func Acquire(path string) (*fileutil.LockedFile, error) {
	for deadline := time.Now().Add(Patience); ; time.Sleep(interval) {
		file, err := fileutil.TryLockFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
		switch {
		case err == nil:
			return file, nil
		case !errors.Is(err, fileutil.ErrLocked):
			return nil, fmt.Errorf("locking %s: %w", path, err)
		case time.Now().After(deadline):
			return nil, fmt.Errorf("locking %s: %w", path, ErrHeld)
		}
	}
}
