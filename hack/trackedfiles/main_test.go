package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		name     string
		contents string
		mode     os.FileMode
		want     []string
	}{
		"source":              {name: "main.go", contents: "package main\n", mode: 0o644},
		"script":              {name: "run.sh", contents: "#!/bin/sh\n", mode: 0o755},
		"empty":               {name: "empty", mode: 0o755},
		"text that begins MZ": {name: "notes.txt", contents: "MZ is a magic number\n", mode: 0o644},
		"image":               {name: "picture.png", contents: "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", mode: 0o644},
		"exactly 2 MiB":       {name: "limit", contents: strings.Repeat("x", maxSize), mode: 0o644},
		"over 2 MiB":          {name: "large", contents: strings.Repeat("x", maxSize+1), mode: 0o644, want: []string{"large: 2097153 bytes"}},
		"ELF":                 {name: "cut", contents: string(program[:1000]), mode: 0o755, want: []string{"cut: an executable binary (ELF)"}},
		"ELF, not executable": {name: "cut", contents: string(program[:1000]), mode: 0o644, want: []string{"cut: an executable binary (ELF)"}},
		"unknown binary":      {name: "what", contents: "\x01\x00\x02", mode: 0o755, want: []string{"what: an executable binary (unknown format)"}},
		"name with a newline": {name: "a\nb", contents: "MZ\x90\x00\x03", mode: 0o644, want: []string{"a\nb: an executable binary (PE)"}},
		"large program": {name: "program", contents: string(program[:1000]) + strings.Repeat("\x00", maxSize), mode: 0o755,
			want: []string{"program: 2098152 bytes", "program: an executable binary (ELF)"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			git := func(args ...string) {
				command := exec.CommandContext(t.Context(), "git", args...)
				command.Dir = dir
				if out, err := command.CombinedOutput(); err != nil {
					t.Fatalf("git %v: %v: %s", args, err, out)
				}
			}
			git("init", "-q")
			path := filepath.Join(dir, test.name)
			if err := os.WriteFile(path, []byte(test.contents), test.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "other"), []byte("text\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			git("add", ".")
			// The index counts, not the directory.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			got, err := check(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(test.want) {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("got %q, want it to begin with %q", got[i], want)
				}
			}
		})
	}
}

func TestCheckOutsideARepository(t *testing.T) {
	t.Setenv("GIT_CEILING_DIRECTORIES", os.TempDir())
	if _, err := check(t.Context(), t.TempDir()); err == nil {
		t.Error("a directory without a repository was accepted")
	}
}
