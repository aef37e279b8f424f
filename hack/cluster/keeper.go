//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// keeperCommand is the command of this program that a cluster with a node runs as a daemon: the keeper holds the node's mount
// namespace, serves the registries and creates volumes. It is not for users.
const keeperCommand = "keeper"

// keeperConfig is the configuration of the keeper.
type keeperConfig struct {
	// Dir holds the node's data.
	Dir string `json:"dir"`
	// Registry and PrivateRegistry are the addresses that each one listens on.
	Registry        []string `json:"registry"`
	PrivateRegistry []string `json:"privateRegistry"`
	// APIServer is its URL, CA, Cert and Key are for a connection with full permissions, in PEM.
	APIServer string `json:"apiServer"`
	CA        []byte `json:"ca"`
	Cert      []byte `json:"cert"`
	Key       []byte `json:"key"`
}

func (n *node) keeperConfig(creds *credentials) keeperConfig {
	return keeperConfig{
		Dir:             n.path(),
		Registry:        []string{n.registry(), loopback(n.registryPort)},
		PrivateRegistry: []string{n.privateRegistry(), loopback(n.privateRegistryPort)},
		APIServer:       n.apiServerURL(),
		CA:              creds.ca.cert,
		Cert:            creds.admin.cert,
		Key:             creds.admin.key,
	}
}

// hiddenDirs are the directories of the machine that appear empty to the programs of the node, which write files with fixed
// names there.
func hiddenDirs() []string { return []string{"/run", "/var/lib", "/var/log"} }

// keep runs the keeper in a new mount namespace until ctx is canceled.
func keep(ctx context.Context, configFile string) error {
	content, err := os.ReadFile(configFile)
	if err != nil {
		return fmt.Errorf("read the keeper's configuration: %w", err)
	}
	var c keeperConfig
	if err := json.Unmarshal(content, &c); err != nil {
		return fmt.Errorf("read %s: %w", configFile, err)
	}
	if err := mountNode(c.Dir); err != nil {
		return err
	}
	admin, err := newClient(pair{cert: c.CA}, pair{cert: c.Cert, key: c.Key})
	if err != nil {
		return err
	}
	// The server may end a watch at any time.
	admin.Timeout = 0
	provisioner := &provisioner{client: admin, server: c.APIServer, dir: filepath.Join(c.Dir, "volumes")}
	go provisioner.run(ctx)

	failed := make(chan error, 1)
	for _, r := range []struct {
		name      string
		addresses []string
		wrap      func(http.Handler) http.Handler
	}{
		{"registry", c.Registry, func(h http.Handler) http.Handler { return h }},
		{"private-registry", c.PrivateRegistry, requirePassword},
	} {
		dir := filepath.Join(c.Dir, r.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("create the directory of a registry: %w", err)
		}
		// The log would have one line per request.
		handler := r.wrap(registry.New(registry.Logger(log.New(io.Discard, "", 0)),
			registry.WithBlobHandler(registry.NewDiskBlobHandler(dir))))
		for _, address := range r.addresses {
			listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
			if err != nil {
				return fmt.Errorf("listen as %s: %w", r.name, err)
			}
			server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
			go func() { failed <- server.Serve(listener) }()
		}
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serve a registry: %w", err)
	}
}

// mountNode sets up the mount namespace of the node, in which this process must be alone so far. The namespace ends with the
// last process of the node.
func mountNode(dir string) error {
	for _, hidden := range hiddenDirs() {
		if err := syscall.Mount("tmpfs", hidden, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount the node's %s: %w", hidden, err)
		}
	}
	// Files that Pods write are on disk. The kubelet's directory has its usual name, so that the paths of its sockets are short enough.
	for _, bind := range []struct{ source, target string }{
		{filepath.Join(dir, "kubelet"), "/var/lib/kubelet"},
		{filepath.Join(dir, "logs"), "/var/log/pods"},
	} {
		if err := errors.Join(os.MkdirAll(bind.source, 0o755), os.MkdirAll(bind.target, 0o755)); err != nil {
			return fmt.Errorf("create the node's directories: %w", err)
		}
		if err := syscall.Mount(bind.source, bind.target, "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", bind.target, err)
		}
	}
	// Within the namespace, so that volumes of Pods can show later mounts.
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the node's mounts: %w", err)
	}
	return nil
}

// requirePassword rejects requests without the credentials of the private registry.
func requirePassword(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user == registryUser && password == registryPassword {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="cluster"`)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`))
	})
}
