package etcd

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// reserveBytes is the disk space reserved for growth of the database.
	reserveBytes = 64 << 20
	// reserveEvery is the interval at which the reserve is replenished.
	reserveEvery = 5 * time.Second
)

// keepReserve reserves disk space for the database at path until stop is closed. etcd exits with the process when it cannot
// write, and a disk filled by others must cost no more than the events that cannot be stored. The write-ahead log needs no
// reserve, because etcd preallocates it. It has no effect on filesystems without preallocation.
func keepReserve(stop <-chan struct{}, path string) {
	ticker := time.NewTicker(reserveEvery)
	defer ticker.Stop()
	for short := false; ; {
		err := reserve(path)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, os.ErrNotExist) {
			return
		}
		if (err != nil) != short {
			short = err != nil
			if short {
				klog.ErrorS(err, "Failed to reserve disk space for database")
			} else {
				klog.InfoS("Reserved disk space for database")
			}
		}
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
	}
}
