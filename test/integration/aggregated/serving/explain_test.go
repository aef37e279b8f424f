// Package serving tests Serving behind a real kube-apiserver, registered by the shipped manifests and with their rights. The host has no
// nodes: the test reports Pods as running, and serves their requests itself.
package serving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// install starts a host cluster and a server with Serving, which stop when the test ends.
func install(t *testing.T) *harness.Installation {
	t.Helper()
	cluster, err := harness.StartCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	host, err := harness.Install(cluster, t.TempDir(), "apiserver,controllers,gateway",
		"--gateway-port=0", "--gateway-tls-port=0", "--gateway-internal-port=0", "--drain-port=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Server.Stop(); err != nil {
			t.Errorf("%v\n%s", err, host.Logs())
		}
	})
	return host
}

// application returns the port of an HTTP server, which stops when the test ends.
func application(t *testing.T) int32 {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	t.Cleanup(server.Close)
	return int32(server.Listener.Addr().(*net.TCPAddr).Port)
}

// runPods reports the Pods of a namespace as running at this machine, in the place of a kubelet, until the test ends.
func runPods(t *testing.T, host *harness.Installation, namespace string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := runNewPods(ctx, host, namespace); err != nil && ctx.Err() == nil {
				t.Log(err)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func runNewPods(ctx context.Context, host *harness.Installation, namespace string) error {
	pods := host.Host.CoreV1().Pods(namespace)
	all, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		p := &all.Items[i]
		if p.Status.PodIP != "" || p.DeletionTimestamp != nil {
			continue
		}
		now := metav1.Now()
		p.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: p.Spec.Containers[0].Name, Ready: true, Image: p.Spec.Containers[0].Image, Started: new(true),
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			}},
		}
		if _, err := pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// permit gives a user the right to read a resource of a namespace, and returns its clients.
func permit(t *testing.T, host *harness.Installation, namespace, user, resource string) *harness.Clients {
	t.Helper()
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{servingv1.GroupName}, Resources: []string{resource}, Verbs: []string{"get"}}},
	}
	if _, err := host.Host.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	host.Bind(t, namespace, user, "Role", user)
	return clients(t, host, user)
}

