package commit

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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

// After a failed sync the server is restarted, and its files are rewritten: the next sync of the same files would succeed
// without writing anything. Records that are appended meanwhile wait for the restart, and none is lost.
func TestSyncFailure(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	w := writer(t, s, dir)
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
	w.disk.syncFile = func(path string) error {
		if failures++; failures == 1 {
			return unix.EIO
		}
		return syncFile(path)
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
