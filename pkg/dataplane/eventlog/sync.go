package eventlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// blockSuffix ends the names of the files that the server keeps the messages of a stream in, after their number.
const blockSuffix = ".blk"

// disk syncs what a stream of the embedded server has written. The server could do so itself, but would sync every
// removal of a frame as well: twice as much work, which holds up what is to be stored. What it acknowledged it has
// written to its files; a removal that does not survive a loss of power makes a frame come twice.
type disk struct {
	dir string
	// last is the number of the newest file at the last sync: older ones are not written to any more. 0 before that.
	last int
}

// sync returns nil when all that the server has acknowledged is on disk.
func (d *disk) sync() error {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("%w: look for what to sync: %w", ErrUnavailable, err)
	}
	newest := d.last
	for _, entry := range entries {
		name, isBlock := strings.CutSuffix(entry.Name(), blockSuffix)
		number, err := strconv.Atoi(name)
		if !isBlock || err != nil || number < d.last {
			continue
		}
		if err := syncFile(filepath.Join(d.dir, entry.Name())); err != nil {
			return fmt.Errorf("%w: sync: %w", ErrUnavailable, err)
		}
		newest = max(newest, number)
	}
	d.last = newest
	return nil
}

// syncFile syncs a file, unless it is gone, which a file is when all in it is done.
func syncFile(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
