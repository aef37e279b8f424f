package eventlog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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
