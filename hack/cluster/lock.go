//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// fileLock is an exclusive lock on a file, held until release or until the process ends.
type fileLock struct{ file *os.File }

// acquireLock creates the file at path and its directory if necessary, and locks it. While another process holds the lock, it
// writes the reason to progress and waits until ctx is canceled.
func acquireLock(ctx context.Context, path, why string, progress io.Writer) (*fileLock, error) {
	told := false
	for {
		lock, err := tryLock(path)
		if lock != nil || err != nil {
			return lock, err
		}
		if !told {
			fmt.Fprintln(progress, why)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock on %s: %w", path, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tryLock is like acquireLock, but returns nil if another process holds the lock.
func tryLock(path string) (*fileLock, error) {
	for {
		// In the loop, because the former holder may have deleted both.
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("create the directory of a lock file: %w", err)
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open lock file: %w", err)
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		// A lock on a file that was deleted concurrently (by cluster down) would exclude no other process.
		if err == nil && isFile(file, path) {
			return &fileLock{file: file}, nil
		}
		file.Close()
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

func (l *fileLock) release() { l.file.Close() }

// isFile reports whether path still names the open file.
func isFile(file *os.File, path string) bool {
	opened, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(opened, named)
}
