package harness

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Main is the TestMain of a package whose tests share a server. It calls start with an empty directory, use with the server, runs the tests,
// stops the server and exits. If a test fails it prints the end of the server's output.
func Main(m *testing.M, start func(dir string) (*Standalone, error), use func(*Standalone) error) {
	code, err := runShared(m, start, use)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runShared(m *testing.M, start func(dir string) (*Standalone, error), use func(*Standalone) error) (code int, err error) {
	dir, err := os.MkdirTemp("", filepath.Base(os.Args[0])+"-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	server, err := start(dir)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, server.Stop())
		if code != 0 {
			log := server.Log()
			fmt.Fprintf(os.Stderr, "the end of the shared server's output:\n%s\n", log[max(0, len(log)-8192):])
		}
	}()
	if err := use(server); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
