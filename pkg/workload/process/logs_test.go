//go:build linux

package process

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLogs checks that a revision's output is at LogURL.
func TestLogs(t *testing.T) {
	h := start(t, Options{})
	r := sample("logging", "exit", "CODE=1", "STDOUT=to stdout", "STDERR=to stderr")
	h.apply(r, 1)
	s := h.await(r, "the failure", failing)
	dir, ok := strings.CutPrefix(s.LogURL, "file://")
	if !ok {
		t.Fatalf("LogURL %s, want the URL of a file", s.LogURL)
	}
	for output, want := range map[string]string{"stdout": "to stdout\n", "stderr": "to stderr"} {
		files, err := filepath.Glob(filepath.Join(dir, "logging-*."+output+".log"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no log of %s in %s: %v", output, dir, err)
		}
		// One file belongs to the failed backend, others may belong to its replacements.
		if !slices.ContainsFunc(files, func(file string) bool {
			data, err := os.ReadFile(file)
			return err == nil && string(data) == want
		}) {
			t.Errorf("none of %v has %q", files, want)
		}
	}
}
