// Package growth measures how the costs of a server change with the number of its objects.
package growth

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
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
	"github.com/knative-apiserver/knative-apiserver/test/bench/creation"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

var (
	services = flag.Int("services", 10000, "number of Services")
	triggers = flag.Int("triggers", 10000, "number of Triggers of one Broker")
)

const (
	namespace = "default"
	// part is the number of objects whose rates of creation are compared.
	part = 1000
	// changes is the number of changes of a route that are measured.
	changes = 200
	// patience is the longest wait for a change.
	patience = 2 * time.Minute
)

// config allows an initial scale of zero, and keeps all Revisions.
const config = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: config-autoscaler
data:
  allow-zero-initial-scale: "true"
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: config-gc
data:
  max-non-active-revisions: disabled
  retain-since-create-time: disabled
  retain-since-last-active-time: disabled
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
	creation.Measure(b, "Services", s.clients.Knative.ServingV1().Services(namespace), *services, part, func(i int) *servingv1.Service { return newService(app, i) })
	after := s.megabytes(b)
	b.ReportMetric((after-before)*1000/float64(*services), "kB/Service")

	creation.Measure(b, "Brokers", s.clients.Knative.EventingV1().Brokers(namespace), 1, part, func(int) *eventingv1.Broker {
		return &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "growth"}}
	})
	s.trigger(b, "Trigger-of-one-ms")
	before = after
	creation.Measure(b, "Triggers", s.clients.Knative.EventingV1().Triggers(namespace), *triggers, part, newTrigger)
	after = s.megabytes(b)
	b.ReportMetric((after-before)*1000/float64(*triggers), "kB/Trigger")
	b.ReportMetric(after, "server-MB")

	s.trigger(b, "Trigger-of-all-ms")
	s.route(b)

	s.Kill()
	var probes sync.WaitGroup
	probes.Go(func() {
		b.ReportMetric(figures.Until(b, patience, "the server serves a known host", func() error { return s.get(b.Context(), s.host) }).Seconds(), "served-after-s")
	})
	probes.Go(func() {
		send := func() error { return creation.Send(b.Context(), s.broker, namespace, "growth", "type-0") }
		b.ReportMetric(figures.Until(b, patience, "the server accepts an event", send).Seconds(), "accepted-after-s")
	})
	s.start(b)
	probes.Wait()
	b.ReportMetric(s.megabytes(b), "restarted-MB")
}

// BenchmarkRevisions changes the template of one Service a thousand times. It reports the time until the Revision of a change is ready, for the
// first and the last tenth of the changes, the memory for each, and the time until all are deleted with the Service.
func BenchmarkRevisions(b *testing.B) {
	n := 1000
	if testing.Short() {
		n = 50
	}
	for range b.N {
		revisions(b, n)
	}
}

