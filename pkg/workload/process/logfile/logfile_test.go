package logfile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestBound checks that a log that is too large is truncated while its process writes, that its end is kept, and that a
// smaller log is unchanged.
func TestBound(t *testing.T) {
	l := &Files{Root: t.TempDir()}
	key := types.NamespacedName{Namespace: "default", Name: "rev"}
	stdout, stderr, err := l.Open(key, "rev-1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	defer stderr.Close()
	chunk := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	for range maxLogSize/len(chunk) + 1 {
		if _, err := stdout.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(stdout, "the end")
	fmt.Fprintln(stderr, "little")
	if err := l.Bound(key, "rev-1"); err != nil {
		t.Fatalf("bound: %v", err)
	}
	fmt.Fprintln(stdout, "further")
	for output, want := range map[string]string{"stdout": "further\n", "stderr": "little\n"} {
		if data, err := os.ReadFile(l.path(key, "rev-1", "", output)); err != nil || string(data) != want {
			t.Errorf("%s has %d bytes, %v, want %q", output, len(data), err, want)
		}
	}
	kept, err := os.ReadFile(l.path(key, "rev-1", "", "stdout") + ".1")
	if err != nil || len(kept) != maxLogSize || !bytes.HasSuffix(kept, []byte("\nthe end\n")) {
		t.Errorf("%d bytes are kept, %v, want the last %d", len(kept), err, maxLogSize)
	}
}

// TestPrune checks that the logs of the most recently stopped backends and of live ones are kept.
func TestPrune(t *testing.T) {
	l := &Files{Root: t.TempDir()}
	key := types.NamespacedName{Namespace: "default", Name: "rev"}
	if err := os.MkdirAll(l.Dir(key), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for n := range endedBackends + 3 {
		for _, output := range []string{".stdout.log", ".stderr.log", ".side.stdout.log", ".stdout.log.1"} {
			path := filepath.Join(l.Dir(key), fmt.Sprintf("rev-%d%s", n, output))
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, now, now.Add(time.Duration(n)*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Prune(key, func(backend string) bool { return backend == "rev-0" }); err != nil {
		t.Fatalf("prune: %v", err)
	}
	left, err := os.ReadDir(l.Dir(key))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 4*(endedBackends+1) {
		t.Errorf("%d files are left, want %d", len(left), 4*(endedBackends+1))
	}
	for _, entry := range left {
		if name := entry.Name(); strings.HasPrefix(name, "rev-1.") || strings.HasPrefix(name, "rev-2.") {
			t.Errorf("%s is left, want the oldest deleted", name)
		}
	}
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"\n \n":                           "",
		"one":                             "one",
		"one\ntwo\n":                      "two",
		"one\r\ntwo \r\n\n":               "two",
		"bad \xff\xfe utf8":               "bad  utf8",
		strings.Repeat("x", 2*maxMessage): strings.Repeat("x", maxMessage-3) + "...",
	} {
		if got := lastLine([]byte(text)); got != want {
			t.Errorf("lastLine(%q) = %q, want %q", text, got, want)
		}
	}
}
