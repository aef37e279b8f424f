package commit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// blockSuffix is the suffix of the server's message files, after their number.
const blockSuffix = ".blk"

// settled is the age of the last change of a directory from which later changes have another time: file systems note times in steps of
// some milliseconds.
const settled = 100 * time.Millisecond

// disk syncs the message files of a stream of the embedded server. The server could do so itself, but would also sync every
// removal of a segment: twice the work, which delays appends. Acknowledged messages are written to the files; a removal
// that does not survive a loss of power causes a redelivery.
type disk struct {
	dir string
	// last is the number of the newest file at the last sync: older ones are no longer written to. 0 before that.
	last int
	// changed is the time of the last change of the directory if it has had the same files since the last sync, else zero.
	changed time.Time
	// file is the newest file, open, or nil.
	file *os.File
	// syncFile syncs a file; nil means its method Sync. Tests make it fail.
	syncFile func(*os.File) error
}

// sync syncs all messages that the server has acknowledged.
func (d *disk) sync() error {
	err := d.syncNewest()
	if err != nil {
		// A file whose sync failed is rewritten.
		d.close()
		return fmt.Errorf("%w: sync: %w", server.ErrUnavailable, err)
	}
	return nil
}

// close closes the open file. The next sync opens it.
func (d *disk) close() {
	if d.file != nil {
		d.file.Close()
	}
	d.file, d.changed = nil, time.Time{}
}

// syncNewest syncs the newest file, and the others that may have been written to since the last sync.
func (d *disk) syncNewest() error {
	info, err := os.Stat(d.dir)
	if err != nil {
		return err
	}
	changed := info.ModTime()
	if d.file != nil && changed.Equal(d.changed) {
		return d.syncOpen()
	}
	d.close()
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	var numbers []int
	for _, entry := range entries {
		if number := numberOf(entry); number >= d.last {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	for _, number := range numbers {
		if err := d.open(number); err != nil {
			return err
		}
		if d.file != nil {
			if err := d.syncOpen(); err != nil {
				return err
			}
		}
		d.last = max(d.last, number)
	}
	if time.Since(changed) > settled {
		d.changed = changed
	}
	return nil
}

// open opens a file instead of the open one, unless it was removed because all its segments are acknowledged.
func (d *disk) open(number int) error {
	d.close()
	file, err := os.OpenFile(filepath.Join(d.dir, strconv.Itoa(number)+blockSuffix), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	d.file = file
	return err
}

// syncOpen syncs the open file.
func (d *disk) syncOpen() error {
	if d.syncFile != nil {
		return d.syncFile(d.file)
	}
	return d.file.Sync()
}

// numberOf returns the number of a message file, or -1 for other files.
func numberOf(entry fs.DirEntry) int {
	name, isBlock := strings.CutSuffix(entry.Name(), blockSuffix)
	number, err := strconv.Atoi(name)
	if !isBlock || err != nil {
		return -1
	}
	return number
}

// rewrite rewrites and syncs the files whose sync may have failed: the kernel treats their pages as written, so that no
// later sync would write them. No server may have the files open.
func (d *disk) rewrite() error {
	entries, err := os.ReadDir(d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if numberOf(entry) < d.last {
			continue
		}
		err = errors.Join(err, rewriteFile(filepath.Join(d.dir, entry.Name())))
	}
	return err
}

func rewriteFile(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// The server ignores files with another suffix.
	rewritten := path + ".rewritten"
	file, err := os.OpenFile(rewritten, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(rewritten))
	}
	if err := os.Rename(rewritten, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
