package eventing

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestBroker checks that an event that a Pod posts to the address of a Broker reaches a URI, a core Service, a Channel and a
// Service at zero, whose reply is delivered by the Broker to another Trigger (eventing Broker Lifecycle, eventing Destination
// Resolution, eventing Event Reply).
func TestBroker(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "broker")
	sink := newSink(t)
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(t,
		broker("default", ""), channel("copies"), s.Application(t, "logger", nil),
		fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: replier}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/window: 6s}}
    spec: {containers: [{image: %q, env: [{name: REPLY_TYPE, value: reply}]}]}`, image),
		subscription("copies", "copies", uri(sink.At("/copies").URL), ""),
		trigger("to-uri", "order", uri(sink.At("/uri").URL), ""),
		trigger("to-service", "order", coreService("logger"), ""),
		trigger("to-ksvc", "order", ref("serving.knative.dev/v1", "Service", "replier"), ""),
		trigger("to-channel", "order", ref("messaging.knative.dev/v1", "Channel", "copies"), ""),
		trigger("replies", "reply", uri(sink.At("/replies").URL), ""))
	s.Ready(t, "service/replier", "broker/default", "channel/copies", "subscription/copies",
		"trigger/to-uri", "trigger/to-service", "trigger/to-ksvc", "trigger/to-channel", "trigger/replies", "pod/logger")
	address := s.Address(t, "broker/default")
	if want := "http://broker-ingress." + harness.SystemNamespace + ".svc.cluster.local/" + s.Name + "/default"; address != want {
		t.Errorf("the Broker's address is %s, want %s", address, want)
	}
	until(t, "the Services are at zero", func() error { return atZero(t.Context(), s.Name) })

	post(t, s.Client(t, "client"), address, "1", "order")
	for _, path := range []string{"/uri", "/copies", "/replies"} {
		if err := sink.At(path).Await(bounded(t), 1); err != nil {
			t.Fatal(err)
		}
	}
	if data := string(sink.At("/replies").Deliveries()[0].Body); data != `{"replyTo":"1"}` {
		t.Errorf("the reply has the data %s", data)
	}
	logged(t, s, "logger", `"id":"1"`)
}

// atZero returns an error unless all Services of a namespace are at zero.
func atZero(ctx context.Context, namespace string) error {
	pods, err := node.Host.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision"})
	if err == nil && len(pods.Items) > 0 {
		err = fmt.Errorf("%d Pods of Revisions remain", len(pods.Items))
	}
	return err
}

// logged waits until a Pod of the sample application has logged a text.
func logged(t *testing.T, s *harness.Space, pod, text string) {
	t.Helper()
	until(t, "Pod "+pod+" has logged "+text, func() error {
		log, err := s.Log(t.Context(), pod)
		if err == nil && !strings.Contains(log, text) {
			err = fmt.Errorf("its log is %q", log)
		}
		return err
	})
}

// TestChannel checks that a Channel accepts events from Pods by its address and the shorter forms of its name, and that its
// Subscription sends the subscriber's reply to its reply destination (eventing Channel Lifecycle, eventing Event Reply).
func TestChannel(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "channel")
	sink := newSink(t)
	s.Apply(t,
		channel("orders"), s.Application(t, "replier", map[string]string{"REPLY_TYPE": "reply"}),
		broker("default", ""), trigger("replies", "reply", uri(sink.At("/broker").URL), ""),
		subscription("to-uri", "orders", coreService("replier"), "reply: "+uri(sink.At("/uri").URL)),
		subscription("to-broker", "orders", coreService("replier"), "reply: "+ref("eventing.knative.dev/v1", "Broker", "default")))
	s.Ready(t, "pod/replier", "channel/orders", "trigger/replies", "subscription/to-uri", "subscription/to-broker")
	address := s.Address(t, "channel/orders")
	if want := "http://" + s.Host("orders-kn-channel"); address != want {
		t.Errorf("the Channel's address is %s, want %s", address, want)
	}
	addresses := []string{address, "http://orders-kn-channel." + s.Name + ".svc/", "http://orders-kn-channel." + s.Name}
	client := s.Client(t, "client")
	for i, address := range addresses {
		post(t, client, address, fmt.Sprint(i), "order")
	}
	for _, path := range []string{"/uri", "/broker"} {
		if err := sink.At(path).Await(bounded(t), len(addresses)); err != nil {
			t.Error(err)
		}
		for _, d := range sink.At(path).Deliveries() {
			if !strings.Contains(string(d.Body), "replyTo") {
				t.Errorf("%s got %s, which is not a reply", path, d.Body)
			}
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, err := harness.Exchange(client, request); err != nil || code != http.StatusMethodNotAllowed {
		t.Errorf("GET of the Channel: code %d, %v", code, err)
	}
	names := node.Host.CoreV1().Services(s.Name)
	service, err := names.Get(t.Context(), "orders-kn-channel", metav1.GetOptions{})
	if err != nil || service.Spec.Type != corev1.ServiceTypeExternalName {
		t.Errorf("the Channel's name does not resolve: %v, %v", service, err)
	}
}
