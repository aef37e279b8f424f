package etcd

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reserve preallocates space beyond the end of a file without changing its length.
func reserve(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, info.Size()+reserveBytes); err != nil {
		return fmt.Errorf("reserve %d MiB beyond the end of %s: %w", reserveBytes>>20, path, err)
	}
	return nil
}
