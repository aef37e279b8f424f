package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// hostOutage is the downtime of the host's API server: longer than any Lease.
const hostOutage = 30 * time.Second

// TestHostAPIServerDown checks that requests and events do not need the host's API server: none fails while it is down, events
// are delivered meanwhile, and everything else continues afterwards without a restart.
func TestHostAPIServerDown(t *testing.T) {
	s := setUp(t)
	// It is created before: controllers of the host take up to a minute to reconnect.
	space := node.NewSpace(t, "policy")
	before := restarts(t)
	l := startSteadyLoad(t, s, false)
	cluster(t, "stop", "kube-apiserver")
	stopped := time.Now()
	t.Cleanup(func() {
		if _, err := os.Stat(filepath.Join(filepath.Dir(node.Kubeconfig), "kube-apiserver.stopped")); err == nil {
			cluster(t, "start", "kube-apiserver")
		}
	})
	if _, err := node.ServerPods(t.Context()); err == nil {
		t.Fatal("the host API server still answers")
	}
	pass(t, hostOutage)
	ending := time.Now()
	cluster(t, "start", "kube-apiserver")
	started := time.Now()
	eventually(t, recovery, "a replica leads again", func(ctx context.Context) error {
		_, err := leader(ctx)
		return err
	})
	awaitWhole(t)
	t.Logf("complete again %s after the host API server was started", time.Since(started).Round(100*time.Millisecond))
	policyHolds(t, space)
	l.stop(t)
	l.requests.mustNotHaveFailed(t)
	l.events.mustNotHaveFailed(t)
	l.mustHaveDelivered(t, stopped, ending)
	if after := restarts(t); !maps.Equal(before, after) {
		t.Errorf("containers were restarted: %v, before %v", after, before)
	}
}

// policyHolds checks that a new admission policy of the host becomes effective.
func policyHolds(t *testing.T, space *harness.Space) {
	t.Helper()
	defer func() {
		policies := node.Host.AdmissionregistrationV1()
		if err := errors.Join(
			policies.ValidatingAdmissionPolicyBindings().Delete(t.Context(), space.Name, metav1.DeleteOptions{}),
			policies.ValidatingAdmissionPolicies().Delete(t.Context(), space.Name, metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
	}()
	space.Apply(t, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [messaging.knative.dev], apiVersions: ["*"], operations: [CREATE], resources: [channels]}]
  validations: [{expression: "false", message: no more of these}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec:
  policyName: %[1]s
  validationActions: [Deny]
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}
`, space.Name))
	channels := node.Admin.Knative.MessagingV1().Channels(space.Name)
	channel := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}
	// Informers that failed during the outage wait up to half a minute before they connect again.
	eventually(t, recovery, "the policy is in effect", func(ctx context.Context) error {
		_, err := channels.Create(ctx, channel, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "no more of these") {
			return errors.Join(errors.New("a Channel is not refused for it"), err)
		}
		return nil
	})
}

// cluster runs a command of hack/cluster on the cluster under test.
func cluster(t *testing.T, command, program string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	// Not the context of the test, which is canceled when its cleanup starts the stopped program.
	cmd := exec.Command("go", "-C", filepath.Join(root, "hack", "cluster"), "run", ".", command, "--dir", filepath.Dir(node.Kubeconfig), program)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cluster %s %s: %v\n%s", command, program, err, out)
	}
}

// mustHaveDelivered fails the test unless the events that were acknowledged in a period were also delivered in it, except the
// events of its second half.
func (l *load) mustHaveDelivered(t *testing.T, from, to time.Time) {
	t.Helper()
	half := from.Add(to.Sub(from) / 2)
	received, err := l.stage.received()
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	during, late := 0, []string{}
	for id, at := range l.accepted {
		if at.Before(from) || at.After(half) {
			continue
		}
		during++
		if received[id].After(to) {
			late = append(late, fmt.Sprintf("%s after %s", id, received[id].Sub(at).Round(time.Millisecond)))
		}
	}
	if during == 0 || len(late) > 0 {
		t.Errorf("of %d events in that time %d were delivered late: %.500v", during, len(late), late)
	}
}
