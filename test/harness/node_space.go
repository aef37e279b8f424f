package harness

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// settled bounds the time for objects, including Pods, to become ready on a busy cluster.
const settled = 2 * time.Minute

// AsCluster returns the cluster for helpers of tests without Pods: namespaces, users, permissions.
func (n *Node) AsCluster() *Cluster {
	return &Cluster{Kubeconfig: n.Kubeconfig, Address: n.Address, Admin: n.Admin, Host: n.Host}
}

// Space is a namespace of one test on a Node. It is deleted with its content when the test ends.
type Space struct {
	Node *Node
	// Name is the name of the namespace.
	Name    string
	kubectl *Kubectl
}

// NewSpace creates a namespace whose name is prefix and a random suffix.
func (n *Node) NewSpace(t testing.TB, prefix string) *Space {
	t.Helper()
	name := n.AsCluster().Namespace(t, prefix, nil)
	return &Space{Node: n, Name: name, kubectl: NewKubectl(t, n.Kubeconfig, name)}
}

// Apply applies manifests with kubectl and ignores warnings, which a busy cluster emits.
func (s *Space) Apply(t testing.TB, manifests ...string) {
	t.Helper()
	result := s.kubectl.Run(t, strings.Join(manifests, "\n---\n"), "apply", "-f", "-")
	if result.Code != 0 {
		t.Fatalf("kubectl apply: exit code %d\nstdout: %s\nstderr: %s", result.Code, result.Stdout, result.Stderr)
	}
}

// Delete deletes objects with kubectl, such as trigger/orders, and waits until they are removed.
func (s *Space) Delete(t testing.TB, names ...string) {
	t.Helper()
	s.kubectl.Must(t, "", append([]string{"delete"}, names...)...)
}

// Host returns the fully qualified name of a Service of the namespace.
func (s *Space) Host(service string) string { return service + "." + s.Name + ".svc.cluster.local" }

// Application returns the manifests of a Pod of the sample application and of its Service.
func (s *Space) Application(t testing.TB, name string, environment map[string]string) string {
	t.Helper()
	image, err := s.Node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	variables := []string{`{name: PORT, value: "8080"}`}
	for key, value := range environment {
		variables = append(variables, fmt.Sprintf("{name: %s, value: %q}", key, value))
	}
	return fmt.Sprintf(`
{apiVersion: v1, kind: Service, metadata: {name: %[1]s}, spec: {selector: {app: %[1]s}, ports: [{port: 80, targetPort: 8080}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: %[2]q, env: [%[3]s], readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}}`,
		name, image, strings.Join(variables, ", "))
}

// object reads a Knative object or a Pod by a name such as trigger/orders.
func (s *Space) object(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	kind, name, _ := strings.Cut(name, "/")
	resources := map[string]schema.GroupVersionResource{
		"pod": {Version: "v1", Resource: "pods"}, "eventpolicy": {Group: "eventing.knative.dev", Version: "v1alpha1", Resource: "eventpolicies"},
	}
	for _, k := range AllKinds() {
		resources[strings.ToLower(k.Kind)] = k.GVR()
	}
	resource, found := resources[kind]
	if !found {
		return nil, fmt.Errorf("the kind of %s/%s is unknown", kind, name)
	}
	return s.Node.Admin.Dynamic.Resource(resource).Namespace(s.Name).Get(ctx, name, metav1.GetOptions{})
}

// Ready waits until objects such as trigger/orders or pod/client are ready.
func (s *Space) Ready(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		s.SaysWithin(t, settled, name, "Ready", "True")
	}
}

// Says waits until a condition of an object is as expected: "<status>", or "<status> <reason>", with a message that contains
// all of details, for the object's current generation. It returns the object.
func (s *Space) Says(t testing.TB, name, condition, want string, details ...string) *unstructured.Unstructured {
	t.Helper()
	return s.SaysWithin(t, Patience, name, condition, want, details...)
}

// SaysWithin is like Says with a longer timeout.
func (s *Space) SaysWithin(t testing.TB, limit time.Duration, name, condition, want string, details ...string) *unstructured.Unstructured {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var object *unstructured.Unstructured
	err := Poll(ctx, func() (err error) {
		if object, err = s.object(ctx, name); err != nil {
			return err
		}
		return says(object, condition, want, details)
	})
	if err != nil {
		t.Fatalf("wait until %s of namespace %s is %s=%s: %v", name, s.Name, condition, want, err)
	}
	return object
}

func says(object *unstructured.Unstructured, condition, want string, details []string) error {
	observed, found, err := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	if err != nil {
		return err
	}
	if found && observed != object.GetGeneration() {
		return fmt.Errorf("generation %d, observedGeneration %d", object.GetGeneration(), observed)
	}
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		if c["type"] != condition {
			continue
		}
		got, _ := c["status"].(string)
		if strings.Contains(want, " ") {
			got = fmt.Sprintf("%s %v", got, c["reason"])
		}
		message, _ := c["message"].(string)
		for _, detail := range details {
			if !strings.Contains(message, detail) {
				return fmt.Errorf("the message is %q, without %q", message, detail)
			}
		}
		if got == want {
			return nil
		}
	}
	return fmt.Errorf("the conditions are %v", conditions)
}

// Address waits until an object has an address, and returns it.
func (s *Space) Address(t testing.TB, name string) string {
	t.Helper()
	address, _, err := unstructured.NestedString(s.Says(t, name, "Addressable", "True").Object, "status", "address", "url")
	if err != nil || address == "" {
		t.Fatalf("%s has no address (%v)", name, err)
	}
	return address
}

// Pod waits until a Pod is ready, and returns it.
func (s *Space) Pod(t testing.TB, name string) *corev1.Pod {
	t.Helper()
	s.Ready(t, "pod/"+name)
	pod, err := s.Node.Host.CoreV1().Pods(s.Name).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// Log returns the log of a Pod.
func (s *Space) Log(ctx context.Context, pod string) (string, error) {
	out, err := s.Node.Host.CoreV1().Pods(s.Name).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
	return string(out), err
}

// Client returns a client whose requests a Pod of the sample application relays, which also resolves the names.
func (s *Space) Client(t testing.TB, pod string) *http.Client {
	t.Helper()
	return &http.Client{Timeout: Patience, Transport: fromPod("http://" + s.Pod(t, pod).Status.PodIP + ":8080/relay")}
}

// fromPod is the URL at which a sample application relays requests.
type fromPod string

var _ http.RoundTripper = fromPod("")

// RoundTrip sends a request to the application, which relays it.
func (p fromPod) RoundTrip(request *http.Request) (*http.Response, error) {
	relayed := request.Clone(request.Context())
	query := url.Values{"to": {request.URL.String()}, "host": {request.Host}}
	var err error
	if relayed.URL, err = url.Parse(string(p) + "?" + query.Encode()); err != nil {
		return nil, err
	}
	relayed.Host = ""
	return http.DefaultTransport.RoundTrip(relayed)
}

// Exchange sends a request and returns the status code and the body of the response.
func Exchange(client *http.Client, request *http.Request) (int, string, error) {
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
