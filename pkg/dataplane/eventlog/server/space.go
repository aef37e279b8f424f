package server

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultMinFree = 64 << 20
	// A check of the filesystem is valid for spaceFreshness, or until a sixteenth of the minimum is written.
	spaceFreshness = 100 * time.Millisecond
	spaceParts     = 16
)

// Space checks the free space of a filesystem.
type Space struct {
	dir     string
	minimum int64 // bytes; 0 means the default

	checked atomic.Int64 // time of the last check, in nanoseconds
	// unchecked is the number of bytes that may be written before the next check.
	unchecked atomic.Int64
	full      atomic.Pointer[error]
}

// NewSpace checks the filesystem of dir for a minimum of free bytes; 0 means 64 MiB, or less on filesystems below 1 GiB.
func NewSpace(dir string, minimum int64) *Space { return &Space{dir: dir, minimum: minimum} }

// Check returns an error that wraps ErrFull if the last check found too little free space. The filesystem is checked every
// 100 ms, and before the bytes that are about to be written could change the result.
func (s *Space) Check(bytes int64) error {
	now, checked := time.Now().UnixNano(), s.checked.Load()
	due := now-checked >= int64(spaceFreshness) || s.unchecked.Add(-bytes) < 0
	if due && s.checked.CompareAndSwap(checked, now) {
		if err := s.check(); err != nil {
			s.full.Store(&err)
		} else {
			s.full.Store(nil)
		}
	}
	if err := s.full.Load(); err != nil {
		return *err
	}
	return nil
}

// Size returns the size of the filesystem, 0 if it is unknown.
func (s *Space) Size() int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return 0
	}
	return int64(fs.Blocks) * fs.Bsize
}

func (s *Space) check() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return fmt.Errorf("%w: free space of '%s': %w", ErrUnavailable, s.dir, err)
	}
	block := uint64(fs.Bsize)
	free, minimum := fs.Bavail*block, uint64(s.minimum)
	if minimum == 0 {
		minimum = min(defaultMinFree, fs.Blocks*block/16)
	}
	s.unchecked.Store(int64(minimum / spaceParts))
	if free < minimum {
		return fmt.Errorf("%w: %d MiB are free on the filesystem of '%s', less than %d MiB", ErrFull, free>>20, s.dir, minimum>>20)
	}
	return nil
}
