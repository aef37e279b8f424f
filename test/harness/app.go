package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// appBinary builds the sample application once for all tests of a binary. Its path depends only on the repository, so that the
// next test binary reuses it unless its source changed.
var appBinary = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(root, "bin", "test-app")
	// Build to a temporary file and rename it: another test binary may run, or build, the same program concurrently.
	fresh := fmt.Sprintf("%s.%d", binary, os.Getpid())
	defer os.Remove(fresh)
	build := exec.Command("go", "build", "-o", fresh, "./test/app")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sample application: %w\n%s", err, output)
	}
	return binary, os.Rename(fresh, binary)
})

// AppBinary builds the sample application (test/app) and returns its path.
func AppBinary(t testing.TB) string {
	t.Helper()
	binary, err := appBinary()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}
