package etcd

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A reserve occupies space on the disk without changing the length of the file.
func TestReserve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := reserve(path); err != nil {
		t.Fatalf("reserve: %v", err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Size != 4 {
		t.Errorf("the file has %d bytes, want 4", stat.Size)
	}
	if allocated := stat.Blocks * 512; allocated < reserveBytes {
		t.Errorf("%d bytes are allocated, want at least %d", allocated, reserveBytes)
	}
}

// Without a database, reserve does nothing.
func TestReserveWithoutDatabase(t *testing.T) {
	if err := reserve(filepath.Join(t.TempDir(), "db")); !os.IsNotExist(err) {
		t.Errorf("reserve: %v, want an error that the file does not exist", err)
	}
}
