package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// pluginDir builds the plugin once for all tests of a binary.
var pluginDir = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	if output, err := exec.Command("make", "-C", root, "plugin").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build plugin of kubectl: %w\n%s", err, output)
	}
	return filepath.Join(root, "bin"), nil
})

// Plugin is the real kubectl with the plugin knative.
type Plugin struct{ *Kubectl }

// NewPlugin builds the plugin, and returns a kubectl with it like NewKubectl.
func NewPlugin(t testing.TB, kubeconfig, namespace string) *Plugin {
	t.Helper()
	dir, err := pluginDir()
	if err != nil {
		t.Fatal(err)
	}
	k := NewKubectl(t, kubeconfig, namespace)
	path := dir + string(os.PathListSeparator) + filepath.Dir(k.path) + string(os.PathListSeparator) + os.Getenv("PATH")
	k.env = append(k.env, "PATH="+path, "KUBECONFIG="+kubeconfig)
	return &Plugin{k}
}

// Run executes a command of the plugin.
func (p *Plugin) Run(t testing.TB, args ...string) KubectlResult {
	t.Helper()
	return p.run(t, "", p.command(args))
}

// command returns the command line: kubectl accepts no flags before the name of a plugin.
func (p *Plugin) command(args []string) []string {
	all := append([]string{"knative"}, args...)
	return append(all, p.flags()...)
}

// Start starts a command of the plugin that continues until it is stopped, at the latest when the test ends.
func (p *Plugin) Start(t testing.TB, args ...string) *Process {
	t.Helper()
	return p.start(t, p.path, p.command(args)...)
}

// Shell starts a command line that finds kubectl and the plugin, with the server and user as default.
func (p *Plugin) Shell(t testing.TB, command string) *Process {
	t.Helper()
	// The shell is replaced, so that signals reach the command.
	return p.start(t, "sh", "-c", "exec "+command)
}

func (p *Plugin) start(t testing.TB, path string, args ...string) *Process {
	t.Helper()
	process, err := StartProcess(p.env, path, args...)
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	return process
}

// Complete returns the completions of kubectl for a command line, the last argument of which has been begun.
func (p *Plugin) Complete(t testing.TB, args ...string) KubectlResult {
	t.Helper()
	return p.run(t, "", append([]string{"__complete", "knative"}, args...))
}
