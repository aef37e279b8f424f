// Package serving tests Serving on a cluster with the shipped installation: from kubectl to the response of a Pod.
package serving

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// answerTimeout is the timeout of a request, including a cold start. It is less than the timeout of a Revision.
const answerTimeout = 3 * time.Minute

var openNode = sync.OnceValues(harness.OpenNode)

// atOnce is the number of parallel tests: they mostly wait for the cluster.
const atOnce = "4"

func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// space is a namespace for one test.
type space struct {
	*harness.Node
	kubectl   *harness.Kubectl
	namespace string
	// image is the sample application.
	image string
	http  *http.Client
}

// newSpace creates a namespace, which is deleted with its content when the test ends. It skips the test without a cluster.
func newSpace(t *testing.T, prefix string, labels map[string]string) *space {
	t.Helper()
	node, err := openNode()
	if errors.Is(err, harness.ErrNoNode) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	s := &space{Node: node, image: image, http: node.HTTPClient(answerTimeout)}
	t.Cleanup(s.http.CloseIdleConnections)
	s.namespace = node.AsCluster().Namespace(t, "serving-"+prefix, labels)
	s.kubectl = harness.NewKubectl(t, node.Kubeconfig, s.namespace)
	return s
}

// apply applies an object with kubectl.
func (s *space) apply(t testing.TB, object runtime.Object) {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}
	delete(content, "status")
	manifest, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	s.applyManifest(t, string(manifest))
}

// applyManifest applies objects in YAML or JSON. A warning that the machine was too busy for the dry run is allowed.
func (s *space) applyManifest(t testing.TB, manifest string) {
	t.Helper()
	if got := s.kubectl.Run(t, manifest, "apply", "-f", "-"); got.Code != 0 {
		t.Fatalf("kubectl apply of %s: %+v", manifest, got)
	}
}

// ready waits until a Service's Ready condition is True for its current generation.
func (s *space) ready(t testing.TB, name string) *servingv1.Service {
	t.Helper()
	return eventually(t, s.Admin.Knative.ServingV1().Services(s.namespace), name, "is ready", func(service *servingv1.Service) error {
		return condition(service, &service.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	})
}

// deploy applies a Service and waits until it is ready.
func (s *space) deploy(t testing.TB, service *servingv1.Service) *servingv1.Service {
	t.Helper()
	s.apply(t, service)
	return s.ready(t, service.Name)
}

// revision returns the latest ready Revision of a Service.
func (s *space) revision(t testing.TB, service *servingv1.Service) *servingv1.Revision {
	t.Helper()
	return read(t, s.Admin.Knative.ServingV1().Revisions(s.namespace), service.Status.LatestReadyRevisionName)
}

// pods returns the Pods of a Revision that are not being deleted.
func (s *space) pods(ctx context.Context, revision string) ([]corev1.Pod, error) {
	list, err := s.Host.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision=" + revision})
	if err != nil {
		return nil, err
	}
	var kept []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			kept = append(kept, pod)
		}
	}
	return kept, nil
}

// untilPods waits until a Revision has exactly that many ready Pods and no other.
func (s *space) untilPods(t testing.TB, revision string, want int) (pods []corev1.Pod) {
	t.Helper()
	until(t, fmt.Sprintf("Revision %s has %d Pods", revision, want), func() (err error) {
		if pods, err = s.pods(t.Context(), revision); err != nil {
			return err
		}
		ready := 0
		for i := range pods {
			for _, c := range pods[i].Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if len(pods) != want || ready != want {
			return fmt.Errorf("it has %d, of which %d are ready", len(pods), ready)
		}
		return nil
	})
	return pods
}

// host returns the host name of a URL.
func host(t testing.TB, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		t.Fatalf("%q must be a URL with a host: %v", raw, err)
	}
	return u.Host
}

// toward returns a client that connects to one address for every host name.
func toward(t testing.TB, address string) *http.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: answerTimeout, Transport: transport}
}

// answer is the response to a request.
type answer struct {
	code   int
	header http.Header
	body   string
}

// ask sends a request and reads the whole response.
func ask(ctx context.Context, client *http.Client, method, target string, header http.Header, body io.Reader) (*answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	if header != nil {
		request.Header = header
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", target, err)
	}
	return &answer{code: response.StatusCode, header: response.Header, body: string(content)}, nil
}

// mustGet sends a GET request that must be answered 200.
func mustGet(t testing.TB, client *http.Client, target string) string {
	t.Helper()
	a, err := ask(t.Context(), client, http.MethodGet, target, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a.code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", target, a.code, a.body)
	}
	return a.body
}

// get is mustGet through the gateway, from outside the cluster.
func (s *space) get(t testing.TB, target string) string {
	t.Helper()
	return mustGet(t, s.http, target)
}

// decoded decodes a JSON response of the application.
func decoded[R any](t testing.TB, body string) (report R) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &report); err != nil {
		t.Fatalf("decoding %q: %v", body, err)
	}
	return report
}
