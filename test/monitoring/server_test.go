package monitoring

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// namespace has all objects of the test.
const namespace = "shop"

// onClusters are the metrics of rules that a standalone server does not have: its certificates do not rotate, it has no replicas and no host.
var onClusters = sets.New("knative_apiserver_certificate_expiration_seconds", "knative_apiserver_host_certificate_expiration_seconds",
	"leader_election_master_status", "apiserver_flowcontrol_rejected_requests_total", "aggregator_unavailable_apiservice",
	"kube_statefulset_status_replicas_ready", "kube_statefulset_replicas", "kube_deployment_status_replicas_available",
	"kube_deployment_spec_replicas", "kubelet_volume_stats_available_bytes", "kubelet_volume_stats_capacity_bytes")

// TestPrometheus checks with a real Prometheus and a real server that every query of the dashboards has data under load, that the metrics of
// the rules exist, and that faults fire alerts: of subscribers, of Services, and of the server.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	tool(t, "prometheus")
	w := newWorkload(t)
	p := runPrometheus(t, w.Clients)
	// A counter rises from a value that Prometheus has seen.
	eventually(t, "the first events are accepted", w.send)
	eventually(t, "the first request is answered", func() error { return w.request("hello", "/", http.StatusOK) })
	eventually(t, "the first requests and events are counted", func() error {
		for _, expression := range []string{
			`knative_gateway_requests_total{service="hello"}`, `knative_eventing_events_dropped_total{name="drops"} > 0`,
			`knative_eventing_events_dead_lettered_total{name="dead"} > 0`, `knative_gateway_cold_start_seconds_count{service="hello"}`,
		} {
			if err := p.holds(t.Context(), expression); err != nil {
				return err
			}
		}
		return nil
	})
	// The next request is a cold start.
	eventually(t, "the Service has scaled to zero", func() error {
		return p.holds(t.Context(), `knative_autoscaler_ready_instances{service="hello"} == 0`)
	})
	w.load(t)

	t.Run("dashboards", func(t *testing.T) { testDashboards(t, p) })
	t.Run("metrics", func(t *testing.T) { testMetrics(t, p) })
	t.Run("alerts", func(t *testing.T) {
		p.fires(t, "KnativeEventsDropped", map[string]string{"severity": "critical", "kind": "Trigger", "namespace": namespace, "name": "drops"})
		p.fires(t, "KnativeEventsDeadLettered", map[string]string{"severity": "warning", "kind": "Trigger", "namespace": namespace, "name": "dead"})
		p.fires(t, "KnativeDeliveriesLate", map[string]string{"severity": "warning", "kind": "Trigger", "namespace": namespace, "name": "late"})
		for _, severity := range []string{"critical", "warning"} {
			p.fires(t, "KnativeServiceErrorBudgetBurn", map[string]string{"severity": severity, "namespace": namespace, "service": "fails"})
		}
		p.fires(t, "KnativeRequestsQueue", map[string]string{"severity": "warning", "namespace": namespace, "service": "busy"})
		p.only(t, "KnativeEventsDropped", "drops")
		p.only(t, "KnativeEventsDeadLettered", "dead")
		for _, alert := range []string{"KnativeMetricsAbsent", "KnativeEtcdMemberMissing", "KnativeEtcdNoLeader", "KnativeEtcdAlarm"} {
			// A scrape that the server misses on a busy machine may fire an alert until the next one.
			eventually(t, alert+" does not fire", func() error {
				samples, err := p.query(t.Context(), fmt.Sprintf(`ALERTS{alertname=%q}`, alert))
				if err == nil && len(samples) > 0 {
					err = fmt.Errorf("it fires without a fault: %v", samples)
				}
				return err
			})
		}
		w.stop()
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		p.fires(t, "KnativeReplicaUnreachable", map[string]string{"severity": "warning", "job": "knative-apiserver"})
	})
}

// testDashboards checks that all queries have data, and all variables have values.
func testDashboards(t *testing.T, p *prometheus) {
	// Longer than the test on a slow machine, so that the rate of a single cold start is not 0.
	choices := strings.NewReplacer("$__rate_interval", "10m", "$__range", "10m", "$namespace", namespace, "$service", "hello",
		"$revision", ".*", "$broker", ".*", "$consumer", ".*")
	definition := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	for file, d := range dashboards(t) {
		for _, v := range d.Templating.List {
			if v.Type != "query" {
				continue
			}
			match := definition.FindStringSubmatch(v.Definition)
			if match == nil {
				t.Errorf("%s: variable %s is defined by %q", file, v.Name, v.Definition)
				continue
			}
			eventually(t, fmt.Sprintf("%s has values of %s", file, v.Name), func() error {
				values, err := p.labelValues(t.Context(), match[2], choices.Replace(match[1]))
				if err == nil && len(values) == 0 {
					err = fmt.Errorf("no values for %s", v.Definition)
				}
				return err
			})
		}
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				eventually(t, fmt.Sprintf("%s: query %s of %q has data", file, target.RefID, panel.Title), func() error {
					return p.holds(t.Context(), choices.Replace(target.Expr))
				})
			}
		}
	}
}

