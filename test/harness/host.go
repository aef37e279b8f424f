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
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Installation is our server beside a host cluster, registered there by the shipped manifests. It runs as a
// process outside the cluster, with no rights but those of its ServiceAccount.
type Installation struct {
	*Cluster
	// Dir holds everything it writes: certs/, data/, audit.log, kubeconfig.
	Dir  string
	Port int
	// Server is the running process.
	Server *Process

	binary, components string
	args               []string
	logs               bytes.Buffer
}

// serverName is the name in the serving certificate, by which kube-aggregator calls us.
const serverName = "knative-apiserver.knative-system.svc"

// Namespace and name of the server's ServiceAccount, and of its Service.
const (
	SystemNamespace = "knative-system"
	systemName      = "knative-apiserver"
)

// Install applies the shipped manifests to the cluster and starts a server that runs components, such as "apiserver,broker",
// with args after those of Flags.
func Install(cluster *Cluster, dir, components string, args ...string) (*Installation, error) {
	i := &Installation{Cluster: cluster, Dir: dir, components: components}
	root, err := Root()
	if err != nil {
		return nil, err
	}
	if i.binary, err = keepBinary(dir); err != nil {
		return nil, err
	}
	if i.Port, err = FreePort(cluster.Address); err != nil {
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

// Flags are those of a server outside the cluster that no manifest can know.
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

// ServerAuditLog is the server's own audit log.
func (i *Installation) ServerAuditLog() string { return i.path("audit.log") }

// Certs is the directory of the serving certificate and its authority.
func (i *Installation) Certs() string { return i.path("certs") }

// Start starts the server, again if it ended, and waits until the host finds all our groups available.
func (i *Installation) Start() error {
	if i.Server != nil {
		i.logs.WriteString(i.Server.Log())
	}
	var err error
	if i.Server, err = StartProcess(nil, i.binary, i.args...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if err := Poll(ctx, func() error { return i.available(ctx) }); err != nil {
		i.Server.Kill()
		return fmt.Errorf("waiting until the server is available: %w\n%s", err, tail(i.Server.Log(), 30))
	}
	return nil
}

// keepBinary copies the server under test, so that a build during the tests does not restart as another one.
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

// Logs is all that the server printed so far, over all its restarts.
func (i *Installation) Logs() string { return i.logs.String() + i.Server.Log() }

// available asks for each of our groups through the aggregator.
func (i *Installation) available(ctx context.Context) error {
	select {
	case <-i.Server.Exited():
		return errors.New("the server ended")
	default:
	}
	for _, k := range Kinds() {
		response, err := i.Admin.Send(ctx, Request{Method: http.MethodGet, Path: k.Collection("") + "?limit=1"})
		if err != nil {
			return err
		}
		if response.Code != http.StatusOK {
			return fmt.Errorf("listing %s: code %d: %.300s", k.Resource, response.Code, response.Body)
		}
		if err := i.apiServiceAvailable(ctx, k.Version+"."+k.Group); err != nil {
			return err
		}
	}
	return nil
}

// MakeCertificate makes a serving certificate by the shipped script: a new one, if there is one.
func (i *Installation) MakeCertificate() error {
	root, err := Root()
	if err != nil {
		return err
	}
	if out, err := exec.Command(filepath.Join(root, "hack", "serving-cert.sh"), i.Certs()).CombinedOutput(); err != nil {
		return fmt.Errorf("making the serving certificate: %w\n%s", err, out)
	}
	return nil
}

// Direct returns the configuration of a client that calls our server itself, not the aggregator, and has
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

// FreePort finds a port that nothing listens on.
func FreePort(address string) (int, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// WriteKubeconfig writes a file that holds the server and the user of config.
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
