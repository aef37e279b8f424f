// Package tenants measures on a standalone server how long a quiet namespace waits while another one floods. The server, the
// applications and the clients share the processors; the clients of the flood have the lowest priority.
package tenants

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/load"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// Namespaces of the tenants.
const (
	flooding = "flooding"
	quiet    = "quiet"
)

// clients is the number of clients of a flood, batchSize the number of events in a batch.
const (
	clients   = 64
	batchSize = 200
)

func TestMain(m *testing.M) {
	if load.Generate() {
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// server is a standalone server with both namespaces.
type server struct {
	*harness.Standalone
	*harness.Clients
}

func start(b *testing.B) *server {
	b.Helper()
	standalone := harness.RunStandalone(b, filepath.Join(b.TempDir(), "data"))
	clients, err := harness.ClientsOf(standalone.Kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	s := &server{Standalone: standalone, Clients: clients}
	for _, namespace := range []string{flooding, quiet} {
		code, body := s.post(b, "/api/v1/namespaces", "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
		if code != http.StatusCreated && code != http.StatusNotFound {
			b.Fatalf("create namespace %s: code %d: %s", namespace, code, body)
		}
	}
	return s
}

// post creates an object.
func (s *server) post(b *testing.B, path, manifest string) (int, []byte) {
	b.Helper()
	content, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		b.Fatal(err)
	}
	response, err := s.Send(b.Context(), harness.Request{Method: http.MethodPost, Path: path, Body: content})
	if err != nil {
		b.Fatal(err)
	}
	return response.Code, response.Body
}

// create creates an object and waits until it is ready.
func (s *server) create(b *testing.B, kind, namespace, name, manifest string) {
	b.Helper()
	k := harness.KindOf(kind)
	if code, body := s.post(b, k.Collection(namespace), manifest); code != http.StatusCreated {
		b.Fatalf("create %s: code %d: %s", kind, code, body)
	}
	harness.Eventually(b, kind+" "+namespace+"/"+name+" is ready", func() error {
		o, err := s.Dynamic.Resource(k.GVR()).Namespace(namespace).Get(b.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("its conditions are %v", conditions))
	})
}

// report compares the latency of do without and with the flood.
func (s *server) report(b *testing.B, flood *load.Load, do func() error) {
	b.Helper()
	for range b.N {
		without, with := flood.Compare(b, do)
		for _, r := range []struct {
			when string
			load.Latency
		}{{"quiet", without}, {"flood", with}} {
			b.ReportMetric(milliseconds(r.P50), r.when+"-p50-ms")
			b.ReportMetric(milliseconds(r.P95), r.when+"-p95-ms")
			b.ReportMetric(milliseconds(r.P99), r.when+"-p99-ms")
		}
		b.ReportMetric(float64(with.P95)/float64(without.P95), "p95-ratio")
	}
	b.ReportMetric(0, "ns/op")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// address returns the host:port of a URL.
func address(b *testing.B, of string) string {
	b.Helper()
	u, err := url.Parse(of)
	if err != nil {
		b.Fatal(err)
	}
	return u.Host
}

// BenchmarkFloodOfRequests floods a Service of one namespace and measures requests to another's.
func BenchmarkFloodOfRequests(b *testing.B) {
	s := start(b)
	app, err := json.Marshal([]string{harness.AppBinary(b)})
	if err != nil {
		b.Fatal(err)
	}
	for _, namespace := range []string{flooding, quiet} {
		s.create(b, "Service", namespace, "hello", fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "1", autoscaling.knative.dev/max-scale: "1"}}
    spec: {containers: [{image: ko.local/app, command: %s}]}`, app))
	}
	to := func(namespace string) *load.Load {
		o, err := s.Knative.ServingV1().Services(namespace).Get(b.Context(), "hello", metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		return &load.Load{Clients: clients, Address: address(b, s.Gateway), Method: http.MethodGet, URL: "http://" + address(b, o.Status.URL) + "/"}
	}
	calm := to(quiet)
	calm.Once = true
	client := calm.Client()
	s.report(b, to(flooding), func() error { return calm.Do(b.Context(), client, http.StatusOK) })
}

// BenchmarkFloodOfEvents floods a Broker of one namespace and measures events of another's, until they reach the subscriber.
func BenchmarkFloodOfEvents(b *testing.B) { floodOfEvents(b, "event", nil) }

// BenchmarkFloodOfBatches is BenchmarkFloodOfEvents with a flood of batches of many events.
func BenchmarkFloodOfBatches(b *testing.B) {
	const event = `{"specversion":"1.0","id":"flood","source":"/bench","type":"order","data":"event"}`
	batch := "[" + strings.Repeat(event+",", batchSize-1) + event + "]"
	floodOfEvents(b, batch, map[string]string{"Content-Type": "application/cloudevents-batch+json"})
}

// floodOfEvents measures events beside a flood of requests with a body and headers; nil stands for the headers of one event.
func floodOfEvents(b *testing.B, body string, header map[string]string) {
	b.Helper()
	s := start(b)
	arrived := make(chan string, 1000)
	subscriber := harness.NewSink(b).At("/")
	subscriber.Answer(func(d *harness.Delivery) harness.Answer {
		if d.Attempt == 1 {
			arrived <- d.ID
		}
		return harness.Answer{}
	})
	// The flood's subscriber is another process, like the application of another tenant.
	number, err := port.Stable()
	if err != nil {
		b.Fatal(err)
	}
	other, err := harness.StartProcess([]string{"PORT=" + strconv.Itoa(number)}, harness.AppBinary(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(other.Kill)
	for namespace, uri := range map[string]string{quiet: subscriber.URL, flooding: "http://127.0.0.1:" + strconv.Itoa(number) + "/"} {
		s.create(b, "Broker", namespace, "default", "{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: default}}")
		s.create(b, "Trigger", namespace, "all", fmt.Sprintf(
			"{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: all}, spec: {broker: default, subscriber: {uri: %q}}}", uri))
	}
	to := func(namespace string) *load.Load {
		return &load.Load{
			Clients: clients, Method: http.MethodPost, URL: s.Broker + "/" + namespace + "/default",
			Header: map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "flood", "Ce-Source": "/bench", "Ce-Type": "order"}, Body: "event",
		}
	}
	calm := to(quiet)
	calm.Once = true
	client := calm.Client()
	flood := to(flooding)
	flood.Body = body
	if header != nil {
		flood.Header = header
	}
	next := 0
	s.report(b, flood, func() error {
		next++
		id := strconv.Itoa(next)
		calm.Header["Ce-Id"] = id
		if err := calm.Do(b.Context(), client, http.StatusAccepted); err != nil {
			return err
		}
		for {
			select {
			case got := <-arrived:
				if got == id {
					return nil
				}
			case <-b.Context().Done():
				return b.Context().Err()
			}
		}
	})
}
