package app

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTracesWithoutDirectory covers that a replica without a writable data directory records no traces, and starts nevertheless.
func TestTracesWithoutDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := eventingOptions{dataDir: file}
	o.TraceRetention = time.Hour
	if traces := o.openTraces(t.Context()); traces != nil {
		t.Errorf("records are kept in %s", file)
	}
}
