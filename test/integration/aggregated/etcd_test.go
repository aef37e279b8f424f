package aggregated

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver/standalone"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// externalEtcd is an etcd that requires client certificates, with two endpoints.
type externalEtcd struct {
	endpoints    []string
	certificates *standalone.Certificates
}

func startEtcd(t *testing.T) *externalEtcd {
	t.Helper()
	dir := t.TempDir()
	certificates, err := standalone.EnsureCertificates(filepath.Join(dir, "pki"), net.IPv4(127, 0, 0, 1))
	if err != nil {
		t.Fatal(err)
	}
	bin, err := harness.KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	address := func(scheme string) string {
		number, err := port.Stable()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s://127.0.0.1:%d", scheme, number)
	}
	e := &externalEtcd{endpoints: []string{address("https"), address("https")}, certificates: certificates}
	clients, peers := strings.Join(e.endpoints, ","), address("http")
	process, err := harness.StartProcess(nil, filepath.Join(bin, "etcd"),
		"--data-dir="+filepath.Join(dir, "data"), "--log-level=error",
		"--listen-client-urls="+clients, "--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers,
		"--cert-file="+certificates.ServingCert, "--key-file="+certificates.ServingKey,
		"--trusted-ca-file="+certificates.CA, "--client-cert-auth")
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	return e
}

// values returns all stored values by key.
func (e *externalEtcd) values(t *testing.T) map[string][]byte {
	t.Helper()
	tls, err := transport.TLSInfo{TrustedCAFile: e.certificates.CA, CertFile: e.certificates.ClientCert, KeyFile: e.certificates.ClientKey}.ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: e.endpoints, TLS: tls})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	answer, err := client.Get(t.Context(), "/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]byte{}
	for _, kv := range answer.Kvs {
		values[string(kv.Key)] = kv.Value
	}
	return values
}

// encryptionConfig encrypts all objects at rest.
func encryptionConfig(t *testing.T) string {
	t.Helper()
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	content := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ["*.*"]
  providers:
  - secretbox:
      keys:
      - {name: key1, secret: %s}
  - identity: {}
`, base64.StdEncoding.EncodeToString(key))
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestExternalEtcd stores objects in a separate etcd with the standard flags: several endpoints, client certificates, a prefix,
// encryption at rest, compaction (P19, P20).
func TestExternalEtcd(t *testing.T) {
	e := startEtcd(t)
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	number, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	flags := append(host.Flags(filepath.Join(host.Dir, "kubeconfig"), "", number),
		"--etcd-servers="+strings.Join(e.endpoints, ","), "--etcd-prefix=/elsewhere",
		"--etcd-cafile="+e.certificates.CA, "--etcd-certfile="+e.certificates.ClientCert, "--etcd-keyfile="+e.certificates.ClientKey,
		"--encryption-provider-config="+encryptionConfig(t), "--etcd-compaction-interval=1s")
	config, err := host.Direct()
	if err != nil {
		t.Fatal(err)
	}
	config.Host = "https://" + net.JoinHostPort(host.Address, strconv.Itoa(number))
	config.CertData, config.KeyData = host.Admin.Config.CertData, host.Admin.Config.KeyData
	clients := clientsOf(t, config)
	kind := harness.KindOf("Broker")
	namespace := host.Namespace(t, "etcd", nil)
	obj := kind.Object(namespace, "encrypted")
	first := ""
	for start := range 2 {
		server, err := harness.StartProcess(nil, binary, flags...)
		if err != nil {
			t.Fatal(err)
		}
		server.StopAfter(t)
		within(t, rediscovery, "the server is ready", func() error {
			response, err := clients.Send(t.Context(), harness.Request{Method: http.MethodGet, Path: "/readyz"})
			if err == nil && response.Code != http.StatusOK {
				err = fmt.Errorf("code %d: %s", response.Code, response.Body)
			}
			return err
		})
		if start == 0 {
			body, err := obj.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			created := clients.Do(t, harness.Request{Method: http.MethodPost, Path: kind.Collection(namespace), Body: body})
			if created.Code != http.StatusCreated {
				t.Fatalf("create: code %d: %s", created.Code, created.Body)
			}
			first = created.Object(t).GetResourceVersion()
		}
		if read := get(t, clients, obj); read.Code != http.StatusOK {
			t.Fatalf("start %d: get: code %d: %s", start, read.Code, read.Body)
		}
		if start == 1 {
			expired(t, clients, kind.Collection(namespace)+"?limit=1&resourceVersionMatch=Exact&resourceVersion="+first, kind.Path(namespace, "encrypted"))
		}
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
	}

	found := false
	for key, value := range e.values(t) {
		if !strings.HasSuffix(key, "/"+namespace+"/encrypted") {
			continue
		}
		found = true
		if !strings.HasPrefix(key, "/elsewhere/") {
			t.Errorf("the object is stored at %s, not below the prefix", key)
		}
		if !bytes.HasPrefix(value, []byte("k8s:enc:secretbox:v1:key1:")) || bytes.Contains(value, []byte("encrypted")) {
			t.Errorf("the object is stored in clear: %.80q", value)
		}
	}
	if !found {
		t.Error("the object is not in the given etcd")
	}
}

// expired waits until history is compacted: a list at an old version is answered 410. It writes meanwhile, because the latest
// version is never compacted.
func expired(t *testing.T, clients *harness.Clients, list, object string) {
	t.Helper()
	turn := 0
	within(t, rediscovery, "history is compacted", func() error {
		turn++
		patch := fmt.Sprintf(`{"metadata":{"labels":{"turn":"%d"}}}`, turn)
		if response := clients.Do(t, harness.Request{Method: http.MethodPatch, Path: object, ContentType: "application/merge-patch+json", Body: []byte(patch)}); response.Code != http.StatusOK {
			return fmt.Errorf("patch: code %d: %s", response.Code, response.Body)
		}
		response := clients.Do(t, harness.Request{Method: http.MethodGet, Path: list})
		if response.Code != http.StatusGone {
			return fmt.Errorf("code %d: %.200s", response.Code, response.Body)
		}
		if reason := response.Status(t).Reason; reason != "Expired" {
			t.Errorf("reason %q, want Expired", reason)
		}
		return nil
	})
}
