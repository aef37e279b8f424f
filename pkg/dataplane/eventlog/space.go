package eventlog

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	defaultMinFree = 64 << 20
	spaceFreshness = 100 * time.Millisecond
)

// space knows whether a filesystem has room.
type space struct {
	dir     string
	minimum int64 // bytes; 0 means the default

	looked atomic.Int64 // when, in nanoseconds
	full   atomic.Pointer[error]
}

// look returns an error that wraps ErrFull if there was too little room within the last 100 ms.
func (s *space) look() error {
	now, looked := time.Now().UnixNano(), s.looked.Load()
	if now-looked >= int64(spaceFreshness) && s.looked.CompareAndSwap(looked, now) {
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
	if free < minimum {
		return fmt.Errorf("%w: %d MiB are free on the filesystem of '%s', less than %d MiB", ErrFull, free>>20, s.dir, minimum>>20)
	}
	return nil
}
