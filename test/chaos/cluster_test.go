package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// clockPolicy is the name of the policy that changes the times of Leases.
const clockPolicy = "chaos-clock"

// cluster is the default installation on a cluster with a node. Its settings are restored when the test ends.
type cluster struct {
	*harness.Node
	image string
	// namespaces have the objects of this test. Counters of objects of earlier tests may vanish.
	namespaces []string
	// broker is the address of broker-ingress.
	broker string
	// replaced returns an error until the victim of the last fault is another Pod or process.
	replaced func(context.Context) error
}

var _ installation = &cluster{}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	node := harness.NodeFor(t)
	// The policy of a killed run remains.
	policies := node.Host.AdmissionregistrationV1()
	for _, remove := range []func(context.Context, string, metav1.DeleteOptions) error{
		policies.MutatingAdmissionPolicyBindings().Delete, policies.MutatingAdmissionPolicies().Delete,
	} {
		if err := remove(t.Context(), clockPolicy, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	c := &cluster{Node: node, replaced: func(context.Context) error { return nil }}
	var err error
	if c.image, err = node.AppImage(); err != nil {
		t.Fatal(err)
	}
	service, err := node.Host.CoreV1().Services(harness.SystemNamespace).Get(t.Context(), "broker-ingress", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.broker = net.JoinHostPort(service.Spec.ClusterIP, "80")
	t.Cleanup(func() {
		if err := c.patch(context.Background(), "config-defaults", map[string]any{"revision-timeout-seconds": nil}); err != nil {
			t.Error(err)
		}
		if err := c.patch(context.Background(), "config-autoscaler", map[string]any{"container-concurrency-target-percentage": nil}); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *cluster) clients() *harness.Clients { return c.Admin }

func (c *cluster) container(*testing.T) map[string]any { return map[string]any{"image": c.image} }

func (c *cluster) requests() *http.Client { return toward(c.Gateway, 0) }

func (c *cluster) events() *http.Client { return toward(c.broker, attemptLimit) }

// toward returns a client that connects to one address for every host.
func toward(address string, timeout time.Duration) *http.Client {
	return &http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: attemptLimit}).DialContext(ctx, network, address)
	}}}
}

func (c *cluster) sinkAddress() string { return c.Address }

// scrape adds the counters of all replicas. Processes are identified by Pod and start time: a restarted one begins at 0.
func (c *cluster) scrape(ctx context.Context) (processes string, dropped float64, err error) {
	pods, err := c.ServerPods(ctx)
	if err != nil {
		return "", 0, err
	}
	if len(pods) != harness.Replicas {
		return "", 0, fmt.Errorf("got %d replicas", len(pods))
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	for i := range pods {
		text, err := c.Metrics(ctx, &pods[i])
		if err != nil {
			return "", 0, err
		}
		count, err := sum(text, "knative_eventing_events_dropped_total", c.own)
		if err != nil {
			return "", 0, err
		}
		_, started, found := strings.Cut(text, "\nprocess_start_time_seconds ")
		if !found {
			return "", 0, fmt.Errorf("%s does not report its start time", pods[i].Name)
		}
		started, _, _ = strings.Cut(started, "\n")
		processes, dropped = processes+string(pods[i].UID)+" "+started+" ", dropped+count
	}
	return processes, dropped, nil
}

// own reports whether a series belongs to an object of this test.
func (c *cluster) own(labels string) bool {
	return slices.ContainsFunc(c.namespaces, func(namespace string) bool { return strings.Contains(labels, fmt.Sprintf("namespace=%q", namespace)) })
}

func (c *cluster) set(ctx context.Context, name string, data map[string]string) error {
	values := map[string]any{}
	for key, value := range data {
		values[key] = value
	}
	return c.patch(ctx, name, values)
}

func (c *cluster) patch(ctx context.Context, name string, data map[string]any) error {
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	_, err = c.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// victim returns a replica with the components of pods, and all other replicas, gateways included. The schedule chooses which.
func (c *cluster) victim(t *testing.T, pods func(context.Context) ([]corev1.Pod, error), choice uint64) (victim *corev1.Pod, others []corev1.Pod) {
	t.Helper()
	eligible, err := pods(t.Context())
	if err != nil || len(eligible) < harness.Replicas {
		t.Fatalf("%d replicas, %v", len(eligible), err)
	}
	slices.SortFunc(eligible, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	victim = &eligible[choice%uint64(len(eligible))]
	if others, err = c.ReplicaPods(t.Context()); err != nil {
		t.Fatal(err)
	}
	return victim, slices.DeleteFunc(others, func(other corev1.Pod) bool { return other.UID == victim.UID })
}

// repair waits until the replicas tolerate the next fault: one fault at a time is tolerated.
func (c *cluster) repair(t *testing.T) {
	t.Helper()
	c.awaitWhole(t.Context(), t)
}

func (c *cluster) awaitWhole(ctx context.Context, t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, settled)
	defer cancel()
	// The status of the StatefulSet may be older than the fault.
	if err := harness.Poll(ctx, func() error {
		if err := c.replaced(ctx); err != nil {
			return err
		}
		return c.Whole(ctx)
	}); err != nil {
		t.Errorf("wait until the installation is complete: %v\n%s", err, c.Unready(context.WithoutCancel(ctx)))
	}
}

// another reports whether a Pod took the place of a deleted one, whose name a Deployment does not use again.
func another(victim *corev1.Pod) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		if pod == nil {
			return victim.Labels["app.kubernetes.io/component"] == "gateway"
		}
		return pod.UID != victim.UID
	}
}

