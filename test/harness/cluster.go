package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/kubernetes"
)

// Cluster is a real host cluster on this machine: etcd, kube-apiserver with its aggregator, and
// kube-controller-manager. It has no nodes: Pods are accepted and never run.
type Cluster struct {
	// Kubeconfig is the file of its administrator, Address the address of this machine on which it listens.
	Kubeconfig string `json:"kubeconfig"`
	Address    string `json:"address"`
	// AuditLog is the host's audit log of requests for the served groups.
	AuditLog string `json:"auditLog"`

	// Admin and Host are clients of the administrator: for served kinds and dynamic requests, and for core kinds.
	Admin *Clients             `json:"-"`
	Host  kubernetes.Interface `json:"-"`

	guard *guard
}

// StartCluster builds and starts a cluster below dir, which Stop deletes. The cluster is also removed when
// the test binary ends in any other way: by a panic, a timeout, Ctrl-C or kill -9.
func StartCluster(dir string) (_ *Cluster, err error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "cluster")
	build := exec.Command("go", "-C", filepath.Join(root, "hack", "cluster"), "build", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build hack/cluster: %w\n%s", err, out)
	}
	home := filepath.Join(dir, "host")
	c := &Cluster{}
	if c.guard, err = newGuard(`"$1" down --dir "$2"; rm -rf -- "$3"`, program, home, dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if out, err := exec.Command(program, "up", "--dir", home).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("start cluster: %w\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(home, "cluster.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(content, c); err != nil {
		return nil, fmt.Errorf("read cluster.json: %w", err)
	}
	if c.Admin, err = ClientsOf(c.Kubeconfig); err != nil {
		return nil, err
	}
	if c.Host, err = kubernetes.NewForConfigAndClient(c.Admin.Config, c.Admin.HTTP); err != nil {
		return nil, err
	}
	return c, nil
}

// Stop stops the cluster and deletes its directory.
func (c *Cluster) Stop() error { return c.guard.release() }

// guard is a shell that cleans up once its standard input is closed, which happens however this process ends.
type guard struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// newGuard starts a guard that runs script with args.
func newGuard(script string, args ...string) (*guard, error) {
	cmd := exec.Command("sh", append([]string{"-c", "cat >/dev/null; " + script, "guard"}, args...)...)
	// A separate session: a terminal sends Ctrl-C to all processes of its session.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start cleanup shell: %w", err)
	}
	return &guard{cmd: cmd, stdin: stdin}, nil
}

// release makes the guard clean up now, and waits for it.
func (g *guard) release() error {
	g.stdin.Close()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("stop cluster: %w", err)
	}
	return nil
}
