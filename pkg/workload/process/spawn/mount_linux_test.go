package spawn

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestSubPathFollowsNoLinkOutOfItsVolume checks that a link that a process creates in its empty volume does not give other
// containers access to files outside.
func TestSubPathFollowsNoLinkOutOfItsVolume(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := open(&Mount{Volume: dir, SubPath: "link", Writable: true}); err == nil || !strings.Contains(err.Error(), "path escapes") {
		t.Errorf("error is %v", err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open(&Mount{Volume: dir, SubPath: "pipe"}); err == nil || !strings.Contains(err.Error(), "neither a file nor a directory") {
		t.Errorf("error is %v", err)
	}
}
