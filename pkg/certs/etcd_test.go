package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const member = "knative-apiserver-1.knative-apiserver-peers.knative-system.svc"

func etcdOptions(o *Options) {
	o.PodName, o.PeerService, o.IPs = "knative-apiserver-1", "knative-apiserver-peers", []net.IP{net.IPv4(10, 1, 2, 3)}
	o.LeafValidity = 30 * time.Hour
}

// etcdConfigs returns the TLS configurations of a member of etcd that starts now, for both ends of a connection: it reads its certificate at
// each handshake, and the authorities only now.
func etcdConfigs(t *testing.T, files EtcdFiles) (server, client *tls.Config) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(read(t, files.CA))
	certificate := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		return &pair, err
	}
	server = &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
		ClientAuth:     tls.RequireAndVerifyClientCert, ClientCAs: roots,
	}
	return server, &tls.Config{
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() }, RootCAs: roots, ServerName: member,
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func writeEtcdFiles(t *testing.T, m *Manager) (EtcdFiles, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	files, err := m.WriteEtcdFiles(ctx, filepath.Join(t.TempDir(), "etcd"))
	if err != nil {
		t.Fatal(err)
	}
	return files, cancel
}

func TestEtcdFilesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), etcdOptions)
		files, _ := writeEtcdFiles(t, m)
		for _, path := range []string{files.Cert, files.Key, files.CA} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v, error %v", path, info.Mode(), err)
			}
		}
		server, client := etcdConfigs(t, files)
		if err := handshake(server, client); err != nil {
			t.Error(err)
		}
		cert, key := read(t, files.Cert), read(t, files.Key)
		pass(20*time.Hour + time.Minute)
		if bytes.Equal(read(t, files.Cert), cert) {
			t.Error("the certificate was not renewed")
		}
		if !bytes.Equal(read(t, files.Key), key) {
			t.Error("the key has changed, which a reader could meet with the old certificate")
		}
		pass(19 * time.Hour)
		server, client = etcdConfigs(t, files)
		if err := handshake(server, client); err != nil {
			t.Error(err)
		}
		left, err := os.ReadDir(filepath.Dir(files.Cert))
		if err != nil || len(left) != 3 {
			t.Errorf("the directory holds %v (%v), want three files", left, err)
		}
	})
}

// The steps of hack/rotate-etcd-ca.sh: members that were restarted after a step, and the others, accept each other.
func TestEtcdAuthorityRotatesByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := newHost()
		m, _ := start(t, host, etcdOptions)
		files, _ := writeEtcdFiles(t, m)
		next, err := newAuthority("next", time.Hour*10000, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		edit := func(change func(map[string][]byte)) {
			t.Helper()
			secrets := host.CoreV1().Secrets(namespace)
			secret, err := secrets.Get(t.Context(), "knative-apiserver-etcd-ca", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			change(secret.Data)
			if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			pass(time.Hour)
		}
		oldServer, oldClient := etcdConfigs(t, files)
		former, formerClient := oldServer, oldClient
		meet := func(step string) {
			t.Helper()
			server, client := etcdConfigs(t, files)
			if err := errors.Join(handshake(oldServer, client), handshake(server, oldClient), handshake(server, client)); err != nil {
				t.Errorf("%s: %v", step, err)
			}
			oldServer, oldClient = server, client
		}
		edit(func(d map[string][]byte) {
			d["next.crt"], d["next.key"], d["ca.crt"] = next.certPEM, next.keyPEM, append(d["ca.crt"], next.certPEM...)
		})
		if got := string(read(t, files.CA)); strings.Count(got, "BEGIN") != 2 || !strings.Contains(got, string(next.certPEM)) {
			t.Errorf("the trusted authorities are %s", got)
		}
		meet("next is trusted")
		before := read(t, files.Cert)
		edit(func(d map[string][]byte) {
			d["tls.crt"], d["tls.key"], d["ca.crt"] = next.certPEM, next.keyPEM, next.certPEM
			delete(d, "next.crt")
			delete(d, "next.key")
		})
		if bytes.Equal(read(t, files.Cert), before) || !bytes.Equal(read(t, files.CA), next.certPEM) {
			t.Error("the new authority did not take over, or the old one is trusted")
		}
		meet("next signs")
		if server, client := etcdConfigs(t, files); handshake(former, client) == nil || handshake(server, formerClient) == nil {
			t.Error("members before and after the rotation accept each other")
		}
	})
}

func TestEtcdFilesNeedTheirDirectory(t *testing.T) {
	m, err := New(Options{Client: newHost(), Namespace: namespace, ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.WriteEtcdFiles(t.Context(), filepath.Join(file, "etcd")); !errors.As(err, new(*os.PathError)) {
		t.Errorf("WriteEtcdFiles returned %v, want a *os.PathError", err)
	}
}
