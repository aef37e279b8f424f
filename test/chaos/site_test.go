package chaos

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// installation is the server under test.
type installation interface {
	// clients are the administrator's clients.
	clients() *harness.Clients
	// container is the container of the sample application (test/app).
	container(t *testing.T) map[string]any
	// requests returns a client that reaches the gateway for every host.
	requests() *http.Client
	// events returns a client that reaches the addresses of Brokers and Channels.
	events() *http.Client
	// sinkAddress is an address of this machine that the server reaches.
	sinkAddress() string
	// scrape returns the number of dropped events that the processes of the server counted, and identifies these processes.
	scrape(ctx context.Context) (processes string, dropped float64, err error)
	// set replaces the data of a ConfigMap with settings.
	set(ctx context.Context, name string, data map[string]string) error
}

// site has the objects of the load: in each of two namespaces the same Services, Broker, Channel, Triggers and Subscriptions,
// and in a third namespace the objects whose operations are checked.
type site struct {
	installation
	recorder   *recorder
	sink       *sink
	namespaces []string
	objects    string
	// targets are the addresses of Brokers and Channels, hosts the URLs of Services, by namespace and name.
	targets, hosts map[string]string
}

// limits are the Services by name, with containerConcurrency.
var limits = map[string]int64{"one": 1, "three": 3}

const (
	retriesForLong  = 1000
	retriesForShort = 2
)

// newSite creates the objects and waits until they are ready.
func newSite(t *testing.T, i installation, r *recorder, namespaces [3]string) *site {
	t.Helper()
	s := &site{
		installation: i, recorder: r, sink: newSink(t, i.sinkAddress(), r),
		namespaces: namespaces[:2], objects: namespaces[2], targets: map[string]string{}, hosts: map[string]string{},
	}
	for i, ns := range s.namespaces {
		for name := range limits {
			s.create(t, s.service(t, ns, name, "0"))
		}
		broker := harness.KindOf("Broker").Object(ns, "orders")
		if i == 1 {
			broker.SetAnnotations(map[string]string{eventingv1.BrokerPartitionsAnnotationKey: "3"})
		}
		s.create(t, broker)
		s.create(t, harness.KindOf("Channel").Object(ns, "orders"))
		toBroker, toChannel := ns+"/Broker", ns+"/Channel"
		s.subscribe(t, ns, history.Subscription{Name: "ordered", Target: toBroker, Ordered: true, Retries: retriesForLong})
		s.subscribe(t, ns, history.Subscription{Name: "even", Target: toBroker, Kind: "even", Retries: retriesForLong})
		s.subscribe(t, ns, history.Subscription{Name: "dead-letter", Target: toBroker, Retries: retriesForShort, DeadLetter: true})
		s.subscribe(t, ns, history.Subscription{Name: storedName, Target: toBroker, Retries: retriesForShort, DeadLetter: true})
		s.subscribe(t, ns, history.Subscription{Name: "drop", Target: toBroker, Retries: retriesForShort})
		s.subscribe(t, ns, history.Subscription{Name: "ordered-dead", Target: toChannel, Ordered: true, Retries: retriesForShort, DeadLetter: true})
		s.subscribe(t, ns, history.Subscription{Name: "all", Target: toChannel, Retries: retriesForLong})
	}
	var unready []string
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	if err := harness.Poll(ctx, func() (err error) {
		if unready, err = s.unready(ctx); err == nil && len(unready) > 0 {
			err = fmt.Errorf("not ready: %s", strings.Join(unready, "; "))
		}
		return err
	}); err != nil {
		t.Fatalf("wait for the objects of the load: %v", err)
	}
	for _, ns := range s.namespaces {
		for name := range limits {
			s.hosts[ns+"/"+name] = s.url(t, "Service", ns, name, "status", "url")
		}
		for _, kind := range []string{"Broker", "Channel"} {
			s.targets[ns+"/"+kind] = s.url(t, kind, ns, "orders", "status", "address", "url")
		}
	}
	return s
}

func (s *site) create(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	kind := harness.KindOf(u.GetKind())
	// Until all admission plugins of a host discovered the kinds, it rejects some writes.
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	if err := harness.Poll(ctx, func() error {
		_, err := s.clients().Dynamic.Resource(kind.GVR()).Namespace(u.GetNamespace()).Create(ctx, u, metav1.CreateOptions{})
		return err
	}); err != nil {
		t.Fatalf("create %s %s: %v", u.GetKind(), u.GetName(), err)
	}
}

// service returns a Service whose Revisions differ by a version.
func (s *site) service(t *testing.T, namespace, name, version string) *unstructured.Unstructured {
	t.Helper()
	container := s.container(t)
	container["env"] = []any{
		map[string]any{"name": "TARGET", "value": namespace}, map[string]any{"name": "VERSION", "value": version},
	}
	u := harness.KindOf("Service").Object(namespace, name)
	u.Object["spec"] = map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{
			"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "2",
		}},
		"spec": map[string]any{"containerConcurrency": limits[name], "containers": []any{container}},
	}}
	return u
}

