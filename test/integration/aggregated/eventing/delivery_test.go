package eventing

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// post sends an event to an address of the cluster, whose names are resolved to the broker here.
func post(t *testing.T, address, id string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	request.Host, request.URL.Host = request.URL.Host, strings.TrimPrefix(brokerURL, "http://")
	for key, value := range map[string]string{
		"ce-specversion": "1.0", "ce-type": "greeting", "ce-source": "/test", "ce-id": id, "Content-Type": "text/plain",
	} {
		request.Header.Set(key, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		t.Fatalf("POST %s: %s", address, response.Status)
	}
}

// addresses waits until the Broker and the Channel "parent" are ready, and returns their addresses.
func addresses(t *testing.T, ns string) (broker, channel string) {
	t.Helper()
	knative := host.Admin.Knative
	harness.Eventually(t, "Broker and Channel are ready", func() error {
		b, err := knative.EventingV1().Brokers(ns).Get(t.Context(), "parent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		c, err := knative.MessagingV1().Channels(ns).Get(t.Context(), "parent", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if b.Status.Address == nil || c.Status.Address == nil {
			return errors.New("the address is not set")
		}
		broker, channel = b.Status.Address.URL, c.Status.Address.URL
		return errors.Join(seen{Status: b.Status.Status}.says(duckv1.ConditionReady, "True"),
			seen{Status: c.Status.Status}.says(duckv1.ConditionReady, "True"))
	})
	return broker, channel
}

// TestDelivery checks that events reach the subscribers of Broker and Channel by their names in the cluster, and that accepted
// events survive a restart of the server (eventing Broker Lifecycle, eventing Channel Lifecycle).
func TestDelivery(t *testing.T) {
	ns := host.Namespace(t, "delivery", nil)
	both := referrers(t, ns)
	sink := harness.NewSink(t)
	for _, r := range both {
		to := &duckv1.Destination{URI: sink.At("/" + r.kind).URL}
		r.make(t, ns, "it", to)
		r.becomes(t, ns, "it", "True", to.URI)
	}
	broker, channel := addresses(t, ns)
	if want := "http://broker-ingress.knative-system.svc.cluster.local/" + ns + "/parent"; broker != want {
		t.Errorf("the Broker's address is %s, want %s", broker, want)
	}
	if want := "http://parent-kn-channel." + ns + ".svc.cluster.local"; channel != want {
		t.Errorf("the Channel's address is %s, want %s", channel, want)
	}
	send := func(id string) {
		post(t, broker, id)
		post(t, channel, id)
	}
	arrived := func(id string) {
		for _, r := range both {
			harness.Eventually(t, "the event arrives at the "+r.kind, func() error {
				all := sink.At("/" + r.kind).Deliveries()
				if !slices.ContainsFunc(all, func(d harness.Delivery) bool { return d.ID == id && string(d.Body) == "hello" }) {
					return fmt.Errorf("%d deliveries, none of them %s", len(all), id)
				}
				return nil
			})
		}
	}
	send("1")
	arrived("1")

	sink.Stop()
	send("2")
	if err := host.Server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	sink.Start(t)
	arrived("2")
}

// TestEventsOnTheHost checks that Events about the objects of this server are stored by the host (eventing Observability).
func TestEventsOnTheHost(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "events", nil)
	referrers(t, ns)
	addresses(t, ns)
	harness.Eventually(t, "Events report the Broker and the Channel", func() error {
		list, err := host.Host.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, kind := range []string{"Broker", "Channel"} {
			if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
				return e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == "parent" && e.Reason == "Ready" && e.Type == corev1.EventTypeNormal
			}) {
				return fmt.Errorf("none of the %d Events reports that the %s is ready", len(list.Items), kind)
			}
		}
		return nil
	})
}
