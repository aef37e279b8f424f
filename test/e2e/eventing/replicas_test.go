package eventing

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// replicas returns a client for each Pod of the server with an event ingress, which connects to that Pod for all names.
func replicas(t *testing.T) []*http.Client {
	t.Helper()
	var clients []*http.Client
	until(t, "three replicas accept events", func() error {
		pods, err := node.Host.CoreV1().Pods(harness.SystemNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "knative-apiserver/broker=true"})
		if err != nil {
			return err
		}
		clients = nil
		for i := range pods.Items {
			if pod := &pods.Items[i]; ready(pod) {
				clients = append(clients, clientOf(net.JoinHostPort(pod.Status.PodIP, "8082")))
			}
		}
		if len(clients) != 3 {
			return fmt.Errorf("%d are ready", len(clients))
		}
		return nil
	})
	return clients
}

func ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func clientOf(address string) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}}
}

// TestEveryReplica checks that events arrive from every replica, whether or not it owns the Broker or Channel (eventing Broker
// Lifecycle, eventing Channel Lifecycle).
func TestEveryReplica(t *testing.T) {
	t.Parallel()
	s := node.NewSpace(t, "replicas")
	sink := newSink(t)
	s.Apply(t,
		broker("default", ""), trigger("orders", "order", uri(sink.At("/broker").URL), ""),
		channel("orders"), subscription("orders", "orders", uri(sink.At("/channel").URL), ""))
	s.Ready(t, "trigger/orders", "subscription/orders")
	addresses := map[string]string{"/broker": s.Address(t, "broker/default"), "/channel": s.Address(t, "channel/orders")}
	const each = 20
	var ids []string
	for i, replica := range replicas(t) {
		for _, address := range addresses {
			until(t, "OPTIONS "+address+" is answered (eventing HTTP Verbs-3)", func() error {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, address, http.NoBody)
				if err != nil {
					return err
				}
				code, _, err := harness.Exchange(replica, request)
				if err == nil && code != http.StatusOK {
					err = fmt.Errorf("code %d", code)
				}
				return err
			})
		}
		for j := range each {
			id := fmt.Sprintf("%d-%d", i, j)
			ids = append(ids, id)
			for _, address := range addresses {
				post(t, replica, address, id, "order")
			}
		}
	}
	for path := range addresses {
		if err := sink.At(path).AwaitAll(bounded(t), ids); err != nil {
			t.Error(err)
		}
	}
}

// TestOrderAcrossReplicas checks that ordered delivery keeps the order of acceptance for events accepted by different replicas,
// also with retries.
func TestOrderAcrossReplicas(t *testing.T) {
	t.Parallel()
	s := node.NewSpace(t, "order")
	sink := newSink(t)
	const annotated = `annotations: {eventing.knative.dev/delivery.order: ordered}`
	s.Apply(t,
		broker("default", ""), channel("orders"),
		fmt.Sprintf(`{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: orders, %s},
			spec: {broker: default, subscriber: %s, delivery: {retry: 5, backoffDelay: PT0.05S}}}`, annotated, uri(sink.At("/broker").URL)),
		fmt.Sprintf(`{apiVersion: messaging.knative.dev/v1, kind: Subscription, metadata: {name: orders, %s},
			spec: {channel: {apiVersion: messaging.knative.dev/v1, kind: Channel, name: orders}, subscriber: %s,
			delivery: {retry: 5, backoffDelay: PT0.05S}}}`, annotated, uri(sink.At("/channel").URL)))
	s.Ready(t, "trigger/orders", "subscription/orders")
	addresses := map[string]string{"/broker": s.Address(t, "broker/default"), "/channel": s.Address(t, "channel/orders")}

	var mu sync.Mutex
	accepted := map[string][]string{}
	for path := range addresses {
		sink.At(path).Answer(func(d *harness.Delivery) harness.Answer {
			if d.ID[len(d.ID)-1] == '5' && d.Attempt <= 2 {
				return harness.Answer{Code: http.StatusServiceUnavailable}
			}
			mu.Lock()
			defer mu.Unlock()
			// After a replica shut down, the new owner may repeat its last delivery.
			if order := accepted[path]; len(order) == 0 || order[len(order)-1] != d.ID {
				accepted[path] = append(order, d.ID)
			}
			return harness.Answer{}
		})
	}
	clients := replicas(t)
	var want []string
	for i := range 60 {
		id := fmt.Sprint(i)
		want = append(want, id)
		for _, address := range addresses {
			post(t, clients[i%len(clients)], address, id, "order")
		}
	}
	for path := range addresses {
		if err := sink.At(path).AwaitAll(bounded(t), want); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if diff := cmp.Diff(want, accepted[path]); diff != "" {
			t.Errorf("%s: the order (-want +got):\n%s", path, diff)
		}
		mu.Unlock()
	}
}