func (c *cluster) faults(s *site, d *disk) []fault {
	pods := c.Host.CoreV1().Pods(harness.SystemNamespace)
	all := []fault{
		{name: "kill -9", repair: c.repair, inject: func(t *testing.T, _ time.Duration, choice uint64) {
			victim, _ := c.victim(t, c.ReplicaPods, choice)
			c.expect(victim.Name, func(pod *corev1.Pod) bool {
				return pod != nil && len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].RestartCount > victim.Status.ContainerStatuses[0].RestartCount
			})
			if err := c.Signal(victim, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}},
		{name: "deleted pod", repair: c.repair, inject: func(t *testing.T, _ time.Duration, choice uint64) {
			victim, _ := c.victim(t, c.ReplicaPods, choice)
			c.expect(victim.Name, another(victim))
			if err := pods.Delete(t.Context(), victim.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}},
		{name: "lost volume", repair: c.repair, inject: func(t *testing.T, _ time.Duration, choice uint64) {
			// The volume that can be full or slow remains.
			victim, _ := c.victim(t, c.ServerPods, choice%(harness.Replicas-1))
			c.loseVolume(t.Context(), t, victim)
		}},
		{name: "SIGSTOP", longest: 6 * time.Second, repair: c.repair, inject: func(t *testing.T, duration time.Duration, choice uint64) {
			victim, _ := c.victim(t, c.ReplicaPods, choice)
			if err := c.Signal(victim, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			<-time.After(duration)
			if err := c.Signal(victim, syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}},
		{name: "partition", longest: 12 * time.Second, repair: c.repair, inject: func(t *testing.T, duration time.Duration, choice uint64) {
			victim, others := c.victim(t, c.ReplicaPods, choice)
			var addresses []string
			for i := range others {
				addresses = append(addresses, others[i].Status.PodIP)
			}
			restore, err := c.Isolate(victim, addresses)
			if err != nil {
				t.Error(err)
				return
			}
			<-time.After(duration)
			if err := restore(); err != nil {
				t.Error(err)
			}
		}},
		{name: "clock jump", longest: 12 * time.Second, repair: c.repair, inject: func(t *testing.T, duration time.Duration, choice uint64) {
			victim, _ := c.victim(t, c.ReplicaPods, choice)
			jump := time.Hour
			if choice%2 == 0 {
				jump = -jump
			}
			c.jumpClock(t, victim, jump, duration)
		}},
		{name: "host API down", longest: 8 * time.Second, repair: c.repair, inject: func(t *testing.T, duration time.Duration, _ uint64) {
			content, err := os.ReadFile(filepath.Join(filepath.Dir(c.Kubeconfig), "kube-apiserver.pid"))
			var process struct {
				PID int `json:"pid"`
			}
			if err := errors.Join(err, json.Unmarshal(content, &process)); err != nil {
				t.Error(err)
				return
			}
			pause(t, process.PID, duration)
		}},
		{name: "backend killed", inject: func(t *testing.T, _ time.Duration, choice uint64) {
			list, err := c.Host.CoreV1().Pods(s.namespaces[choice%2]).List(t.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service"})
			if err != nil || len(list.Items) == 0 {
				t.Errorf("find a backend: %v", err)
				return
			}
			// A Pod that starts or ends has no process.
			if err := c.Signal(&list.Items[choice/2%uint64(len(list.Items))], syscall.SIGKILL); err != nil && !errors.Is(err, harness.ErrNoProcess) {
				t.Error(err)
			}
		}},
		s.settingsFault(), s.rolloutFault(), s.subscribersFault(),
	}
	if d != nil {
		all = append(all,
			fault{name: "full disk", longest: 5 * time.Second, repair: c.repair,
				inject: func(t *testing.T, duration time.Duration, _ uint64) { d.fill(t, duration) }},
			fault{name: "slow disk", longest: 5 * time.Second, repair: c.repair,
				inject: func(t *testing.T, duration time.Duration, _ uint64) { d.slow(t, duration) }})
	}
	return all
}

// expect makes awaitWhole wait until a Pod is replaced. later reports that for the Pod that has its name, or nil.
func (c *cluster) expect(name string, later func(*corev1.Pod) bool) {
	c.replaced = func(ctx context.Context) error {
		pod, err := c.Host.CoreV1().Pods(harness.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			pod, err = nil, nil
		}
		if err == nil && !later(pod) {
			err = fmt.Errorf("%s is not replaced", name)
		}
		return err
	}
}

// claim returns the name of the PersistentVolumeClaim of a replica.
func claim(pod string) string { return "data-" + pod }

// loseVolume deletes a replica with its volume.
func (c *cluster) loseVolume(ctx context.Context, t *testing.T, victim *corev1.Pod) {
	t.Helper()
	c.expect(victim.Name, another(victim))
	// The claim is deleted once no Pod uses it.
	claims := c.Host.CoreV1().PersistentVolumeClaims(harness.SystemNamespace)
	if err := claims.Delete(ctx, claim(victim.Name), metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	pods := c.Host.CoreV1().Pods(harness.SystemNamespace)
	if err := pods.Delete(ctx, victim.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}); err != nil {
		t.Error(err)
	}
}

// useDisk makes a disk the volume of the last replica until the test ends.
func (c *cluster) useDisk(t *testing.T, d *disk) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	victim, _ := c.victim(t, c.ServerPods, harness.Replicas-1)
	claims, volumes := c.Host.CoreV1().PersistentVolumeClaims(harness.SystemNamespace), c.Host.CoreV1().PersistentVolumes()
	current, err := claims.Get(ctx, claim(victim.Name), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volume, err := volumes.Get(ctx, current.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Any user of a Pod may write to it.
	if err := os.Chmod(d.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	own := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{GenerateName: "chaos-"}, Spec: volume.Spec}
	own.Spec.Local = &corev1.LocalVolumeSource{Path: d.dir}
	own.Spec.ClaimRef = &corev1.ObjectReference{Namespace: current.Namespace, Name: current.Name}
	own.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	if own, err = volumes.Create(ctx, own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if victim, err = c.Host.CoreV1().Pods(harness.SystemNamespace).Get(ctx, victim.Name, metav1.GetOptions{}); err != nil {
			t.Error(err)
			return
		}
		c.loseVolume(ctx, t, victim)
		c.awaitWhole(ctx, t)
		if err := volumes.Delete(ctx, own.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	c.loseVolume(ctx, t, victim)
	c.awaitWhole(ctx, t)
	if current, err = claims.Get(ctx, claim(victim.Name), metav1.GetOptions{}); err != nil || current.Spec.VolumeName != own.Name {
		t.Fatalf("the volume of %s is %q, want %q: %v", victim.Name, current.Spec.VolumeName, own.Name, err)
	}
}

// jumpClock simulates a jump of a replica's clock in its Leases: the host changes the times that it stores. No clock of this machine changes.
func (c *cluster) jumpClock(t *testing.T, holder *corev1.Pod, jump, duration time.Duration) {
	t.Helper()
	name := "knative-apiserver-member-" + holder.Name
	policies := c.Host.AdmissionregistrationV1()
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: clockPolicy},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"}},
			}}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "holder", Expression: fmt.Sprintf(
				"object.metadata.namespace == %q && has(object.spec.renewTime) && (object.metadata.name == %q || object.spec.holderIdentity.startsWith(%q))", harness.SystemNamespace, name, holder.Name)}},
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: fmt.Sprintf(
				`[JSONPatch{op: "replace", path: "/spec/renewTime", value: string(timestamp(object.spec.renewTime) + duration("%ds")).substring(0, 19) + ".000000Z"}]`, int(jump.Seconds()))}}},
		},
	}
	ctx := context.WithoutCancel(t.Context())
	if _, err := policies.MutatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		t.Error(err)
		return
	}
	defer func() {
		if err := policies.MutatingAdmissionPolicies().Delete(ctx, policy.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: policy.ObjectMeta, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name}}
	if _, err := policies.MutatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Error(err)
		return
	}
	defer func() {
		if err := policies.MutatingAdmissionPolicyBindings().Delete(ctx, policy.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	leases := c.Host.CoordinationV1().Leases(harness.SystemNamespace)
	jumped := func(ctx context.Context) error {
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if difference := time.Until(lease.Spec.RenewTime.Time); difference.Abs() < jump.Abs()/2 {
			return fmt.Errorf("%s was renewed %s ago", name, -difference)
		}
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, settled)
	defer cancel()
	if err := harness.Poll(limited, func() error { return jumped(limited) }); err != nil {
		t.Errorf("the clock does not jump: %v", err)
	}
	<-time.After(duration)
}

// TestCluster checks the promises of docs/reliability.md on the default installation, with one fault at a time.
func TestCluster(t *testing.T) {
	duration, seed := parameters(t)
	c, d := newCluster(t), newDisk(t)
	if d != nil {
		c.useDisk(t, d)
	}
	var namespaces [3]string
	for i, prefix := range []string{"chaos-a", "chaos-b", "chaos-objects"} {
		namespaces[i] = c.AsCluster().Namespace(t, prefix, nil)
	}
	c.namespaces = namespaces[:]
	s := newSite(t, c, newRecorder(), namespaces)
	s.endure(t, duration, seed, c.faults(s, d))
}
