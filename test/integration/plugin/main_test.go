// Package plugin tests kubectl knative, with the real kubectl and the built server.
package plugin

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// shared is the server of all tests; each test uses its own namespace.
var shared *server

func TestMain(m *testing.M) {
	harness.Main(m, func(dir string) (*harness.Standalone, error) { return harness.StartStandalone(dir) }, func(s *harness.Standalone) error {
		clients, err := harness.ClientsOf(s.Kubeconfig)
		shared = &server{s, clients}
		return err
	})
}

// server is the server with an administrator's clients.
type server struct {
	*harness.Standalone
	*harness.Clients
}

// kubeconfig returns a kubeconfig file of the administrator with a default namespace.
func (s *server) kubeconfig(t testing.TB, namespace string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(s.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Contexts[config.CurrentContext].Namespace = namespace
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	// traceID is the W3C trace ID of the event 1001.
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	// shopType is a type of events that the Service hello gets, otherType one that no consumer gets.
	shopType, otherType = "com.example.order", "com.example.other"
)

// shop creates the objects of docs/answers.md in a namespace: the Service hello, the Broker orders with an archive and the Triggers hello, failing and refunds,
// and the Channel mails with the Subscription archive. It sends the events 1001, which hello gets and failing does not accept, and 1002.
func (s *server) shop(t testing.TB, namespace string) {
	t.Helper()
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	sink := harness.NewSink(t)
	failing, archive := sink.At("/failing"), sink.At("/archive")
	failing.AnswerCode(http.StatusServiceUnavailable)

	must(s.Knative.ServingV1().Services(namespace).Create(ctx, &servingv1.Service{
		ObjectMeta: named("hello"),
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Image: "ko.local/app", Command: []string{harness.AppBinary(t)}}}}},
		}}},
	}, metav1.CreateOptions{}))
	must(s.Knative.MessagingV1().Channels(namespace).Create(ctx, &messagingv1.Channel{ObjectMeta: named("mails")}, metav1.CreateOptions{}))
	must(s.Knative.MessagingV1().Subscriptions(namespace).Create(ctx, &messagingv1.Subscription{
		ObjectMeta: named("archive"),
		Spec: messagingv1.SubscriptionSpec{
			Channel:    duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "mails"},
			Subscriber: &duckv1.Destination{URI: archive.URL},
		},
	}, metav1.CreateOptions{}))
	core, err := kubernetes.NewForConfigAndClient(s.Config, s.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	must(core.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: named("archived"), Data: map[string]string{settings.KeyArchiveRetention: "24h"}}, metav1.CreateOptions{}))
	must(s.Knative.EventingV1().Brokers(namespace).Create(ctx, &eventingv1.Broker{ObjectMeta: named("orders"), Spec: eventingv1.BrokerSpec{
		Config: &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: "archived"},
	}}, metav1.CreateOptions{}))
	retries, delay := int32(1), "PT0.1S"
	for name, spec := range map[string]eventingv1.TriggerSpec{
		"hello": {
			Filter:     &eventingv1.TriggerFilter{Attributes: map[string]string{"type": shopType}},
			Subscriber: duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "hello"}},
		},
		"failing": {
			Filter:     &eventingv1.TriggerFilter{Attributes: map[string]string{"type": shopType}},
			Subscriber: duckv1.Destination{URI: failing.URL},
			Delivery: &duckv1.DeliverySpec{Retry: &retries, BackoffDelay: &delay, DeadLetterSink: &duckv1.Destination{
				Ref: &duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "mails"},
			}},
		},
		"refunds": {
			Filter:     &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "com.example.refund"}},
			Subscriber: duckv1.Destination{URI: archive.URL},
		},
	} {
		spec.Broker = "orders"
		must(s.Knative.EventingV1().Triggers(namespace).Create(ctx, &eventingv1.Trigger{ObjectMeta: named(name), Spec: spec}, metav1.CreateOptions{}))
	}
	has := func(condition duckv1.ConditionType, what string, conditions func() (duckv1.Conditions, error)) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("%s has the condition %s", what, condition), func() error {
			all, err := conditions()
			if err != nil {
				return err
			}
			if c := all.Get(condition); c == nil || c.Status != corev1.ConditionTrue {
				return fmt.Errorf("the condition is %+v", c)
			}
			return nil
		})
	}
	has(duckv1.ConditionReady, "the Service", func() (duckv1.Conditions, error) {
		o, err := s.Knative.ServingV1().Services(namespace).Get(ctx, "hello", metav1.GetOptions{})
		return o.Status.Conditions, err
	})
	has(duckv1.ConditionReady, "the Subscription", func() (duckv1.Conditions, error) {
		o, err := s.Knative.MessagingV1().Subscriptions(namespace).Get(ctx, "archive", metav1.GetOptions{})
		return o.Status.Conditions, err
	})
	for _, name := range []string{"hello", "failing", "refunds"} {
		has(duckv1.ConditionReady, "the Trigger "+name, func() (duckv1.Conditions, error) {
			o, err := s.Knative.EventingV1().Triggers(namespace).Get(ctx, name, metav1.GetOptions{})
			return o.Status.Conditions, err
		})
	}
	has(eventingv1.BrokerConditionArchiveReady, "the Broker", func() (duckv1.Conditions, error) {
		o, err := s.Knative.EventingV1().Brokers(namespace).Get(ctx, "orders", metav1.GetOptions{})
		return o.Status.Conditions, err
	})
	s.send(t, namespace, "1001", shopType)
	s.send(t, namespace, "1002", otherType)
	path := harness.KindOf("Broker").Path(namespace, "orders") + "/trace?id=1001"
	harness.Eventually(t, "the trace is complete", func() error {
		trace := string(s.Do(t, harness.Request{Method: http.MethodGet, Path: path}).Body)
		if strings.Count(trace, `"state":"Delivered"`) != 2 || !strings.Contains(trace, `"state":"DeadLettered"`) {
			return fmt.Errorf("it is %s", trace)
		}
		return nil
	})
	revision := harness.KindOf("Revision").Path(namespace, "hello-00001")
	harness.Eventually(t, "the autoscaler has decided", func() error {
		if answer := s.Do(t, harness.Request{Method: http.MethodGet, Path: revision + "/explain"}); answer.Code != http.StatusOK {
			return fmt.Errorf("the answer is %s", answer.Body)
		}
		return nil
	})
	harness.Eventually(t, "the event is in the log", func() error {
		if log := s.Do(t, harness.Request{Method: http.MethodGet, Path: revision + "/log"}).Body; !strings.Contains(string(log), `"1001"`) {
			return fmt.Errorf("it is %s", log)
		}
		return nil
	})
}