// testMetrics checks that the metrics that rules read exist.
func testMetrics(t *testing.T, p *prometheus) {
	names, err := p.labelValues(t.Context(), "__name__", "")
	if err != nil {
		t.Fatal(err)
	}
	exist := sets.New(names...)
	metric := regexp.MustCompile(`\b(?:knative|apiserver|kube|kubelet|leader|aggregator)_[a-z0-9_]+\b`)
	for _, r := range rules(t) {
		for _, at := range metric.FindAllStringIndex(r.Expr, -1) {
			name := r.Expr[at[0]:at[1]]
			// Parts of the name of a recorded metric.
			if strings.HasPrefix(r.Expr[at[1]:], ":") || at[0] > 0 && r.Expr[at[0]-1] == ':' {
				continue
			}
			if !exist.Has(name) && !onClusters.Has(name) {
				t.Errorf("%s%s reads %s, which does not exist", r.Alert, r.Record, name)
			}
		}
	}
}

// workload is a standalone server with Services and subscribers, some of which fail.
type workload struct {
	*harness.Standalone
	*harness.Clients
	http *http.Client
	// hosts are the hosts of Services by name.
	hosts map[string]string
	// broker and channel are the addresses for events.
	broker, channel string
	// stop ends the load and the hanging subscriber. It may be called several times.
	stop func()
	// loading ends when the load has ended.
	loading sync.WaitGroup
	ctx     context.Context
}

// newWorkload starts the server, deploys everything and waits until it is ready.
func newWorkload(t *testing.T) *workload {
	t.Helper()
	s := harness.RunStandalone(t, t.TempDir())
	clients, err := harness.ClientsOf(s.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := url.Parse(s.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	w := &workload{Standalone: s, Clients: clients, hosts: map[string]string{}, http: &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", gateway.Port()))
		},
	}}}
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.WithoutCancel(t.Context()))
	w.stop = func() {
		cancel()
		w.loading.Wait()
	}
	t.Cleanup(w.stop)
	w.deployServices(t)
	w.deployEventing(t)
	return w
}

// deployServices deploys the Services hello, fails and busy. hello scales to zero soon, busy has one place for requests.
func (w *workload) deployServices(t *testing.T) {
	t.Helper()
	app := harness.AppBinary(t)
	services := w.Knative.ServingV1().Services(namespace)
	for _, name := range []string{"hello", "fails", "busy"} {
		service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
		service.Spec.Template.Annotations = map[string]string{"autoscaling.knative.dev/window": "6s", "autoscaling.knative.dev/max-scale": "1"}
		service.Spec.Template.Spec.Containers = []corev1.Container{{Image: "ko.local/app", Command: []string{app}}}
		if name == "busy" {
			service.Spec.Template.Spec.ContainerConcurrency = ptr.To[int64](1)
		}
		if _, err := services.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"hello", "fails", "busy"} {
		eventually(t, "Service "+name+" is ready", func() error {
			service, err := services.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			address, err := url.Parse(service.Status.URL)
			w.hosts[name] = address.Host
			return ready(err, &service.Status.Status)
		})
	}
}

