package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// kubernetesBin calls hack/cluster once for all tests of a binary.
var kubernetesBin = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "-C", filepath.Join(root, "hack", "cluster"), "run", ".", "build")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build Kubernetes: %w\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
})

// KubernetesBin returns the directory of the real kubectl, kube-apiserver, kube-controller-manager and
// etcd, which hack/cluster builds if necessary.
func KubernetesBin() (string, error) { return kubernetesBin() }

// Kubectl runs the real kubectl against one server.
type Kubectl struct {
	path, kubeconfig string
	env              []string
	// Namespace is the default namespace of commands.
	Namespace string
}

// NewKubectl returns a kubectl for the server and user of kubeconfig, with its own caches.
func NewKubectl(t testing.TB, kubeconfig, namespace string) *Kubectl {
	t.Helper()
	bin, err := KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	return &Kubectl{
		path:       filepath.Join(bin, "kubectl"),
		kubeconfig: kubeconfig,
		env:        append(os.Environ(), "HOME="+home, "KUBECACHEDIR="+filepath.Join(home, "cache"), "KUBECTL_EXTERNAL_DIFF=", "KUBECONFIG="),
		Namespace:  namespace,
	}
}

// KubectlResult is the result of one command.
type KubectlResult struct {
	Stdout, Stderr string
	Code           int
}

// Run executes a command; input is its standard input.
func (k *Kubectl) Run(t testing.TB, input string, args ...string) KubectlResult {
	t.Helper()
	return k.run(t, input, append(k.flags(), args...))
}

// flags select the server, the user and the namespace.
func (k *Kubectl) flags() []string {
	flags := []string{"--kubeconfig", k.kubeconfig}
	if k.Namespace != "" {
		flags = append(flags, "--namespace", k.Namespace)
	}
	return flags
}

func (k *Kubectl) run(t testing.TB, input string, args []string) KubectlResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.path, args...)
	cmd.Env = k.env
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (ctx.Err() != nil || !errors.As(err, &exit)) {
		t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return KubectlResult{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// Must executes a command that must succeed without output on standard error, and returns its output.
func (k *Kubectl) Must(t testing.TB, input string, args ...string) string {
	t.Helper()
	result := k.Run(t, input, args...)
	if result.Code != 0 || result.Stderr != "" {
		t.Fatalf("kubectl %s: exit code %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// MustFail executes a command that must fail with an error that contains want.
func (k *Kubectl) MustFail(t testing.TB, want, input string, args ...string) {
	t.Helper()
	result := k.Run(t, input, args...)
	if result.Code == 0 || !strings.Contains(result.Stderr, want) {
		t.Fatalf("kubectl %s: exit code %d, want an error with %q\nstdout: %s\nstderr: %s",
			strings.Join(args, " "), result.Code, want, result.Stdout, result.Stderr)
	}
}
