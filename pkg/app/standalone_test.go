package app

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The access log is a file, which is closed at the end, or standard error, which is not closed.
func TestAccessLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "access.log")
	log := openAccessLog(path)
	if _, err := fmt.Fprintln(log, "a line"); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "a line\n" {
		t.Errorf("the log has %q, error %v", got, err)
	}
	if err := openAccessLog("-").Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stderr.Stat(); err != nil {
		t.Errorf("standard error is closed: %v", err)
	}
}
