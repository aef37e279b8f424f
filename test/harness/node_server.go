package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
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
	return n.replicas(ctx, "app.kubernetes.io/component=server")
}

// GatewayPods returns the replicas with a gateway, in no particular order. They may be ServerPods or run nothing else.
func (n *Node) GatewayPods(ctx context.Context) ([]corev1.Pod, error) {
	return n.replicas(ctx, "knative-apiserver/gateway=true")
}

// ReplicaPods returns all Pods of the installation, in no particular order.
func (n *Node) ReplicaPods(ctx context.Context) ([]corev1.Pod, error) {
	return n.replicas(ctx, "knative-apiserver/peer=true")
}

func (n *Node) replicas(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := n.Host.CoreV1().Pods(SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + ServerName + "," + selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Replicas is the number of replicas of the default installation.
const Replicas = 3

// Whole returns an error unless all replicas and gateways are ready, each replica is a member of a complete etcd cluster with a leader, and the API answers.
func (n *Node) Whole(ctx context.Context) error {
	set, err := n.Host.AppsV1().StatefulSets(SystemNamespace).Get(ctx, ServerName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if s := set.Status; *set.Spec.Replicas != Replicas || s.ObservedGeneration != set.Generation ||
		s.Replicas != Replicas || s.ReadyReplicas != Replicas || s.UpdatedReplicas != Replicas {
		return fmt.Errorf("the StatefulSet has %d replicas, %d ready and %d up to date", s.Replicas, s.ReadyReplicas, s.UpdatedReplicas)
	}
	pods, err := n.ServerPods(ctx)
	if err != nil {
		return err
	}
	for i := range pods {
		values, err := n.MetricsOf(ctx, &pods[i])
		if err != nil {
			return err
		}
		if voters, leads := values["knative_etcd_voting_members"], values["knative_etcd_has_leader"]; voters != Replicas || leads != 1 {
			return fmt.Errorf("%s: etcd has %v voting members and %v leaders", pods[i].Name, voters, leads)
		}
	}
	gateways, err := n.GatewayPods(ctx)
	if err != nil {
		return err
	}
	for i := range gateways {
		if !isReady(&gateways[i]) {
			return fmt.Errorf("gateway %s is not ready", gateways[i].Name)
		}
	}
	if len(gateways) < Replicas {
		return fmt.Errorf("got %d gateways", len(gateways))
	}
	_, err = n.Admin.Knative.ServingV1().Services("default").List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// Unready describes the replicas that are not ready: the checks that fail, and the end of the log.
func (n *Node) Unready(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	pods, err := n.ServerPods(ctx)
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for i := range pods {
		pod := &pods[i]
		if isReady(pod) {
			continue
		}
		fmt.Fprintf(&text, "%s is not ready: %s\n", pod.Name, pod.Status.Phase)
		_, checks, err := n.read(ctx, pod, "/readyz?verbose")
		if err != nil {
			fmt.Fprintln(&text, err)
		}
		for line := range strings.Lines(checks) {
			if !strings.HasPrefix(line, "[+]") {
				text.WriteString(line)
			}
		}
		log, err := n.Host.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: ptr.To[int64](20)}).DoRaw(ctx)
		if err != nil {
			fmt.Fprintln(&text, err)
		}
		for line := range strings.Lines(string(log)) {
			fmt.Fprintf(&text, "%.300s\n", strings.TrimSpace(line))
		}
	}
	return text.String()
}

// Metrics reads the metrics of a replica.
func (n *Node) Metrics(ctx context.Context, pod *corev1.Pod) (string, error) {
	code, text, err := n.read(ctx, pod, "/metrics")
	if err != nil {
		return "", err
	}
	if code != http.StatusOK {
		return "", fmt.Errorf("get metrics of %s: code %d: %.200s", pod.Name, code, text)
	}
	return text, nil
}

// read gets a path from the API server of a replica.
func (n *Node) read(ctx context.Context, pod *corev1.Pod, path string) (code int, text string, err error) {
	config := rest.CopyConfig(n.Admin.Config)
	// The request must reach this replica, whose certificate is valid for the Service's name.
	config.TLSClientConfig.Insecure, config.CAData, config.CAFile = true, nil, ""
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+pod.Status.PodIP+":8443"+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	return Exchange(client, request)
}

// MetricsOf reads the metrics of a replica that have no labels.
func (n *Node) MetricsOf(ctx context.Context, pod *corev1.Pod) (map[string]float64, error) {
	text, err := n.Metrics(ctx, pod)
	if err != nil {
		return nil, err
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

// ReplicaMetric returns a metric without labels of each Pod of the installation, by the name of the Pod. It fails the test if one does not report it.
func (n *Node) ReplicaMetric(t testing.TB, metric string) map[string]float64 {
	t.Helper()
	pods, err := n.ReplicaPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for i := range pods {
		values, err := n.MetricsOf(t.Context(), &pods[i])
		if err != nil {
			t.Fatal(err)
		}
		if values[metric] == 0 {
			t.Fatalf("%s does not report %s", pods[i].Name, metric)
		}
		all[pods[i].Name] = values[metric]
	}
	return all
}

// ErrNoProcess is the error of a signal to a container without a process: it has not started yet, or has ended.
var ErrNoProcess = errors.New("no process of it runs")

// Signal sends a signal to all processes of all containers of a Pod. The error is ErrNoProcess if a container has none.
func (n *Node) Signal(pod *corev1.Pod, signal syscall.Signal) error {
	if len(pod.Status.ContainerStatuses) == 0 {
		return fmt.Errorf("send %s to Pod %s, which has no containers: %w", signal, pod.Name, ErrNoProcess)
	}
	for i := range pod.Status.ContainerStatuses {
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[i].ContainerID, "://")
		if err := signalContainer(string(pod.UID), id, signal); err != nil {
			return fmt.Errorf("send %s to container %s of Pod %s: %w", signal, pod.Status.ContainerStatuses[i].Name, pod.Name, err)
		}
	}
	return nil
}

// signalContainer sends a signal to the processes of a container, which are in its cgroup below the Pod's.
func signalContainer(podUID, container string, signal syscall.Signal) error {
	pids, err := containerPIDs(podUID, container)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		// The process is opened first and checked again, so that no other process that reuses the pid is signaled.
		process, err := os.FindProcess(pid)
		if err != nil {
			return err
		}
		if inContainer(pid, podUID, container) {
			err = process.Signal(signal)
		}
		if err := errors.Join(err, process.Release()); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}

// containerPIDs returns the processes of a container, at least one.
func containerPIDs(podUID, container string) ([]int, error) {
	if podUID == "" || container == "" {
		return nil, ErrNoProcess
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && inContainer(pid, podUID, container) {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, ErrNoProcess
	}
	return pids, nil
}

// inContainer reports whether a process is in the cgroup ".../pod<UID>/<container>".
func inContainer(pid int, podUID, container string) bool {
	cgroups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(cgroups)) {
		if strings.HasSuffix(strings.TrimSpace(line), "/pod"+podUID+"/"+container) {
			return true
		}
	}
	return false
}

// Isolate drops all packets between a Pod and some addresses, by a packet filter in the network namespace of the Pod. The returned function
// removes it, and does nothing if the Pod no longer exists.
func (n *Node) Isolate(pod *corev1.Pod, addresses []string) (restore func() error, err error) {
	if len(pod.Status.ContainerStatuses) == 0 || len(addresses) == 0 {
		return nil, fmt.Errorf("Pod %s and %d addresses cannot be separated", pod.Name, len(addresses))
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	pids, err := containerPIDs(string(pod.UID), id)
	if err != nil {
		return nil, err
	}
	// The open file keeps the namespace, also when the process ends.
	namespace, err := os.Open(filepath.Join("/proc", strconv.Itoa(pids[0]), "ns/net"))
	if err != nil {
		return nil, err
	}
	filter := func(rules string) error {
		cmd := exec.Command("nsenter", "--net=/proc/self/fd/3", "nft", "-f", "-")
		cmd.ExtraFiles, cmd.Stdin = []*os.File{namespace}, strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("filter packets of %s: %w\n%s", pod.Name, err, out)
		}
		return nil
	}
	peers := strings.Join(addresses, ", ")
	if err := filter(fmt.Sprintf(`table ip isolated {
	chain in { type filter hook input priority 0; ip saddr { %[1]s } drop; }
	chain out { type filter hook output priority 0; ip daddr { %[1]s } drop; }
}
`, peers)); err != nil {
		return nil, errors.Join(err, namespace.Close())
	}
	return func() error { return errors.Join(filter("delete table ip isolated\n"), namespace.Close()) }, nil
}
