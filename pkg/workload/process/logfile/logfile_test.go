//go:build linux

package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestLogs checks that a revision's output is where LogURL says.
func TestLogs(t *testing.T) {
	h := start(t, Options{})
	r := sample("logging", "exit", "CODE=1", "STDOUT=to stdout", "STDERR=to stderr")
	h.apply(r, 1)
	s := h.await(r, "the failure", failing)
	dir, ok := strings.CutPrefix(s.LogURL, "file://")
	if !ok {
		t.Fatalf("LogURL %s, want that of a file", s.LogURL)
	}
	for output, want := range map[string]string{"stdout": "to stdout\n", "stderr": "to stderr"} {
		files, err := filepath.Glob(filepath.Join(dir, "logging-*."+output+".log"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no log of %s in %s: %v", output, dir, err)
		}
		// One of them is that of the instance that has failed, others may be of its successors.
		if !slices.ContainsFunc(files, func(file string) bool {
			data, err := os.ReadFile(file)
			return err == nil && string(data) == want
		}) {
			t.Errorf("none of %v has %q", files, want)
		}
	}
}

// TestBoundLogs checks that a log that is too large starts anew while its process goes on, that its end is
// kept, and that a smaller one stays.
func TestBoundLogs(t *testing.T) {
	l := &logs{root: t.TempDir()}
	key := Key{Namespace: "default", Name: "rev"}
	c := &container{Container: &corev1.Container{Name: "c"}, serving: true}
	stdout, stderr, err := l.open(key, "rev-1", c)
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
	if err := l.bound(key, "rev-1"); err != nil {
		t.Fatalf("bound: %v", err)
	}
	fmt.Fprintln(stdout, "further")
	for output, want := range map[string]string{"stdout": "further\n", "stderr": "little\n"} {
		if data, err := os.ReadFile(l.path(key, "rev-1", c, output)); err != nil || string(data) != want {
			t.Errorf("%s has %d bytes, %v, want %q", output, len(data), err, want)
		}
	}
	kept, err := os.ReadFile(l.path(key, "rev-1", c, "stdout") + ".1")
	if err != nil || len(kept) != maxLogSize || !bytes.HasSuffix(kept, []byte("\nthe end\n")) {
		t.Errorf("%d bytes are kept, %v, want the last %d", len(kept), err, maxLogSize)
	}
}

// TestPrune checks that the logs of the last instances that have ended are kept, and those of live ones.
func TestPrune(t *testing.T) {
	l := &logs{root: t.TempDir()}
	key := Key{Namespace: "default", Name: "rev"}
	if err := os.MkdirAll(l.dir(key), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for n := range endedInstances + 3 {
		for _, output := range []string{".stdout.log", ".stderr.log", ".side.stdout.log", ".stdout.log.1"} {
			path := filepath.Join(l.dir(key), fmt.Sprintf("rev-%d%s", n, output))
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, now, now.Add(time.Duration(n)*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.prune(key, func(instance string) bool { return instance == "rev-0" }); err != nil {
		t.Fatalf("prune: %v", err)
	}
	left, err := os.ReadDir(l.dir(key))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 4*(endedInstances+1) {
		t.Errorf("%d files are left, want %d", len(left), 4*(endedInstances+1))
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
		strings.Repeat("x", 2*maxMessage): strings.Repeat("x", maxMessage),
	} {
		if got := lastLine([]byte(text)); got != want {
			t.Errorf("lastLine(%q) = %q, want %q", text, got, want)
		}
	}
}
