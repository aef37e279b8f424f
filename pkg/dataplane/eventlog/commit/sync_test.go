package eventlog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A sync takes the files that may have been written to since the last one, and fails if it cannot.
func TestSync(t *testing.T) {
	d := disk{dir: t.TempDir()}
	block := func(name string) string { return filepath.Join(d.dir, name+blockSuffix) }
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(block(name), []byte("frame"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		made, gone []string
		want       int
	}{
		{made: []string{"1", "2"}, want: 2},
		{want: 2},
		// All in the newest is done, and others came.
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
	// What cannot be opened for writing cannot be synced.
	if err := os.Mkdir(block("11"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.sync(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want %v", err, ErrUnavailable)
	}
	if err := os.RemoveAll(d.dir); err != nil {
		t.Fatal(err)
	}
	if err := d.sync(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a directory: got %v, want %v", err, ErrUnavailable)
	}
}

// After a sync failed the server is restarted, and what it had written is written anew: the next sync of the same files
// would succeed without having written anything. Records that are appended meanwhile wait for it, and none is lost.
func TestSyncFailure(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	s := stream(t, l, "a")
	appendAll(t, s, "", "before")
	before := l.server.Current()
	block := filepath.Join(s.disk.dir, "1"+blockSuffix)
	inode := func() uint64 {
		var stat unix.Stat_t
		if err := unix.Stat(block, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	old, failures := inode(), 0
	s.mu.Lock()
	s.disk.syncFile = func(path string) error {
		if failures++; failures == 1 {
			return unix.EIO
		}
		return syncFile(path)
	}
	s.mu.Unlock()
	appendAll(t, s, "", "failed at first")
	if l.server.Current() == before {
		t.Error("the server was not restarted")
	}
	if inode() == old {
		t.Error("the file that could not be synced was not written anew")
	}
	appendAll(t, s, "", "after")
	k, _ := consume(t, s, "", ConsumeOptions{})
	seen := map[string]bool{}
	for !seen["before"] || !seen["failed at first"] || !seen["after"] {
		f := k.next(t)
		for _, r := range f.Records {
			seen[string(r)] = true
		}
		f.Done()
	}
}
