package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// tool returns the path of a program of Prometheus: one of $PATH, or one that hack/prometheus.sh has downloaded. Without it the test is
// skipped, except if PROMETHEUS=required, as in CI.
func tool(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	downloaded, err := filepath.Glob(filepath.Join(cache, "knative-apiserver", "prometheus-*", "usr", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if len(downloaded) > 0 {
		return downloaded[len(downloaded)-1]
	}
	if os.Getenv("PROMETHEUS") == "required" {
		t.Fatalf("%s is not installed: run hack/prometheus.sh", name)
	}
	t.Skipf("%s is not installed: run hack/prometheus.sh, or install the package prometheus", name)
	return ""
}

// artifact returns the path of a file in artifacts/monitoring.
func artifact(t *testing.T, name string) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "artifacts", "monitoring", name)
}