func clients(t *testing.T, host *harness.Installation, user string) *harness.Clients {
	t.Helper()
	c, err := harness.NewClients(host.User(t, user))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestExplain checks that revisions/explain is a right of its own, and explains a Revision that runs as Pods: which request of a user of
// services/proxy started the Pod, and the phases of its start.
func TestExplain(t *testing.T) {
	host := install(t)
	ns, other := host.Namespace(t, "explain", nil), host.Namespace(t, "other", nil)
	runPods(t, host, ns)
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}
	service.Spec.Template.Annotations = map[string]string{"autoscaling.knative.dev/window": "6s"}
	service.Spec.Template.Spec.Containers = []corev1.Container{{Image: "ko.local/app", Ports: []corev1.ContainerPort{{ContainerPort: application(t)}}}}
	if _, err := host.Admin.Knative.ServingV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the Service is ready", func() error {
		found, err := host.Admin.Knative.ServingV1().Services(ns).Get(t.Context(), "hello", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(found.Status.Conditions, func(c duckv1.Condition) bool {
			return c.Type == duckv1.ConditionReady && c.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("its conditions are %+v", found.Status.Conditions)
		}
		return nil
	})
	path := harness.KindOf("Revision").Path(ns, "hello-00001") + "/explain"
	reader := permit(t, host, ns, "reader", "revisions/explain")
	explain := func() (*servingv1.RevisionExplanation, error) {
		response := reader.Do(t, harness.Request{Method: http.MethodGet, Path: path})
		if response.Code != http.StatusOK {
			return nil, fmt.Errorf("code %d: %s", response.Code, response.Body)
		}
		return decoded(response)
	}
	var e *servingv1.RevisionExplanation
	until := func(what string, check func() error) {
		t.Helper()
		harness.Eventually(t, what, func() (err error) {
			if e, err = explain(); err != nil {
				return err
			}
			return check()
		})
	}
	until("it has scaled to zero", func() error {
		if e.DesiredReplicas != 0 || e.Reason != "NoRequests" || e.Activation != nil || e.Name != "hello-00001" || e.Kind != "RevisionExplanation" {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	first := e.Decisions[len(e.Decisions)-1]
	if first.Reason != "InitialScale" || first.To != 1 || first.Message != "The initial scale is 1." {
		t.Errorf("the first decision is %+v", first)
	}
	harness.Eventually(t, "the Pod is gone", func() error {
		pods, err := host.Host.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = errors.New("there is a Pod")
		}
		return err
	})

	response := host.Admin.Do(t, harness.Request{Method: http.MethodGet, Path: harness.KindOf("Service").Path(ns, "hello") + "/proxy/orders/1?token=secret"})
	if response.Code != http.StatusOK || string(response.Body) != "hello" {
		t.Fatalf("the application answers %d %s", response.Code, response.Body)
	}
	request := "GET hello." + ns + ".svc/orders/1"
	until("the cold start is complete", func() error {
		if len(e.ColdStarts) != 1 || e.ColdStarts[0].Outcome != "Responded" {
			return fmt.Errorf("%+v", e.ColdStarts)
		}
		return nil
	})
	if e.Activation == nil || e.Activation.Request != request {
		t.Errorf("activated by %+v, want %q", e.Activation, request)
	}
	if !slices.ContainsFunc(e.Decisions, func(d servingv1.ScalingDecision) bool {
		return d.From == 0 && d.To == 1 && d.Request == request && d.Message == "Activated by "+request+"."
	}) {
		t.Errorf("no decision names the request: %+v", e.Decisions)
	}
	var phases []string
	for _, phase := range e.ColdStarts[0].Phases {
		phases = append(phases, phase.Name)
	}
	if got, want := strings.Join(phases, " "), "Scaled Created Scheduled Started Ready Forwarded Responded"; got != want {
		t.Errorf("phases %q, want %q", got, want)
	}
	if !strings.HasPrefix(e.ColdStarts[0].Instance, "hello-00001-deployment-") {
		t.Errorf("instance %q", e.ColdStarts[0].Instance)
	}

	for who, test := range map[string]struct {
		*harness.Clients
		path string
		code int
	}{
		"the right to the log":                {permit(t, host, ns, "logger", "revisions/log"), path, http.StatusForbidden},
		"the right to Revisions":              {permit(t, host, ns, "viewer", "revisions"), path, http.StatusForbidden},
		"the right in another namespace":      {permit(t, host, other, "stranger", "revisions/explain"), path, http.StatusForbidden},
		"the right, for the Revision itself":  {reader, harness.KindOf("Revision").Path(ns, "hello-00001"), http.StatusForbidden},
		"the right, for an unknown Revision":  {reader, harness.KindOf("Revision").Path(ns, "none") + "/explain", http.StatusNotFound},
		"no right, for an unknown Revision":   {clients(t, host, "unbound"), harness.KindOf("Revision").Path(ns, "none") + "/explain", http.StatusForbidden},
		"the ClusterRole knative-developer":   {roleOf(t, host, ns, "developer", "knative-developer"), path, http.StatusOK},
		"the ClusterRole view of the cluster": {roleOf(t, host, ns, "onlooker", "view"), path, http.StatusOK},
	} {
		// Aggregated ClusterRoles are collected in the background.
		harness.Eventually(t, "a user has "+who, func() error {
			if response := test.Do(t, harness.Request{Method: http.MethodGet, Path: test.path}); response.Code != test.code {
				return fmt.Errorf("code %d, want %d: %s", response.Code, test.code, response.Body)
			}
			return nil
		})
	}
}

// roleOf gives a user a ClusterRole in a namespace, and returns its clients.
func roleOf(t *testing.T, host *harness.Installation, namespace, user, role string) *harness.Clients {
	t.Helper()
	host.Bind(t, namespace, user, "ClusterRole", role)
	return clients(t, host, user)
}

func decoded(response *harness.Response) (*servingv1.RevisionExplanation, error) {
	e := &servingv1.RevisionExplanation{}
	return e, json.Unmarshal(response.Body, e)
}
