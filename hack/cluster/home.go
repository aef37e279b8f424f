//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// home is the directory of one cluster: an absolute path that holds all its data, logs and pid files.
type home string

// markerFile marks a directory as the home of a cluster. Commands on the same home lock it.
const markerFile = "cluster.lock"

// info is the content of cluster.json, for tests. The file exists only once the cluster was ready.
type info struct {
	Kubeconfig string `json:"kubeconfig"`
	// Bin is the directory of the programs, kubectl among them.
	Bin string `json:"bin"`
	// Address is the address of kube-apiserver: this machine's own address, not loopback. An EndpointSlice for a server outside
	// the cluster must use it, because it may not hold loopback.
	Address  string `json:"address"`
	AuditLog string `json:"auditLog"`

	// The fields below are set if the cluster has a node. Node is its name.
	Node string `json:"node,omitempty"`
	// Registry is the host:port of a registry without authentication that serves plain HTTP to this machine and to
	// Pods. It also listens on the same port of 127.0.0.1. Its images are deleted with the cluster.
	Registry        string        `json:"registry,omitempty"`
	PrivateRegistry *registryInfo `json:"privateRegistry,omitempty"`
	PodRange        string        `json:"podRange,omitempty"`
	ServiceRange    string        `json:"serviceRange,omitempty"`
	// Containerd is the socket of the node's containerd.
	Containerd string `json:"containerd,omitempty"`
}

// registryInfo is a registry that needs a password.
type registryInfo struct {
	Address  string `json:"address"`
	User     string `json:"user"`
	Password string `json:"password"`
}

func (h home) path(elem ...string) string {
	return filepath.Join(append([]string{string(h)}, elem...)...)
}

func (h home) pidFile(name string) string { return h.path(name + ".pid") }

// daemons lists the programs that run for a control plane, or for a node too, in the order in which they stop: each before the
// programs that it depends on.
func daemons(node bool) []string {
	controlPlane := []string{"kube-controller-manager", "kube-apiserver", "etcd"}
	if !node {
		return controlPlane
	}
	return slices.Concat([]string{"kubelet", "kube-proxy", "coredns", "kube-scheduler", "containerd", keeperCommand}, controlPlane)
}

// claim creates the directory if necessary and locks it against other commands. It rejects a directory that holds anything
// other than a cluster, because clear deletes by name.
func (h home) claim(ctx context.Context, progress io.Writer) (*fileLock, error) {
	entries, err := os.ReadDir(string(h))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the cluster's directory: %w", err)
	}
	if _, err := os.Stat(h.path(markerFile)); len(entries) > 0 && err != nil {
		return nil, fmt.Errorf("%s is not the directory of a cluster: it must be empty, or made by this program", h)
	}
	return h.lock(ctx, progress)
}

func (h home) lock(ctx context.Context, progress io.Writer) (*fileLock, error) {
	return acquireLock(ctx, h.path(markerFile), "waiting for another command on "+string(h), progress)
}

// running returns the names of the running and of the stopped daemons.
func (h home) running(node bool) (alive, dead []string, err error) {
	for _, name := range daemons(node) {
		id, found, err := readPIDFile(h.pidFile(name))
		if err != nil {
			return nil, nil, err
		}
		if found && id.running() {
			alive = append(alive, name)
		} else {
			dead = append(dead, name)
		}
	}
	return alive, dead, nil
}

// lockKilled locks the directory if no daemon of the cluster runs. It returns nil if one does, or if another command has the lock.
func (h home) lockKilled() (*fileLock, error) {
	lock, err := tryLock(h.path(markerFile))
	if lock == nil || err != nil {
		return nil, err
	}
	alive, _, err := h.running(true)
	if err != nil || len(alive) > 0 {
		lock.release()
		return nil, err
	}
	return lock, nil
}

// stopAll stops the daemons one after the other, and deletes the pid file of each that ended. Then it restores the state of the
// machine from before the node.
func (h home) stopAll(ctx context.Context, progress io.Writer) error {
	var errs []error
	for _, name := range daemons(true) {
		id, found, err := readPIDFile(h.pidFile(name))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !found {
			continue
		}
		wasRunning, started := id.running(), time.Now()
		// The data is deleted anyway, so the grace period is short.
		if err := id.stop(10 * time.Second); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", name, err))
			continue
		}
		if wasRunning {
			fmt.Fprintf(progress, "stopped %s (%.1f s)\n", name, time.Since(started).Seconds())
		}
		errs = append(errs, os.Remove(h.pidFile(name)))
	}
	// An interrupted setup is undone too.
	return errors.Join(append(errs, restoreMachine(context.WithoutCancel(ctx), h))...)
}

// clear deletes the files of a cluster by name: the directory may hold files of the user too.
func (h home) clear() error {
	leftovers := []string{"etcd", "pki", "kubeconfig", "controller-manager.kubeconfig",
		"audit-policy.yaml", "audit.log", "flexvolume", "cluster.json", "node"}
	for _, name := range daemons(true) {
		leftovers = append(leftovers, name+".log", name+".stopped")
	}
	for _, name := range leftovers {
		if err := os.RemoveAll(h.path(name)); err != nil {
			return fmt.Errorf("delete the cluster's data: %w", err)
		}
	}
	return nil
}

// down stops the cluster and deletes its data, and the directory if it is empty then.
func down(ctx context.Context, h home, progress io.Writer) error {
	if _, err := os.Stat(h.path(markerFile)); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(progress, "there is no cluster in %s\n", h)
		// Its node may still exist if the directory was deleted manually.
		return restoreMachine(ctx, h)
	}
	lock, err := h.lock(ctx, progress)
	if err != nil {
		return err
	}
	defer lock.release()
	if err := h.stopAll(ctx, progress); err != nil {
		return err
	}
	if err := h.clear(); err != nil {
		return err
	}
	if err := os.Remove(h.path(markerFile)); err != nil {
		return fmt.Errorf("delete the cluster's marker: %w", err)
	}
	// This fails if the directory has files of the user.
	_ = os.Remove(string(h))
	return nil
}

// readInfo returns the description of the cluster that up wrote.
func (h home) readInfo() (info, error) {
	content, err := os.ReadFile(h.path("cluster.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return info{}, fmt.Errorf("there is no cluster in %s: start one with 'cluster up --dir %[1]s'", h)
	}
	if err != nil {
		return info{}, fmt.Errorf("read cluster.json: %w", err)
	}
	var i info
	if err := json.Unmarshal(content, &i); err != nil {
		return info{}, fmt.Errorf("read %s: %w", h.path("cluster.json"), err)
	}
	return i, nil
}

// writeJSON writes a file atomically.
func writeJSON(path string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	if err := os.WriteFile(path+".tmp", append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(path+".tmp", path)
}
