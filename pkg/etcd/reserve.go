package etcd

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// reserveBytes is what the database may grow by while the disk has no space left.
	reserveBytes = 64 << 20
	// reserveEvery is how often the reserve is made up again.
	reserveEvery = 5 * time.Second
)

// keepReserve keeps space on the disk for the database at path until stop is closed: etcd ends the whole process when it
// cannot write, and a disk that others have filled is to cost no more than the events that find no room. Its log needs no
// such reserve, for etcd allocates that ahead. Filesystems that allocate no space ahead give none.
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
				klog.ErrorS(err, "The disk of the database is full or fails")
			} else {
				klog.InfoS("The disk of the database has space again")
			}
		}
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
	}
}
