package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// nodeVariable is the environment variable with the path of the cluster.json of a cluster that has a node, with the
// server installed on it. hack/e2e.sh sets it.
const nodeVariable = "E2E_CLUSTER"

// Node is a real cluster with a node on this machine, on which the server is installed from the shipped manifests. Its
// Pods run.
type Node struct {
	Kubeconfig string `json:"kubeconfig"`
	// Address is the machine's address, at which NodePorts are reachable.
	Address string `json:"address"`
	// Registry is the host:port of a registry without authentication, PrivateRegistry of one with it.
	Registry        string `json:"registry"`
	PrivateRegistry struct {
		Address  string `json:"address"`
		User     string `json:"user"`
		Password string `json:"password"`
	} `json:"privateRegistry"`

	// Admin and Host are clients of the administrator: for served kinds and dynamic requests, and for core kinds.
	Admin *Clients             `json:"-"`
	Host  kubernetes.Interface `json:"-"`
	// Gateway is the address of the gateway for clients outside the cluster, GatewayTLS the one for HTTPS.
	Gateway    string `json:"-"`
	GatewayTLS string `json:"-"`
}

// ErrNoNode is returned if nodeVariable is not set.
var ErrNoNode = errors.New(nodeVariable + " does not name the cluster.json of a cluster with the server installed: run make e2e")

// OpenNode returns the cluster that hack/e2e.sh started and installed the server on, or ErrNoNode.
func OpenNode() (*Node, error) {
	n, err := OpenBareNode()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	return n, n.FindGateway(ctx)
}

// NodeFor is OpenNode for one test, which is skipped without a cluster.
func NodeFor(t testing.TB) *Node {
	t.Helper()
	n, err := OpenNode()
	if errors.Is(err, ErrNoNode) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// FindGateway finds the gateway of an installation that was created after the cluster was opened.
func (n *Node) FindGateway(ctx context.Context) error {
	service, err := n.Host.CoreV1().Services(SystemNamespace).Get(ctx, "gateway", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("find gateway: %w", err)
	}
	n.Gateway, n.GatewayTLS = n.nodePort(service, 80), n.nodePort(service, 443)
	return nil
}

// OpenBareNode is like OpenNode for a cluster that may not have the server installed.
func OpenBareNode() (*Node, error) {
	path := os.Getenv(nodeVariable)
	if path == "" {
		return nil, ErrNoNode
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	n := &Node{}
	if err := json.Unmarshal(content, n); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if n.Admin, err = ClientsOf(n.Kubeconfig); err != nil {
		return nil, err
	}
	if n.Host, err = kubernetes.NewForConfigAndClient(n.Admin.Config, n.Admin.HTTP); err != nil {
		return nil, err
	}
	return n, nil
}

// nodePort returns the address of a port of a Service for clients outside the cluster, or "" if the Service does not have that port.
func (n *Node) nodePort(service *corev1.Service, number int32) string {
	for _, port := range service.Spec.Ports {
		if port.Port == number {
			return net.JoinHostPort(n.Address, strconv.Itoa(int(port.NodePort)))
		}
	}
	return ""
}

// HTTPClient returns a client that connects to the gateway for all host names, as if DNS resolved them to its address.
func (n *Node) HTTPClient(timeout time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		MaxIdleConnsPerHost: 256,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, n.Gateway)
		},
	}}
}

// appImages are the references of the sample application by registry; a test binary pushes each once.
var appImages sync.Map

// AppImage returns the reference of an image of the sample application (test/app) in the registry without authentication.
func (n *Node) AppImage() (string, error) { return n.push(n.Registry + "/test-app:v1") }

// PrivateAppImage is like AppImage for the registry with authentication.
func (n *Node) PrivateAppImage() (string, error) {
	config, err := os.MkdirTemp("", "docker-config-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(config)
	if err := os.WriteFile(filepath.Join(config, "config.json"), n.DockerConfig(), 0o600); err != nil {
		return "", err
	}
	return n.push(n.PrivateRegistry.Address+"/test-app:v1", "DOCKER_CONFIG="+config)
}

// DockerConfig returns the content of a pull secret for the registry with authentication.
func (n *Node) DockerConfig() []byte {
	r := n.PrivateRegistry
	content, err := json.Marshal(map[string]any{"auths": map[string]any{
		r.Address: map[string]string{"username": r.User, "password": r.Password},
	}})
	if err != nil {
		panic(err)
	}
	return content
}

func (n *Node) push(reference string, environment ...string) (string, error) {
	once, _ := appImages.LoadOrStore(reference, sync.OnceValue(func() error {
		root, err := Root()
		if err != nil {
			return err
		}
		binary := filepath.Join(root, "bin", "test-app-static")
		for _, args := range [][]string{
			{"go", "build", "-o", binary, "./test/app"},
			{"go", "run", "./hack/image", "--binary", binary, "--push", reference},
		} {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir = root
			cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), environment...)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
			}
		}
		return nil
	}))
	if err := once.(func() error)(); err != nil {
		return "", fmt.Errorf("push sample application: %w", err)
	}
	return reference, nil
}
