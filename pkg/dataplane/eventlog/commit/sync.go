package commit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// blockSuffix is the suffix of the server's message files, after their number.
const blockSuffix = ".blk"

// disk syncs the message files of a stream of the embedded server. The server could do so itself, but would also sync every
// removal of a segment: twice the work, which delays appends. Acknowledged messages are written to the files; a removal
// that does not survive a loss of power causes a redelivery.
type disk struct {
	dir string
	// last is the number of the newest file at the last sync: older ones are no longer written to. 0 before that.
	last int
	// syncFile syncs a file; nil means the function of the same name. Tests make it fail.
	syncFile func(path string) error
}

// sync syncs all messages that the server has acknowledged.
func (d *disk) sync() error {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("%w: list files to sync: %w", server.ErrUnavailable, err)
	}
	newest := d.last
	for _, entry := range entries {
		name, isBlock := strings.CutSuffix(entry.Name(), blockSuffix)
		number, err := strconv.Atoi(name)
		if !isBlock || err != nil || number < d.last {
			continue
		}
		do := d.syncFile
		if do == nil {
			do = syncFile
		}
		if err := do(filepath.Join(d.dir, entry.Name())); err != nil {
			return fmt.Errorf("%w: sync: %w", server.ErrUnavailable, err)
		}
		newest = max(newest, number)
	}
	d.last = newest
	return nil
}

// rewrite rewrites and syncs the files whose sync may have failed: the kernel treats their pages as written, so that no
// later sync would write them. No server may have the files open.
func (d *disk) rewrite() error {
	entries, err := os.ReadDir(d.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		name, isBlock := strings.CutSuffix(entry.Name(), blockSuffix)
		number, parseErr := strconv.Atoi(name)
		if !isBlock || parseErr != nil || number < d.last {
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

// syncFile syncs a file, unless it was removed because all its segments are acknowledged.
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