// deployEventing deploys a Broker with Triggers, named after what becomes of their events, and a Channel with a Subscription.
func (w *workload) deployEventing(t *testing.T) {
	t.Helper()
	sink := harness.NewSink(t)
	sink.At("/fails").AnswerCode(http.StatusServiceUnavailable)
	sink.At("/hangs").Answer(func(*harness.Delivery) harness.Answer {
		<-w.ctx.Done()
		return harness.Answer{}
	})
	brokers, triggers := w.Knative.EventingV1().Brokers(namespace), w.Knative.EventingV1().Triggers(namespace)
	channels, subscriptions := w.Knative.MessagingV1().Channels(namespace), w.Knative.MessagingV1().Subscriptions(namespace)
	create := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	options := metav1.CreateOptions{}
	create(brokers.Create(t.Context(), &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}, options))
	once := func() *duckv1.DeliverySpec {
		return &duckv1.DeliverySpec{Retry: ptr.To[int32](1), BackoffPolicy: ptr.To(duckv1.BackoffPolicyLinear), BackoffDelay: ptr.To("PT0.1S")}
	}
	dead := once()
	dead.DeadLetterSink = &duckv1.Destination{URI: sink.At("/dead").URL}
	for _, trigger := range []struct {
		name, path, kind string
		delivery         *duckv1.DeliverySpec
	}{
		{"delivered", "/", "order", nil}, {"dead", "/fails", "order", dead}, {"drops", "/fails", "order", once()}, {"late", "/hangs", "late", nil},
	} {
		create(triggers.Create(t.Context(), &eventingv1.Trigger{
			// Events without a dead letter sink are dropped.
			ObjectMeta: metav1.ObjectMeta{Name: trigger.name, Annotations: map[string]string{duckv1.DeadLetterStoreAnnotationKey: duckv1.DeadLetterStoreDisabled}},
			Spec: eventingv1.TriggerSpec{
				Broker: "orders", Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"type": trigger.kind}},
				Subscriber: duckv1.Destination{URI: sink.At(trigger.path).URL}, Delivery: trigger.delivery,
			},
		}, options))
	}
	create(channels.Create(t.Context(), &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Name: "news"}}, options))
	create(subscriptions.Create(t.Context(), &messagingv1.Subscription{
		ObjectMeta: metav1.ObjectMeta{Name: "news"},
		Spec: messagingv1.SubscriptionSpec{
			Channel:    duckv1.KReference{APIVersion: messagingv1.SchemeGroupVersion.String(), Kind: "Channel", Name: "news"},
			Subscriber: &duckv1.Destination{URI: sink.At("/").URL},
		},
	}, options))
	eventually(t, "the Broker is ready", func() error {
		broker, err := brokers.Get(t.Context(), "orders", metav1.GetOptions{})
		if err == nil {
			if err = ready(nil, &broker.Status.Status); err == nil {
				w.broker = broker.Status.Address.GetURL()
			}
		}
		return err
	})
	eventually(t, "the Channel is ready", func() error {
		channel, err := channels.Get(t.Context(), "news", metav1.GetOptions{})
		if err == nil {
			if err = ready(nil, &channel.Status.Status); err == nil {
				w.channel = channel.Status.Address.GetURL()
			}
		}
		return err
	})
	eventually(t, "the Subscription is ready", func() error {
		subscription, err := subscriptions.Get(t.Context(), "news", metav1.GetOptions{})
		if err == nil {
			err = ready(nil, &subscription.Status.Status)
		}
		return err
	})
	for _, name := range []string{"delivered", "dead", "drops", "late"} {
		eventually(t, "Trigger "+name+" is ready", func() error {
			trigger, err := triggers.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil {
				err = ready(nil, &trigger.Status.Status)
			}
			return err
		})
	}
}

// ready returns an error unless a status is ready.
func ready(err error, status *duckv1.Status) error {
	if c := status.Conditions.Get(duckv1.ConditionReady); err == nil && (c == nil || c.Status != corev1.ConditionTrue) {
		err = fmt.Errorf("the conditions are %+v", status.Conditions)
	}
	return err
}

// send sends one event of each type to the Broker, and one to the Channel.
func (w *workload) send() error {
	return errors.Join(w.post(w.broker, "order"), w.post(w.broker, "late"), w.post(w.channel, "news"))
}

// post sends an event.
func (w *workload) post(address, kind string) error {
	request, err := http.NewRequestWithContext(w.ctx, http.MethodPost, address, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"Specversion": "1.0", "Id": fmt.Sprint(time.Now().UnixNano()), "Type": kind, "Source": "/test"} {
		request.Header.Set("Ce-"+name, value)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("POST %s: %s", address, response.Status)
	}
	return nil
}

// request sends a request to a Service.
func (w *workload) request(name, path string, want int) error {
	request, err := http.NewRequestWithContext(w.ctx, http.MethodGet, "http://"+w.hosts[name]+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := w.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("GET %s of %s: %s", path, name, response.Status)
	}
	return nil
}

// malformed sends a request that the gateway refuses.
func (w *workload) malformed() error {
	connection, err := w.http.Transport.(*http.Transport).DialContext(w.ctx, "tcp", "")
	if err != nil {
		return err
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		return fmt.Errorf("a malformed request got %s", response.Status)
	}
	return nil
}

// load sends requests and events until stop is called.
func (w *workload) load(t *testing.T) {
	t.Helper()
	w.hosts["unknown"] = "unknown.example.com"
	w.repeat(t, func() error { return w.request("hello", "/", http.StatusOK) })
	w.repeat(t, func() error { return w.request("fails", "/status?code=500", http.StatusInternalServerError) })
	w.repeat(t, func() error { return w.request("unknown", "/", http.StatusNotFound) })
	w.repeat(t, w.malformed)
	for range 3 {
		w.repeat(t, func() error { return w.request("busy", "/?sleep=2s", http.StatusOK) })
	}
	w.repeat(t, func() error { return w.post(w.broker, "order") })
	w.repeat(t, func() error { return w.post(w.channel, "news") })
}

// repeat calls send until stop is called, with pauses so that the load of the machine stays small.
func (w *workload) repeat(t *testing.T, send func() error) {
	w.loading.Go(func() {
		pause := time.NewTicker(20 * time.Millisecond)
		defer pause.Stop()
		for {
			// A server on a busy machine may shed a request.
			if err := send(); err != nil && w.ctx.Err() == nil {
				t.Logf("under load: %v", err)
			}
			select {
			case <-pause.C:
			case <-w.ctx.Done():
				return
			}
		}
	})
}