// subscribe creates a Trigger of a Broker, or a Subscription to a Channel.
func (s *site) subscribe(t *testing.T, namespace string, subscription history.Subscription) {
	t.Helper()
	name := subscription.Name
	subscription.Name = namespace + "/" + name
	subscriber := map[string]any{"uri": s.sink.url + "/" + subscription.Name}
	delivery := map[string]any{"retry": int64(subscription.Retries), "backoffPolicy": "linear", "backoffDelay": "PT0.05S"}
	if subscription.DeadLetter && name != storedName {
		delivery["deadLetterSink"] = map[string]any{"uri": s.sink.url + "/" + subscription.Name + "/dead"}
	}
	u := harness.KindOf("Subscription").Object(namespace, name)
	u.Object["spec"] = map[string]any{
		"channel":    map[string]any{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": "orders"},
		"subscriber": subscriber, "delivery": delivery,
	}
	if strings.HasSuffix(subscription.Target, "/Broker") {
		u = harness.KindOf("Trigger").Object(namespace, name)
		spec := map[string]any{"broker": "orders", "subscriber": subscriber, "delivery": delivery}
		if subscription.Kind != "" {
			spec["filter"] = map[string]any{"attributes": map[string]any{"type": subscription.Kind}}
		}
		u.Object["spec"] = spec
	}
	annotations := map[string]string{}
	if subscription.Ordered {
		annotations["eventing.knative.dev/delivery.order"] = "ordered"
	}
	if !subscription.DeadLetter {
		// Its undeliverable events are dropped and counted.
		annotations["eventing.knative.dev/dead-letter-store"] = "disabled"
	}
	u.SetAnnotations(annotations)
	s.create(t, u)
	s.recorder.record(func(h *history.History) { h.Subscriptions = append(h.Subscriptions, subscription) })
}

func (s *site) url(t *testing.T, kind, namespace, name string, fields ...string) string {
	t.Helper()
	u, err := s.clients().Dynamic.Resource(harness.KindOf(kind).GVR()).Namespace(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := unstructured.NestedString(u.Object, fields...)
	return url
}

// unready describes the objects of the load that are not ready.
func (s *site) unready(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, listsLimit)
	defer cancel()
	var all []string
	for _, kind := range []string{"Service", "Broker", "Channel", "Trigger", "Subscription"} {
		for _, ns := range s.namespaces {
			list, err := s.clients().Dynamic.Resource(harness.KindOf(kind).GVR()).Namespace(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			for i := range list.Items {
				if u := &list.Items[i]; !ready(u) {
					all = append(all, fmt.Sprintf("%s %s/%s", kind, ns, u.GetName()))
				}
			}
			if len(list.Items) == 0 {
				all = append(all, fmt.Sprintf("all of %s in %s", kind, ns))
			}
		}
	}
	return all, nil
}

// ready reports whether an object is ready in its current generation.
func ready(u *unstructured.Unstructured) bool {
	if observed, found, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration"); found && observed != u.GetGeneration() {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == "Ready" && condition["status"] == "True"
	})
}

// rollout changes the template of a Service. The schedule chooses which.
func (s *site) rollout(t *testing.T, choice uint64) {
	t.Helper()
	ns := s.namespaces[choice%2]
	name := []string{"one", "three"}[choice/2%2]
	template := s.service(t, ns, name, fmt.Sprint(choice))
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	if err := harness.Poll(ctx, func() error {
		client := s.clients().Dynamic.Resource(harness.KindOf("Service").GVR()).Namespace(ns)
		u, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		u.Object["spec"] = template.Object["spec"]
		_, err = client.Update(ctx, u, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Errorf("roll out Service %s/%s: %v", ns, name, err)
	}
}

// change replaces settings. The schedule chooses the values.
func (s *site) change(t *testing.T, choice uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	seconds := fmt.Sprint(100 + choice%400)
	if err := harness.Poll(ctx, func() error {
		if err := s.set(ctx, "config-defaults", map[string]string{"revision-timeout-seconds": seconds}); err != nil {
			return err
		}
		return s.set(ctx, "config-autoscaler", map[string]string{"container-concurrency-target-percentage": fmt.Sprint(50 + choice%50)})
	}); err != nil {
		t.Errorf("change settings: %v", err)
		return
	}
	if err := harness.Poll(ctx, func() error {
		u, err := s.clients().Dynamic.Resource(harness.KindOf("Service").GVR()).Namespace(s.namespaces[0]).Create(ctx,
			s.service(t, s.namespaces[0], "one-more", "0"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedInt64(u.Object, "spec", "template", "spec", "timeoutSeconds"); fmt.Sprint(got) != seconds {
			return fmt.Errorf("timeoutSeconds is %d by default, want %s", got, seconds)
		}
		return nil
	}); err != nil {
		t.Errorf("settings do not apply: %v", err)
	}
}

// listsLimit is the timeout of reading all objects of the load, on a busy machine too.
const listsLimit = 20 * time.Second

// settled bounds the time until all objects are ready and all events delivered.
const settled = 2 * time.Minute

func (s *site) settingsFault() fault {
	return fault{name: "settings", inject: func(t *testing.T, _ time.Duration, choice uint64) { s.change(t, choice) }}
}

func (s *site) rolloutFault() fault {
	return fault{name: "rollout", inject: func(t *testing.T, _ time.Duration, choice uint64) { s.rollout(t, choice) }}
}

// subscribersFault makes all subscribers and dead letter sinks fail.
func (s *site) subscribersFault() fault {
	return fault{name: "subscribers", longest: 4 * time.Second, inject: func(_ *testing.T, duration time.Duration, _ uint64) {
		s.sink.down.Store(true)
		<-time.After(duration)
		s.sink.down.Store(false)
	}}
}
