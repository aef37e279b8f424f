package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWriteIsAtomic checks that all files of a volume are replaced at once, or none.
func TestWriteIsAtomic(t *testing.T) {
	dir := t.TempDir()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err.Error()
		}
		return string(content)
	}
	must := func(files map[string]file) {
		t.Helper()
		if err := write(dir, files); err != nil {
			t.Fatal(err)
		}
	}
	must(map[string]file{"a": {data: []byte("1")}, "b/c": {data: []byte("2")}})
	must(map[string]file{"a": {data: []byte("3")}, "d": {data: []byte("4")}})
	if read("a") != "3" || read("d") != "4" || !strings.Contains(read("b/c"), "no such file") {
		t.Errorf("files are %q, %q, %q", read("a"), read("d"), read("b/c"))
	}
	if err := write(dir, map[string]file{"a": {data: []byte("5")}, "a/b": {}}); err == nil {
		t.Error("a file is a directory")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 || read("a") != "3" {
		t.Errorf("%d entries, %v, a is %q", len(entries), err, read("a"))
	}
}
