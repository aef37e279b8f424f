// Package natstest runs NATS servers with JetStream as separate processes on loopback, for tests: one node or a
// cluster, plain or with TLS and credentials. Tests can kill and restart them.
package natstest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/test/port"
)

const (
	startTimeout = time.Minute
	pollEvery    = 50 * time.Millisecond
)

// Options configure the servers.
type Options struct {
	// Nodes is their number, 0 for 1. Several form a cluster.
	Nodes int
	// Config is added to each server's configuration file, such as "max_payload: 2MB".
	Config string
	// CertFile, KeyFile and CAFile enable mutual TLS of clients and servers.
	CertFile, KeyFile, CAFile string
	// ConnectOptions are for the connection that waits for the servers.
	ConnectOptions []nats.Option
	// NoJetStream disables JetStream.
	NoJetStream bool
}

// Servers are running NATS servers.
type Servers struct {
	Nodes []*Node

	t       testing.TB
	options Options
}

// Node is one server.
type Node struct {
	// URL is the address of the node, for clients.
	URL string

	servers *Servers
	config  string
	cmd     *exec.Cmd
	done    chan struct{}
}

// binary is the server, built once per test process.
var binary = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "knative-apiserver-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// A separate name allows several tests to build at the same time; the last one stays.
	path := filepath.Join(dir, "nats-server")
	building := fmt.Sprintf("%s.%d", path, os.Getpid())
	out, err := exec.Command("go", "build", "-o", building, "github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build nats-server: %w: %s", err, out)
	}
	return path, os.Rename(building, path)
})

// Start runs servers until the test ends, and waits until JetStream accepts streams.
func Start(t testing.TB, o Options) *Servers {
	t.Helper()
	bin, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	o.Nodes = max(o.Nodes, 1)
	s := &Servers{t: t, options: o}
	clients, routes := ports(t, o.Nodes), ports(t, o.Nodes)
	scheme := "nats"
	if o.CertFile != "" {
		scheme = "tls"
	}
	for i := range o.Nodes {
		dir := t.TempDir()
		var config strings.Builder
		fmt.Fprintf(&config, "server_name: n%d\nlisten: \"127.0.0.1:%s\"\n", i, clients[i])
		if !o.NoJetStream {
			fmt.Fprintf(&config, "jetstream { store_dir: %q, max_file_store: 10GB, max_memory_store: 1GB }\n", filepath.Join(dir, "store"))
		}
		if o.CertFile != "" {
			fmt.Fprintf(&config, "tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\n", o.CertFile, o.KeyFile, o.CAFile)
		}
		if o.Nodes > 1 {
			all := make([]string, 0, o.Nodes)
			for _, route := range routes {
				all = append(all, fmt.Sprintf("%q", "nats://"+net.JoinHostPort("127.0.0.1", route)))
			}
			fmt.Fprintf(&config, "cluster { name: test, listen: \"127.0.0.1:%s\", routes: [%s] }\n", routes[i], strings.Join(all, ", "))
		}
		config.WriteString(o.Config + "\n")
		path := filepath.Join(dir, "nats.conf")
		if err := os.WriteFile(path, []byte(config.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		node := &Node{URL: scheme + "://" + net.JoinHostPort("127.0.0.1", clients[i]), servers: s, config: path}
		s.Nodes = append(s.Nodes, node)
		node.cmd, node.done = node.run(bin)
		t.Cleanup(node.Kill)
	}
	s.Wait()
	return s
}

// URL has the addresses of all nodes.
func (s *Servers) URL() string {
	urls := make([]string, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		urls = append(urls, n.URL)
	}
	return strings.Join(urls, ",")
}

// Wait waits until all running servers respond and JetStream works.
func (s *Servers) Wait() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := s.try(ctx)
		if err == nil {
			return
		}
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
			s.t.Fatalf("NATS servers do not become ready: %v", err)
		}
	}
}

// try creates a stream on all nodes, and deletes it.
func (s *Servers) try(ctx context.Context) error {
	nc, err := nats.Connect(s.URL(), append([]nats.Option{nats.Timeout(time.Second)}, s.options.ConnectOptions...)...)
	if err != nil {
		return err
	}
	defer nc.Close()
	if s.options.NoJetStream {
		return nil
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "natstest", Storage: jetstream.MemoryStorage, Replicas: len(s.Nodes)}); err != nil {
		return err
	}
	return js.DeleteStream(ctx, "natstest")
}

// Kill ends the node like a crash (SIGKILL). It does nothing if the node does not run.
func (n *Node) Kill() {
	if n.cmd == nil {
		return
	}
	// It may have exited already.
	_ = n.cmd.Process.Kill()
	<-n.done
	n.cmd = nil
}

// Restart starts a killed node on the same port and store. Servers.Wait waits until it runs.
func (n *Node) Restart() {
	n.servers.t.Helper()
	bin, err := binary()
	if err != nil {
		n.servers.t.Fatal(err)
	}
	n.cmd, n.done = n.run(bin)
}

func (n *Node) run(bin string) (*exec.Cmd, chan struct{}) {
	t := n.servers.t
	t.Helper()
	cmd := exec.Command(bin, "-c", n.config)
	log, err := os.OpenFile(n.config+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		// The error only reports the signal that killed it.
		_ = cmd.Wait()
		close(done)
	}()
	return cmd, done
}

// ports returns different ports of loopback that are free.
func ports(t testing.TB, n int) []string {
	t.Helper()
	free := make([]string, 0, n)
	for range n {
		found, err := port.Stable()
		if err != nil {
			t.Fatal(err)
		}
		free = append(free, strconv.Itoa(found))
	}
	return free
}
