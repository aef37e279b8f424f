package commit

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// A sync includes the files that may have been written to since the last one, and fails if one cannot be synced.
func TestSync(t *testing.T) {
	d := disk{dir: t.TempDir()}
	block := func(name string) string { return filepath.Join(d.dir, name+blockSuffix) }
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(block(name), []byte("segment"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		made, gone []string
		want       int
	}{
		{made: []string{"1", "2"}, want: 2},
		{want: 2},
		// The segments of the newest file were acknowledged, and new files were created.
		{made: []string{"3", "10"}, gone: []string{"2"}, want: 10},
		{made: []string{"index"}, gone: []string{"10"}, want: 10},
	} {
		for _, name := range step.made {
			write(name)
		}
		for _, name := range step.gone {
			if err := os.Remove(block(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.sync(); err != nil || d.last != step.want {
			t.Errorf("got %v, last %d, want %d", err, d.last, step.want)
		}
	}
	// Files that cannot be opened for writing cannot be synced.
	if err := os.Mkdir(block("11"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.sync(); !errors.Is(err, server.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, server.ErrUnavailable)
	}
	if err := os.RemoveAll(d.dir); err != nil {
		t.Fatal(err)
	}
	if err := d.sync(); !errors.Is(err, server.ErrUnavailable) {
		t.Errorf("without a directory: got %v, want %v", err, server.ErrUnavailable)
	}
}

// The newest file stays open between syncs while the directory has the same files. New files are synced at once, also after a time in which none
// was created, and a file that was replaced is synced by its name.
func TestSyncOpenFile(t *testing.T) {
	var synced []string
	d := disk{dir: t.TempDir(), syncFile: func(file *os.File) error {
		byName, err := os.Stat(file.Name())
		if err != nil {
			return err
		}
		opened, err := file.Stat()
		if err == nil && !os.SameFile(byName, opened) {
			t.Errorf("%s was replaced, but the old file is synced", file.Name())
		}
		synced = append(synced, filepath.Base(file.Name()))
		return err
	}}
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte("segment"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sync := func(want ...string) {
		t.Helper()
		synced = nil
		if err := d.sync(); err != nil || !slices.Equal(synced, want) {
			t.Errorf("got %v and synced %v, want %v", err, synced, want)
		}
	}
	changed := func(ago time.Duration) {
		t.Helper()
		at := time.Now().Add(-ago)
		if err := os.Chtimes(d.dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	// unchanged makes the last change of the directory so old that the next one is noticed by its time.
	unchanged := func() {
		t.Helper()
		changed(2 * settled)
	}
	write("1.blk")
	write("2.blk")
	// A process that is slow may list the files later than settled.
	changed(-time.Hour)
	sync("1.blk", "2.blk")
	if !d.changed.IsZero() {
		t.Error("the directory counts as unchanged, although another file may have been created at the time of its last change")
	}
	unchanged()
	sync("2.blk")
	file := d.file
	sync("2.blk")
	if d.file != file {
		t.Error("the newest file was opened again although the directory has the same files")
	}
	write("3.blk")
	sync("2.blk", "3.blk")
	unchanged()
	sync("3.blk")
	write("3.tmp")
	if err := os.Rename(filepath.Join(d.dir, "3.tmp"), filepath.Join(d.dir, "3.blk")); err != nil {
		t.Fatal(err)
	}
	sync("3.blk")
	unchanged()
	sync("3.blk")
	if err := os.Remove(filepath.Join(d.dir, "3.blk")); err != nil {
		t.Fatal(err)
	}
	sync()
	if d.file != nil {
		t.Error("a file that was removed is still open")
	}
}

// After a failed sync the server is restarted, and its files are rewritten: the next sync of the same files would succeed
// without writing anything. Records that are appended meanwhile wait for the restart, and none is lost.
func TestSyncFailure(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	w := writer(t, s, dir, "a")
	appendAll(t, w, "before")
	before := s.Current()
	block := filepath.Join(w.disk.dir, "1"+blockSuffix)
	inode := func() uint64 {
		var stat unix.Stat_t
		if err := unix.Stat(block, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	old, failures := inode(), 0
	w.mu.Lock()
	w.disk.syncFile = func(file *os.File) error {
		if failures++; failures == 1 {
			return unix.EIO
		}
		return file.Sync()
	}
	w.mu.Unlock()
	appendAll(t, w, "failed at first")
	if s.Current() == before {
		t.Error("the server was not restarted")
	}
	if inode() == old {
		t.Error("the file that could not be synced was not rewritten")
	}
	appendAll(t, w, "after")
	seen := map[string]bool{}
	for _, records := range stored(t, w) {
		for _, r := range records {
			seen[string(r)] = true
		}
	}
	if !seen["before"] || !seen["failed at first"] || !seen["after"] {
		t.Errorf("stored records are %v, want all three", seen)
	}
}
