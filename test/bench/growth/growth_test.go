// Package growth measures how the costs of a server change with the number of its objects.
package growth

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

var (
	services = flag.Int("services", 10000, "number of Services")
	triggers = flag.Int("triggers", 10000, "number of Triggers of one Broker")
)

const (
	namespace = "default"
	// workers is the number of concurrent requests that create objects.
	workers = 8
	// part is the number of objects whose rates of creation are compared.
	part = 1000
	// changes is the number of changes of a route that are measured.
	changes = 200
	// patience is the longest wait for a change.
	patience = 2 * time.Minute
)

// config allows an initial scale of zero.
const config = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: config-autoscaler
data:
  allow-zero-initial-scale: "true"
`

// BenchmarkGrowth creates Services with an initial scale of zero, and Triggers of one Broker, on a standalone server. It reports the rate at
// which the last thousand is created relative to the first, the memory for each, the time until a changed route takes effect, and the times
// after kill -9 and a restart until a host is served and an event is accepted.
func BenchmarkGrowth(b *testing.B) {
	if testing.Short() {
		*services, *triggers = min(*services, 2*part), min(*triggers, 2*part)
	}
	for range b.N {
		measure(b)
	}
}

func measure(b *testing.B) {
	s := newServer(b)
	s.start(b)
	before := s.megabytes(b)
	b.ReportMetric(before, "fresh-MB")

	app := harness.AppBinary(b)
	create(b, "Services", s.clients.Knative.ServingV1().Services(namespace), *services, func(i int) *servingv1.Service { return newService(app, i) })
	after := s.megabytes(b)
	b.ReportMetric((after-before)*1000/float64(*services), "kB/Service")

	create(b, "Brokers", s.clients.Knative.EventingV1().Brokers(namespace), 1, func(int) *eventingv1.Broker {
		return &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "growth"}}
	})
	before = after
	create(b, "Triggers", s.clients.Knative.EventingV1().Triggers(namespace), *triggers, newTrigger)
	after = s.megabytes(b)
	b.ReportMetric((after-before)*1000/float64(*triggers), "kB/Trigger")
	b.ReportMetric(after, "server-MB")

	s.route(b)

	s.Kill()
	restarted := time.Now()
	var probes sync.WaitGroup
	probes.Go(func() {
		s.await(b, "the server serves a known host", func() error { return s.get(s.host) })
		b.ReportMetric(time.Since(restarted).Seconds(), "served-after-s")
	})
	probes.Go(func() {
		s.await(b, "the server accepts an event", s.send)
		b.ReportMetric(time.Since(restarted).Seconds(), "accepted-after-s")
	})
	s.start(b)
	probes.Wait()
	b.ReportMetric(s.megabytes(b), "restarted-MB")
}

func newService(app string, i int) *servingv1.Service {
	return &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("service-%d", i)},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{servingv1.InitialScaleAnnotationKey: "0"}},
			Spec:       servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Image: "ko.local/app", Command: []string{app}}}}},
		}}},
	}
}

func newTrigger(i int) *eventingv1.Trigger {
	return &eventingv1.Trigger{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("trigger-%d", i)},
		Spec: eventingv1.TriggerSpec{
			Broker:     "growth",
			Filter:     &eventingv1.TriggerFilter{Attributes: map[string]string{"type": fmt.Sprintf("type-%d", i)}},
			Subscriber: duckv1.Destination{URI: "http://127.0.0.1:9/"},
		},
	}
}

// server is a standalone server that keeps its ports when it is restarted.
type server struct {
	*harness.Standalone
	clients *harness.Clients
	dir     string
	// gateway and broker are addresses.
	gateway, broker string
	// host is the host name of a Service.
	host string
}

func newServer(b *testing.B) *server {
	b.Helper()
	s := &server{dir: b.TempDir()}
	if err := os.WriteFile(filepath.Join(s.dir, "settings.yaml"), []byte(config), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, address := range []*string{&s.gateway, &s.broker} {
		number, err := port.Stable()
		if err != nil {
			b.Fatal(err)
		}
		*address = net.JoinHostPort("127.0.0.1", strconv.Itoa(number))
	}
	return s
}

func (s *server) start(b *testing.B) {
	b.Helper()
	portOf := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	var err error
	if s.Standalone, err = harness.StartStandalone(filepath.Join(s.dir, "data"), "--config-dir", s.dir, "--gateway-port", portOf(s.gateway),
		"--broker-port", portOf(s.broker)); err != nil {
		b.Fatal(err)
	}
	s.StopAfter(b)
	if s.clients, err = harness.ClientsOf(s.Kubeconfig); err != nil {
		b.Fatal(err)
	}
}

// route changes a route many times and reports the time from the response of the API until the gateway serves the new host name.
func (s *server) route(b *testing.B) {
	b.Helper()
	client := s.clients.Knative.ServingV1().Services(namespace)
	service, err := client.Get(b.Context(), "service-0", metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	u, err := url.Parse(service.Status.URL)
	if err != nil {
		b.Fatal(err)
	}
	s.host = u.Host
	s.await(b, "Service runs", func() error { return s.get(s.host) })
	took := make([]time.Duration, changes)
	for i := range took {
		tag, latest := fmt.Sprintf("tag-%d", i), true
		harness.Edit(b, client, service.Name, func(service *servingv1.Service) {
			service.Spec.Traffic = []servingv1.TrafficTarget{{Tag: tag, LatestRevision: &latest, Percent: new(int64(100))}}
		})
		began := time.Now()
		s.await(b, "the gateway serves the tag", func() error { return s.get(tag + "-" + s.host) })
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "route-p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "route-p99-ms")
}

// get sends a request to a host name.
func (s *server) get(host string) error {
	request, err := http.NewRequest(http.MethodGet, "http://"+s.gateway, nil)
	if err != nil {
		return err
	}
	request.Host = host
	return do(request, http.StatusOK)
}

// send sends an event to the Broker.
func (s *server) send() error {
	request, err := http.NewRequest(http.MethodPost, "http://"+s.broker+"/"+namespace+"/growth", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/growth", "Ce-Type": "type-0"} {
		request.Header.Set(name, value)
	}
	return do(request, http.StatusAccepted)
}

func do(request *http.Request, want int) error {
	code, body, err := harness.Exchange(http.DefaultClient, request)
	if err == nil && code != want {
		err = fmt.Errorf("the answer is %d %s", code, body)
	}
	return err
}

// await calls probe every millisecond until it succeeds.
func (s *server) await(b *testing.B, what string, probe func() error) {
	b.Helper()
	err := errors.New("not called")
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		if err = probe(); err != nil {
			<-time.After(time.Millisecond)
		}
	}
	if err != nil {
		b.Errorf("wait until %s: %v", what, err)
	}
}

// megabytes returns the resident memory.
func (s *server) megabytes(b *testing.B) float64 {
	b.Helper()
	return float64(s.ResidentMemory(b)) / 1e6
}

// object is an object with conditions.
type object interface {
	metav1.Object
	GetStatus() *duckv1.Status
}

// creator is the part of a typed client that creates objects and watches them.
type creator[O any] interface {
	Create(ctx context.Context, object O, options metav1.CreateOptions) (O, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// create creates n objects of a kind and waits until all are ready.
func create[O object](b *testing.B, kind string, client creator[O], n int, object func(i int) O) {
	b.Helper()
	events, err := client.Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()
	began := time.Now()
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := allReady[O](events, n); err != nil {
			b.Errorf("%s: %v", kind, err)
		}
	})
	var rates []float64
	for first := 0; first < n; first += part {
		began, last := time.Now(), min(first+part, n)
		var creating sync.WaitGroup
		for worker := range workers {
			creating.Go(func() {
				for i := first + worker; i < last; i += workers {
					if _, err := client.Create(b.Context(), object(i), metav1.CreateOptions{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		creating.Wait()
		rates = append(rates, float64(last-first)/time.Since(began).Seconds())
	}
	watching.Wait()
	if len(rates) > 1 {
		b.ReportMetric(rates[0], kind+"/s")
		b.ReportMetric(rates[len(rates)-1]/rates[0], kind+"-last/first")
		b.ReportMetric(time.Since(began).Seconds(), kind+"-ready-s")
	}
}

// allReady waits until n objects are ready.
func allReady[O object](events watch.Interface, n int) error {
	for ready := map[string]bool{}; len(ready) < n; {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				return fmt.Errorf("the watch ended when %d were ready", len(ready))
			}
			o, ok := event.Object.(O)
			if !ok {
				continue
			}
			if c := o.GetStatus().Conditions.Get(duckv1.ConditionReady); c != nil && c.Status == corev1.ConditionTrue {
				ready[o.GetName()] = true
			}
		case <-time.After(patience):
			return fmt.Errorf("%d are ready, and no other became so within %s", len(ready), patience)
		}
	}
	return nil
}
