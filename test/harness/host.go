package harness

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// Installation is a server beside a host cluster, registered there by the shipped manifests. It runs as a
// process outside the cluster, with only the permissions of its ServiceAccount.
type Installation struct {
	*Cluster
	// Dir is the directory of its files: certs/, data/, audit.log, kubeconfig.
	Dir  string
	Port int
	// Server is the running process.
	Server *Process

	binary, components string
	args               []string
	logs               bytes.Buffer
}

// serverName is the name in the serving certificate, which kube-aggregator verifies.
const serverName = "knative-apiserver.knative-system.svc"

// Namespace and name of the server's ServiceAccount, and of its Service.
const (
	SystemNamespace = "knative-system"
	systemName      = "knative-apiserver"
)

// Install applies the shipped manifests to the cluster and starts a server that runs components, such as "apiserver,broker".
// args follow the arguments in Flags.
func Install(cluster *Cluster, dir, components string, args ...string) (*Installation, error) {
	i := &Installation{Cluster: cluster, Dir: dir, components: components}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	if i.binary, err = keepBinary(dir); err != nil {
		return nil, err
	}
	if i.Port, err = port.Stable(); err != nil {
		return nil, err
	}
	if err := i.MakeCertificate(); err != nil {
		return nil, err
	}
	if err := i.register(root); err != nil {
		return nil, err
	}
	token, err := i.Token(context.Background(), SystemNamespace, systemName)
	if err != nil {
		return nil, err
	}
	if err := WriteKubeconfig(i.path("kubeconfig"), WithToken(cluster.Admin.Config, token)); err != nil {
		return nil, err
	}
	i.args = append(i.Flags(i.path("kubeconfig"), i.path("data"), i.Port),
		"--audit-policy-file="+filepath.Join(root, "artifacts", "audit-policy.yaml"),
		"--audit-log-path="+i.path("audit.log"))
	i.args = append(i.args, args...)
	return i, i.Start()
}

func (i *Installation) path(elem ...string) string {
	return filepath.Join(append([]string{i.Dir}, elem...)...)
}

// Flags returns the flags of a server outside the cluster that the manifests do not contain.
func (i *Installation) Flags(kubeconfig, dataDir string, port int) []string {
	return []string{
		"--components=" + i.components,
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--tls-cert-file=" + i.path("certs", "tls.crt"),
		"--tls-private-key-file=" + i.path("certs", "tls.key"),
		"--bind-address=" + i.Address,
		"--secure-port=" + strconv.Itoa(port),
		"--data-dir=" + dataDir,
		// The sinks of tests.
		"--allow-destination=127.0.0.0/8,::1/128",
	}
}

// ServerAuditLog returns the path of the server's own audit log.
func (i *Installation) ServerAuditLog() string { return i.path("audit.log") }

// Certs returns the directory of the serving certificate and its authority.
func (i *Installation) Certs() string { return i.path("certs") }

// Start starts or restarts the server, and waits until the host reports all its groups as available.
func (i *Installation) Start() error {
	if i.Server != nil {
		i.logs.WriteString(i.Server.Log())
	}
	var err error
	if i.Server, err = StartProcess(nil, i.binary, i.args...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := Poll(ctx, func() error { return i.available(ctx) }); err != nil {
		i.Server.Kill()
		return fmt.Errorf("wait until the server is available: %w\n%s", err, tail(i.Server.Log(), 30))
	}
	return nil
}

// StartAfter restarts the server when a test has failed that stops it: it may be stopped, so that all later tests would fail, each after
// its Patience.
func (i *Installation) StartAfter(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		i.Server.Kill()
		if err := i.Start(); err != nil {
			t.Error(err)
		}
	})
}

// keepBinary copies the server under test, so that a build during the tests does not change a restarted server.
func keepBinary(dir string) (string, error) {
	built, err := Binary()
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	kept := filepath.Join(dir, filepath.Base(built))
	return kept, os.WriteFile(kept, content, 0o700)
}

// Logs returns the output of the server, over all its restarts.
func (i *Installation) Logs() string { return i.logs.String() + i.Server.Log() }

// available lists each kind through the aggregator.
func (i *Installation) available(ctx context.Context) error {
	select {
	case <-i.Server.Exited():
		return errors.New("the server exited")
	default:
	}
	for _, k := range AllKinds() {
		response, err := i.Admin.Send(ctx, Request{Method: http.MethodGet, Path: k.Collection("") + "?limit=1"})
		if err != nil {
			return err
		}
		if response.Code != http.StatusOK {
			return fmt.Errorf("list %s: code %d: %.300s", k.Resource, response.Code, response.Body)
		}
		if err := i.apiServiceAvailable(ctx, k.Version+"."+k.Group); err != nil {
			return err
		}
	}
	return nil
}

// MakeCertificate creates a serving certificate with the shipped script, and replaces an existing one.
func (i *Installation) MakeCertificate() error {
	root, err := Root()
	if err != nil {
		return err
	}
	if out, err := exec.Command(filepath.Join(root, "hack", "serving-cert.sh"), i.Certs()).CombinedOutput(); err != nil {
		return fmt.Errorf("create serving certificate: %w\n%s", err, out)
	}
	return nil
}

// Direct returns the configuration of a client that connects to the server directly, not through the aggregator, and has
// neither certificate nor token.
func (i *Installation) Direct() (*rest.Config, error) {
	ca, err := os.ReadFile(i.path("certs", "ca.crt"))
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            "https://" + net.JoinHostPort(i.Address, strconv.Itoa(i.Port)),
		TLSClientConfig: rest.TLSClientConfig{CAData: ca, ServerName: serverName},
	}, nil
}

// WriteKubeconfig writes a file with the server and the user of config.
func WriteKubeconfig(path string, config *rest.Config) error {
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["server"] = &clientcmdapi.Cluster{
		Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile, TLSServerName: config.ServerName,
	}
	kubeconfig.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		Token: config.BearerToken, ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
	}
	kubeconfig.Contexts["context"] = &clientcmdapi.Context{Cluster: "server", AuthInfo: "user"}
	kubeconfig.CurrentContext = "context"
	return clientcmd.WriteToFile(*kubeconfig, path)
}

func encode(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// tokenLifetime is longer than any test run.
const tokenLifetime = 2 * time.Hour
