package harness

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// ServerName is the name of the StatefulSet of the server, and of the Service of its API.
const ServerName = "knative-apiserver"

// Script runs a script in hack/ as documented in the README, with the cluster's kubectl.
func (n *Node) Script(ctx context.Context, name string, args ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	bin, err := KubernetesBin()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", name), args...)
	cmd.Env = append(os.Environ(), "KUBECTL="+filepath.Join(bin, "kubectl"), "KUBECONFIG="+n.Kubeconfig, "TIMEOUT=5m")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// ServerPods returns the running replicas of the server, in no particular order.
func (n *Node) ServerPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := n.Host.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + ServerName + ",app.kubernetes.io/component=server",
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// MetricsOf reads the metrics of a replica that have no labels.
func (n *Node) MetricsOf(ctx context.Context, pod *corev1.Pod) (map[string]float64, error) {
	config := rest.CopyConfig(n.Admin.Config)
	// The request must reach this replica, whose certificate is valid for the Service's name.
	config.TLSClientConfig.Insecure, config.CAData, config.CAFile = true, nil, ""
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+pod.Status.PodIP+":8443/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	code, text, err := Exchange(client, request)
	if err != nil {
		return nil, err
	}
	if code != http.StatusOK {
		return nil, fmt.Errorf("get metrics of %s: code %d: %.200s", pod.Name, code, text)
	}
	values := map[string]float64{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if name, value, found := strings.Cut(lines.Text(), " "); found {
			if number, err := strconv.ParseFloat(value, 64); err == nil {
				values[name] = number
			}
		}
	}
	return values, lines.Err()
}
