package operator

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestReplayOfMany kills each replica in turn while archived events are replayed, among them the one that replays: a subscriber gets each.
func TestReplayOfMany(t *testing.T) {
	s := setUp(t)
	const name = "archived"
	if _, err := node.Host.CoreV1().ConfigMaps(s.namespace).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"archive-retention": "1h"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	broker := harness.KindOf("Broker").Object(s.namespace, name)
	broker.Object["spec"] = map[string]any{"config": map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "namespace": s.namespace}}
	create(t, broker)
	ingress := mustParse(t, s.ingress)
	ingress.Path = mustParse(t, s.awaitReady(t, "Broker", name, "address", "url")).Path
	events := harness.NewNumbered(t, "REPLAY_EVENTS", 10_000)
	events.Send(t, http.DefaultClient, ingress.String())

	subscriber := httptest.NewUnstartedServer(events)
	var err error
	if subscriber.Listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(node.Address, "0")); err != nil {
		t.Fatal(err)
	}
	subscriber.Start()
	t.Cleanup(subscriber.Close)
	trigger := harness.KindOf("Trigger").Object(s.namespace, name)
	trigger.Object["spec"] = map[string]any{"broker": name, "subscriber": map[string]any{"uri": subscriber.URL}}
	create(t, trigger)
	s.awaitReady(t, "Trigger", name, "subscriberUri")

	began := time.Now()
	run := node.Admin.Do(t, harness.Request{
		Method: http.MethodPost, Path: "/apis/eventing.knative.dev/v1/namespaces/" + s.namespace + "/brokers/" + name + "/replay",
		Body: fmt.Sprintf(`{"trigger": %q, "rate": %d}`, name, events.Count()/90),
	}).Object(t)
	for i, pod := range serverPods(t) {
		events.Await(t, events.Count()*(i+1)/(harness.Replicas+1), recovery)
		kill(t, &pod)
		awaitWhole(t)
	}
	events.Await(t, events.Count(), recovery)
	eventually(t, recovery, "the replay has succeeded", func(ctx context.Context) error {
		now, err := node.Admin.Knative.EventingV1alpha1().EventRuns(s.namespace).Get(ctx, run.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.UID != run.GetUID() || now.Status.Phase != eventingv1alpha1.EventRunSucceeded || now.Status.Queued != int64(events.Count()) {
			return fmt.Errorf("%s is %+v", now.UID, now.Status)
		}
		return nil
	})
	t.Logf("%d events were replayed in %s, and %d of them twice", events.Count(), time.Since(began).Round(time.Second), events.Repeats())
}