func revisions(b *testing.B, n int) {
	s := newServer(b)
	s.start(b)
	before := s.megabytes(b)
	client := s.clients.Knative.ServingV1().Services(namespace)
	service := newService(harness.AppBinary(b), 0)
	latest := true
	service.Spec.Traffic = []servingv1.TrafficTarget{
		{LatestRevision: &latest, Percent: new(int64(100))},
		{RevisionName: service.Name + "-00001", Tag: "first", Percent: new(int64(0))},
	}
	if _, err := client.Create(b.Context(), service, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	took := make([]time.Duration, 0, n)
	for generation := 1; ; generation++ {
		name := fmt.Sprintf("%s-%05d", service.Name, generation)
		until := figures.Until(b, patience, name+" is the latest ready Revision", func() error {
			current, err := client.Get(b.Context(), service.Name, metav1.GetOptions{})
			if err == nil && current.Status.LatestReadyRevisionName != name {
				err = fmt.Errorf("it is %s", current.Status.LatestReadyRevisionName)
			}
			return err
		})
		if took = append(took, until); len(took) == n || b.Failed() {
			break
		}
		harness.Edit(b, client, service.Name, func(service *servingv1.Service) {
			service.Spec.Template.Annotations["example.com/change"] = strconv.Itoa(generation)
		})
	}
	b.ReportMetric(figures.Milliseconds(mean(took[:n/10])), "first-ready-ms")
	b.ReportMetric(figures.Milliseconds(mean(took[n-n/10:])), "last-ready-ms")
	b.ReportMetric((s.megabytes(b)-before)*1000/float64(n), "kB/Revision")
	current, err := client.Get(b.Context(), service.Name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	u, err := url.Parse(current.Status.URL)
	if err != nil {
		b.Fatal(err)
	}
	figures.Until(b, patience, "the last Revision serves", func() error { return s.get(b.Context(), u.Host) })
	figures.Until(b, patience, "the first Revision serves", func() error { return s.get(b.Context(), "first-"+u.Host) })

	all := s.clients.Knative.ServingV1().Revisions(namespace)
	remaining := func() error {
		list, err := all.List(b.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d Revisions exist", len(list.Items))
		}
		return err
	}
	if err := remaining(); err == nil || err.Error() != fmt.Sprintf("%d Revisions exist", n) {
		b.Errorf("%v, want %d", err, n)
	}
	if err := client.Delete(b.Context(), service.Name, metav1.DeleteOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(figures.Until(b, patience, "all Revisions are deleted", remaining).Seconds(), "deleted-after-s")
}

// BenchmarkWatchers changes one object for one watcher, beside none and beside thousands of watchers of other namespaces. It reports the
// processor time of the server for a change, the time from the response of the API until the watcher has it, and the memory for a watcher.
func BenchmarkWatchers(b *testing.B) {
	n := 2000
	if testing.Short() {
		n = 100
	}
	for range b.N {
		watchers(b, n)
	}
}

func watchers(b *testing.B, n int) {
	s := newServer(b)
	s.start(b)
	client := s.clients.Knative.EventingV1().Triggers(namespace)
	trigger := newTrigger(0)
	if _, err := client.Create(b.Context(), trigger, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	events, err := client.Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()
	await(b, events, func(trigger *eventingv1.Trigger) bool { return trigger.Status.ObservedGeneration == 1 })

	change := func(metric string) {
		b.Helper()
		took, cpu := make([]time.Duration, changes), s.CPUTime(b)
		for i := range took {
			want := harness.Edit(b, client, trigger.Name, func(trigger *eventingv1.Trigger) {
				trigger.Annotations = map[string]string{"example.com/change": strconv.Itoa(i)}
			}).ResourceVersion
			began := time.Now()
			await(b, events, func(trigger *eventingv1.Trigger) bool { return trigger.ResourceVersion == want })
			took[i] = time.Since(began)
		}
		b.ReportMetric(figures.Microseconds(s.CPUTime(b)-cpu)/changes, metric+"-cpu-µs")
		b.ReportMetric(figures.Microseconds(mean(took)), metric+"-seen-µs")
	}
	change("warm")
	change("alone")
	before := s.megabytes(b)
	for i := range n {
		other, err := s.clients.Knative.EventingV1().Triggers(fmt.Sprintf("other-%d", i)).Watch(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		defer other.Stop()
	}
	b.ReportMetric((s.megabytes(b)-before)*1000/float64(n), "kB/watcher")
	change("beside-others")
}

// mean returns the mean of durations.
func mean(all []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
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
	figures.Until(b, patience, "Service runs", func() error { return s.get(b.Context(), s.host) })
	creation.ChangeRoute(b, client, service.Name, changes, func(tag string) time.Duration {
		return figures.Until(b, patience, "the gateway serves the tag", func() error { return s.get(b.Context(), tag+"-"+s.host) })
	})
}

// trigger changes the filter of a Trigger many times and reports the median time from the response of the API until the Trigger is ready with it.
func (s *server) trigger(b *testing.B, metric string) {
	b.Helper()
	client := s.clients.Knative.EventingV1().Triggers(namespace)
	trigger := newTrigger(*triggers)
	if _, err := client.Create(b.Context(), trigger, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	events, err := client.Watch(b.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + trigger.Name})
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()
	took := make([]time.Duration, changes)
	for i := range took {
		want := harness.Edit(b, client, trigger.Name, func(trigger *eventingv1.Trigger) {
			trigger.Spec.Filter.Attributes["type"] = fmt.Sprintf("changed-%d", i)
		}).Generation
		began := time.Now()
		await(b, events, func(trigger *eventingv1.Trigger) bool {
			return trigger.Status.ObservedGeneration == want && creation.Ready(trigger)
		})
		took[i] = time.Since(began)
	}
	if err := client.Delete(b.Context(), trigger.Name, metav1.DeleteOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(figures.Milliseconds(figures.Median(took)), metric)
}

// await waits for an object that satisfies the condition.
func await[O any](b *testing.B, events watch.Interface, condition func(O) bool) {
	b.Helper()
	end := time.After(patience)
	for {
		select {
		case event, open := <-events.ResultChan():
			object, ok := event.Object.(O)
			if !open || !ok {
				b.Fatalf("the watch ended with %v", event.Object)
			}
			if condition(object) {
				return
			}
		case <-end:
			b.Fatal("no change")
		}
	}
}

// get sends a request to a host name.
func (s *server) get(ctx context.Context, host string) error {
	return creation.Get(ctx, s.gateway, host)
}

// megabytes returns the resident memory.
func (s *server) megabytes(b *testing.B) float64 {
	b.Helper()
	return float64(s.ResidentMemory(b)) / 1e6
}
