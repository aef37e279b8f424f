//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// startTimeout bounds the wait for a started cluster; a healthy start takes under 10 seconds.
const startTimeout = 3 * time.Minute

// upOptions configure the cluster to start.
type upOptions struct {
	bindAddress string // of kube-apiserver; empty for the first that fits
	node        bool
}

// up ensures that the cluster in h runs and is ready; an existing node is kept even if none is requested. An incomplete
// cluster, or one that never became ready, is deleted and started again.
func up(ctx context.Context, h home, o upOptions, progress io.Writer) (info, error) {
	if o.node {
		if err := checkMachine(h); err != nil {
			return info{}, err
		}
		if err := installPackages(ctx, progress); err != nil {
			return info{}, err
		}
	}
	bin, err := build(ctx, progress, programs(o.node))
	if err != nil {
		return info{}, err
	}
	lock, err := h.claim(ctx, progress)
	if err != nil {
		return info{}, err
	}
	defer lock.release()
	alive, dead, err := h.running(o.node)
	if err != nil {
		return info{}, err
	}
	if len(dead) == 0 {
		if known, err := h.readInfo(); err == nil {
			return known, nil
		}
	}
	if _, err := h.readInfo(); err == nil || len(alive) > 0 {
		fmt.Fprintf(progress, "the cluster in %s is not complete (not running: %s): starting it again without its data\n",
			h, strings.Join(dead, ", "))
	}
	if err := h.stopAll(ctx, progress); err != nil {
		return info{}, err
	}
	if err := h.clear(); err != nil {
		return info{}, err
	}
	if o.node {
		if err := claimMachine(ctx, progress); err != nil {
			return info{}, err
		}
	}

	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	started := time.Now()
	i, err := startAll(ctx, h, bin, o, progress)
	if err != nil {
		// The logs stay for the user to read; the next up or down deletes them.
		return info{}, errors.Join(err, h.stopAll(ctx, progress))
	}
	fmt.Fprintf(progress, "the cluster is ready (%.1f s)\n", time.Since(started).Seconds())
	return i, nil
}

// startAll writes the cluster's files, starts its programs and waits until they are ready.
func startAll(ctx context.Context, h home, bin string, o upOptions, progress io.Writer) (info, error) {
	c, err := plan(h, o.bindAddress)
	if err != nil {
		return info{}, err
	}
	c.node = o.node
	creds, err := newCredentials(c.address, c.services.Addr().Next(), time.Now())
	if err != nil {
		return info{}, err
	}
	admin, err := newClient(creds.ca, creds.admin)
	if err != nil {
		return info{}, err
	}
	if err := c.writeFiles(creds); err != nil {
		return info{}, err
	}
	i := info{Kubeconfig: h.path("kubeconfig"), Bin: bin, Address: c.address.String(), AuditLog: h.path("audit.log")}
	if o.node {
		i, err = startWithNode(ctx, c, creds, admin, i, progress)
	} else {
		_, err = c.start(ctx, creds, admin, bin, progress)
	}
	if err != nil {
		return info{}, err
	}
	return i, writeJSON(h.path("cluster.json"), i)
}

// start runs the control plane and waits until it is ready.
func (c controlPlane) start(ctx context.Context, creds *credentials, admin *client, bin string, progress io.Writer) ([]*process, error) {
	etcd, err := c.home.start(bin, "etcd", c.etcdArgs()...)
	if err != nil {
		return nil, err
	}
	processes := []*process{etcd}
	etcdClient, err := newClient(creds.etcdCA, creds.etcdClient)
	if err != nil {
		return nil, err
	}
	if err := waitFor(ctx, "etcd is healthy", processes, etcdClient.probe(c.etcdHTTPURL()+"/health")); err != nil {
		return nil, err
	}

	fmt.Fprintf(progress, "starting kube-apiserver on %s\n", c.apiServerURL())
	apiServer, err := c.home.start(bin, "kube-apiserver", c.apiServerArgs()...)
	if err != nil {
		return nil, err
	}
	processes = append(processes, apiServer)
	if err := waitFor(ctx, "kube-apiserver is ready", processes, admin.probe(c.apiServerURL()+"/readyz")); err != nil {
		return nil, err
	}

	// Not earlier: before the default roles exist, the controllers' first calls would be rejected.
	controllerManager, err := c.home.start(bin, "kube-controller-manager", c.controllerManagerArgs()...)
	if err != nil {
		return nil, err
	}
	processes = append(processes, controllerManager)
	// Pods are rejected until it exists, so its presence shows that the controllers run.
	return processes, waitFor(ctx, "the service account 'default' exists", processes,
		admin.probe(c.apiServerURL()+"/api/v1/namespaces/default/serviceaccounts/default"))
}

// plan chooses the addresses and ports of a cluster.
func plan(h home, bindAddress string) (controlPlane, error) {
	machine, err := machinePrefixes()
	if err != nil {
		return controlPlane{}, err
	}
	c := controlPlane{home: h}
	if c.address, err = apiServerAddress(bindAddress, machine); err != nil {
		return controlPlane{}, err
	}
	if c.services, err = serviceRange(machine); err != nil {
		return controlPlane{}, err
	}
	public, err := freePorts(c.address.String(), 1)
	if err != nil {
		return controlPlane{}, err
	}
	loopback, err := freePorts("127.0.0.1", 2)
	if err != nil {
		return controlPlane{}, err
	}
	c.apiServerPort, c.etcdPort, c.etcdHTTPPort = public[0], loopback[0], loopback[1]
	return c, nil
}

// writeFiles writes all files that the programs read. The audit log is created too, so that a reader finds it.
func (c controlPlane) writeFiles(creds *credentials) error {
	files := map[string][]byte{
		"audit-policy.yaml":             []byte(auditPolicy),
		"audit.log":                     nil,
		"kubeconfig":                    kubeconfig(c.apiServerURL(), creds.ca, creds.admin),
		"controller-manager.kubeconfig": kubeconfig(c.apiServerURL(), creds.ca, creds.controllerManager),
	}
	for name, content := range creds.files() {
		files["pki/"+name] = content
	}
	if err := os.MkdirAll(c.home.path("pki"), 0o700); err != nil {
		return fmt.Errorf("create the directory for certificates: %w", err)
	}
	for name, content := range files {
		if err := os.WriteFile(c.home.path(name), content, 0o600); err != nil {
			return fmt.Errorf("write the cluster's files: %w", err)
		}
	}
	return nil
}

// kubeconfig returns a client configuration that names no other file and can be copied elsewhere.
func kubeconfig(server string, ca, client pair) []byte {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: cluster
contexts:
- name: cluster
  context: {cluster: cluster, user: client}
clusters:
- name: cluster
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: client
  user:
    client-certificate-data: %s
    client-key-data: %s
`, server, encode(ca.cert), encode(client.cert), encode(client.key))
}

// client is an HTTPS client with a certificate.
type client struct{ http.Client }

func newClient(ca, own pair) (*client, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.cert)
	certificate, err := tls.X509KeyPair(own.cert, own.key)
	if err != nil {
		return nil, fmt.Errorf("load a client certificate: %w", err)
	}
	tlsConfig := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}}
	// No Proxy, unlike the default transport: all calls stay on this machine.
	return &client{http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig}, Timeout: 5 * time.Second}}, nil
}

// probe returns a function that fails unless a GET of the URL succeeds.
func (c *client) probe(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := c.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if body, _ := io.ReadAll(io.LimitReader(response.Body, 4096)); response.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s: %s", url, response.Status, body)
		}
		return nil
	}
}
