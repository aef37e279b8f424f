package backup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Without a running process, or after it was killed, nothing can be backed up.
func TestConnectToNone(t *testing.T) {
	dir := t.TempDir()
	if _, err := Connect(t.Context(), dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("empty directory: %v, want ErrNotRunning", err)
	}
	if err := os.WriteFile(filepath.Join(dir, endpointFile), []byte(filepath.Join(t.TempDir(), "socket")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(t.Context(), dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("killed: %v, want ErrNotRunning", err)
	}
}
