package harness

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// buildTool returns a function that builds the program of the module hack/<name> once for all tests of a binary, and returns its file.
func buildTool(name string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		root, err := Root()
		if err != nil {
			return "", err
		}
		binary := filepath.Join(root, "bin", name)
		// Build to a temporary file and rename it: another test binary may run, or build, the same program concurrently.
		fresh := fmt.Sprintf("%s.%d", binary, os.Getpid())
		defer os.Remove(fresh)
		build := exec.Command("go", "build", "-o", fresh, ".")
		build.Dir = filepath.Join(root, "hack", name)
		if output, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", name, err, output)
		}
		return binary, os.Rename(fresh, binary)
	})
}

// runTool runs a program that stops when its input ends, until the test ends. When it has started it prints a line of JSON, which is decoded into
// started. The returned reader has the rest of its output.
func runTool(t testing.TB, build func() (string, error), started any, args ...string) *bufio.Reader {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(binary, args...)
	var log strings.Builder
	command.Stderr = &log
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not StdoutPipe, which Wait closes while another goroutine may read from it.
	output, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout = end
	err = command.Start()
	end.Close()
	if err != nil {
		output.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		if err := command.Wait(); err != nil || t.Failed() {
			t.Logf("%s ended with %v, and logged\n%s", filepath.Base(binary), err, log.String())
		}
		output.Close()
	})
	reader := bufio.NewReader(output)
	line, err := reader.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, started)
	}
	if err != nil {
		t.Fatal(err)
	}
	return reader
}
