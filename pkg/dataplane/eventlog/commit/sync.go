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
	// syncFile syncs a file; nil stands for the function of that name. Tests make it fail.
	syncFile func(path string) error
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
		do := d.syncFile
		if do == nil {
			do = syncFile
		}
		if err := do(filepath.Join(d.dir, entry.Name())); err != nil {
			return fmt.Errorf("%w: sync: %w", ErrUnavailable, err)
		}
		newest = max(newest, number)
	}
	d.last = newest
	return nil
}

// rewrite writes anew and syncs the files that a sync may have failed for: the kernel takes their pages for written, and no
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
	// The server looks at files by their suffix.
	anew := path + ".rewritten"
	file, err := os.OpenFile(anew, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(anew))
	}
	if err := os.Rename(anew, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
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
