package variants

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/natstest"
)

// overlay is a kustomization.yaml that builds on split, external the prerequisites: an etcd and a NATS server.
var (
	//go:embed testdata/kustomization.yaml
	overlay string
	//go:embed testdata/external.yaml
	external string
)

// TestSingle checks the variant in which one Pod serves everything.
func TestSingle(t *testing.T) {
	install(t, "single")
	smoke(t)
}

// TestSplit checks the variant with a Deployment for each component, each with only its own rights, on an etcd and a NATS
// server that require certificates.
func TestSplit(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The names of both in the manifests of split.
	ca, cert, key := natstest.Certificates(t, "etcd.knative-system.svc", "nats.knative-system.svc")
	for name, path := range map[string]string{"ca.crt": ca, "tls.crt": cert, "tls.key": key} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		write(name, string(content))
	}
	split, err := filepath.Rel(dir, filepath.Join(root, "artifacts", "install", "split"))
	if err != nil {
		t.Fatal(err)
	}
	write("kustomization.yaml", strings.ReplaceAll(overlay, "SPLIT", split))
	write("external.yaml", strings.NewReplacer(
		"ETCD", push(t, "etcd", "go.etcd.io/etcd/server/v3"),
		"NATS", push(t, "nats-server", "github.com/nats-io/nats-server/v2"),
	).Replace(external))
	install(t, dir)
	smoke(t)
}

// push builds a program and pushes it as an image to the cluster's registry, and returns its reference.
func push(t *testing.T, name, packagePath string) string {
	t.Helper()
	binary, reference := filepath.Join(t.TempDir(), name), node.Registry+"/"+name+":e2e"
	for _, args := range [][]string{
		{"go", "build", "-o", binary, packagePath},
		{"go", "run", "./hack/image", "--binary", binary, "--push", reference},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return reference
}
