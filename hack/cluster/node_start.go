//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// startWithNode runs the control plane and the node, and waits until both are ready. It returns i with the
// description of the node.
func startWithNode(ctx context.Context, c controlPlane, creds *credentials, admin *client, i info, progress io.Writer) (info, error) {
	n, err := planNode(ctx, c, i.Bin)
	if err != nil {
		return info{}, err
	}
	if err := n.prepareMachine(ctx); err != nil {
		return info{}, err
	}
	if err := n.writeFiles(creds); err != nil {
		return info{}, err
	}
	var controlPlane, runtime, rest []*process
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		controlPlane, err = c.start(groupCtx, creds, admin, n.bin, progress)
		return err
	})
	group.Go(func() (err error) {
		runtime, err = n.startRuntime(groupCtx)
		return err
	})
	if err := group.Wait(); err != nil {
		return info{}, err
	}
	for _, p := range controlPlane {
		if err := n.cgroups.add(p.pid); err != nil {
			return info{}, err
		}
	}
	fmt.Fprintf(progress, "starting the node, with pods in %s and Services in %s\n", n.pods, n.services)
	if rest, err = n.startRest(runtime[0]); err != nil {
		return info{}, err
	}
	processes := slices.Concat(controlPlane, runtime, rest)
	if err := runCommand(ctx, n.program("kubectl"), "", "--kubeconfig="+i.Kubeconfig, "--cache-dir="+n.path("kubectl"),
		"create", "--validate=false", "-f", n.path("manifests.yaml")); err != nil {
		return info{}, fmt.Errorf("create initial objects of the cluster: %w", err)
	}
	if err := waitFor(ctx, "the node is ready", processes, func(ctx context.Context) error { return n.probeReady(ctx, admin) }); err != nil {
		return info{}, err
	}
	if err := waitFor(ctx, "names resolve", processes, n.probeDNS); err != nil {
		return info{}, err
	}
	fmt.Fprintf(progress, "registries: %s, and %s for user %s with password %s\n",
		n.registry(), n.privateRegistry(), registryUser, registryPassword)
	return n.addTo(i), nil
}

// startRuntime starts the keeper and, in its mount namespace, containerd.
func (n *node) startRuntime(ctx context.Context) ([]*process, error) {
	// Not by its path: the binary of go run is deleted when this command exits.
	command := exec.Command("/proc/self/exe", keeperCommand, n.path("keeper.json"))
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	keeper, err := n.startCommand(keeperCommand, command)
	if err != nil {
		return nil, err
	}
	// It serves once its mounts exist.
	registry := &client{http.Client{Transport: &http.Transport{}}}
	if err := waitFor(ctx, "the registry serves", []*process{keeper}, registry.probe("http://"+n.registry()+"/v2/")); err != nil {
		return nil, err
	}
	containerd, err := n.startInside(keeper, "containerd", "containerd", "--config="+n.path("containerd.toml"), "--log-level=warn")
	if err != nil {
		return nil, err
	}
	processes := []*process{keeper, containerd}
	err = waitFor(ctx, "containerd serves", processes, func(ctx context.Context) error {
		return runCommand(ctx, "ctr", "", "--address="+n.containerdSocket(), "version")
	})
	if err != nil {
		return nil, err
	}
	return processes, n.importPause(ctx)
}

// startRest starts the programs that need kube-apiserver.
func (n *node) startRest(keeper *process) ([]*process, error) {
	kubelet, err := n.startInside(keeper, "kubelet", n.program("kubelet"), n.kubeletArgs()...)
	if err != nil {
		return nil, err
	}
	processes := []*process{kubelet}
	for _, daemon := range []struct {
		name string
		args []string
	}{
		{"kube-proxy", n.proxyArgs()},
		{"coredns", []string{"-conf", n.path("Corefile")}},
		{"kube-scheduler", n.schedulerArgs()},
	} {
		p, err := n.startCommand(daemon.name, exec.Command(n.program(daemon.name), daemon.args...))
		if err != nil {
			return nil, err
		}
		processes = append(processes, p)
	}
	return processes, nil
}

func (n *node) program(name string) string { return filepath.Join(n.bin, name) }

// startCommand runs a daemon of the node in its cgroup, so that it is found even without its pid file.
func (n *node) startCommand(name string, command *exec.Cmd) (*process, error) {
	p, err := n.home.startCommand(name, command)
	if err != nil {
		return nil, err
	}
	return p, n.cgroups.add(p.pid)
}

// startInside runs a daemon in the keeper's mount namespace.
func (n *node) startInside(keeper *process, name, program string, args ...string) (*process, error) {
	enter := []string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", keeper.pid), "--", program}
	return n.startCommand(name, exec.Command("nsenter", append(enter, args...)...))
}

// probeReady fails until the node is ready.
func (n *node) probeReady(ctx context.Context, admin *client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.apiServerURL()+"/api/v1/nodes/"+nodeName, nil)
	if err != nil {
		return err
	}
	response, err := admin.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var object struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string } `json:"conditions"`
		} `json:"status"`
	}
	if err := json.NewDecoder(response.Body).Decode(&object); err != nil {
		return err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			return nil
		}
		if condition.Type == "Ready" {
			return errors.New(condition.Message)
		}
	}
	return errors.New("the kubelet has not registered its node")
}

// probeDNS fails until the DNS address of Pods answers, which requires kube-proxy and CoreDNS.
func (n *node) probeDNS(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, netip.AddrPortFrom(n.dns, 53).String())
	}}
	_, err := resolver.LookupNetIP(ctx, "ip4", "kubernetes.default.svc.cluster.local.")
	return err
}