// breakTrigger creates the Trigger broken in a namespace of shop, without a dead letter sink, and sends the event 3001, which its subscriber refuses.
func (s *server) breakTrigger(t testing.TB, namespace string) {
	t.Helper()
	sink := harness.NewSink(t).At("/broken")
	sink.AnswerCode(http.StatusTeapot)
	triggers := s.Knative.EventingV1().Triggers(namespace)
	_, err := triggers.Create(t.Context(), &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "broken"}, Spec: eventingv1.TriggerSpec{
		Broker: "orders", Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "com.example.broken"}}, Subscriber: duckv1.Destination{URI: sink.URL},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the Trigger broken is ready", func() error {
		trigger, err := triggers.Get(t.Context(), "broken", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ready := trigger.Status.Conditions.Get(duckv1.ConditionReady); ready == nil || ready.Status != corev1.ConditionTrue {
			return fmt.Errorf("the condition is %+v", ready)
		}
		return nil
	})
	s.send(t, namespace, "3001", "com.example.broken")
}

// send sends an event to the Broker orders.
func (s *server) send(t testing.TB, namespace, id, kind string) {
	t.Helper()
	broker, err := s.Knative.EventingV1().Brokers(namespace).Get(t.Context(), "orders", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// A new owner of the Broker, or a busy disk, may answer 503 at first.
	harness.Eventually(t, "the event is accepted", func() error { return post(t.Context(), broker.Status.Address.GetURL(), id, kind) })
}

func post(ctx context.Context, url, id, kind string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Type": kind, "Ce-Source": "/shop", "Ce-Traceparent": "00-" + traceID + "-00f067aa0ba902b7-01", "Content-Type": "application/json",
	} {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	return nil
}
