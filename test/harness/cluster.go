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
	// Kubeconfig is the file for its administrator, Address where it listens: this machine's own address.
	Kubeconfig string `json:"kubeconfig"`
	Address    string `json:"address"`
	// AuditLog is what the host records about requests for our groups.
	AuditLog string `json:"auditLog"`

	// Admin and Host reach it as administrator: for our kinds and anything dynamic, and for core kinds.
	Admin *Clients             `json:"-"`
	Host  kubernetes.Interface `json:"-"`

	guard *guard
}

// StartCluster builds and starts a cluster below dir, which Stop deletes. The cluster also goes away when
// the test binary ends in any other way: by a panic, a timeout, Ctrl-C or kill -9.
func StartCluster(dir string) (_ *Cluster, err error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "cluster")
	build := exec.Command("go", "-C", filepath.Join(root, "hack", "cluster"), "build", "-o", program, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building hack/cluster: %w\n%s", err, out)
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
		return nil, fmt.Errorf("starting a cluster: %w\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(home, "cluster.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(content, c); err != nil {
		return nil, fmt.Errorf("reading cluster.json: %w", err)
	}
	if c.Admin, err = ClientsOf(c.Kubeconfig); err != nil {
		return nil, err
	}
	if c.Host, err = kubernetes.NewForConfigAndClient(c.Admin.Config, c.Admin.HTTP); err != nil {
		return nil, err
	}
	return c, nil
}

// Stop ends the cluster and deletes its directory.
func (c *Cluster) Stop() error { return c.guard.release() }

// guard is a shell that cleans up once its standard input ends, which it does however this process ends.
type guard struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// newGuard starts a guard that will run script with args.
func newGuard(script string, args ...string) (*guard, error) {
	cmd := exec.Command("sh", append([]string{"-c", "cat >/dev/null; " + script, "guard"}, args...)...)
	// A session of its own: Ctrl-C in a terminal is sent to all processes of the terminal's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting a shell that cleans up: %w", err)
	}
	return &guard{cmd: cmd, stdin: stdin}, nil
}

// release has the guard clean up now, and waits for it.
func (g *guard) release() error {
	g.stdin.Close()
	if err := g.cmd.Wait(); err != nil {
		return fmt.Errorf("stopping the cluster: %w", err)
	}
	return nil
}
