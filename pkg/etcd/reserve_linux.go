package etcd

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// reserve has the filesystem allocate space behind the end of a file, which keeps its length.
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
		return fmt.Errorf("reserving %d MiB behind %s: %w", reserveBytes>>20, path, err)
	}
	return nil
}
