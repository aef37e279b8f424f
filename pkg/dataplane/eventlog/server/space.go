package eventlog

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultMinFree = 64 << 20
	// A look at the filesystem counts for spaceFreshness, or until a sixteenth of the least free space is written.
	spaceFreshness = 100 * time.Millisecond
	spaceParts     = 16
)

// space knows whether a filesystem has room.
type space struct {
	dir     string
	minimum int64 // bytes; 0 means the default

	looked atomic.Int64 // when, in nanoseconds
	// unseen is how many bytes may be written before the next look.
	unseen atomic.Int64
	full   atomic.Pointer[error]
}

// look returns an error that wraps ErrFull if the last look at the filesystem found too little room. It looks again
// after 100 ms, or when the bytes that are about to be written make a difference.
func (s *space) look(bytes int64) error {
	now, looked := time.Now().UnixNano(), s.looked.Load()
	due := now-looked >= int64(spaceFreshness) || s.unseen.Add(-bytes) < 0
	if due && s.looked.CompareAndSwap(looked, now) {
		if err := s.lookNow(); err != nil {
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

// size returns the size of the filesystem, 0 if that is not known.
func (s *space) size() int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return 0
	}
	return int64(fs.Blocks) * fs.Bsize
}

func (s *space) lookNow() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.dir, &fs); err != nil {
		return fmt.Errorf("%w: free space of '%s': %w", ErrUnavailable, s.dir, err)
	}
	block := uint64(fs.Bsize)
	free, minimum := fs.Bavail*block, uint64(s.minimum)
	if minimum == 0 {
		minimum = min(defaultMinFree, fs.Blocks*block/16)
	}
	s.unseen.Store(int64(minimum / spaceParts))
	if free < minimum {
		return fmt.Errorf("%w: %d MiB are free on the filesystem of '%s', less than %d MiB", ErrFull, free>>20, s.dir, minimum>>20)
	}
	return nil
}
