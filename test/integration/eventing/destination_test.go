package eventing

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// application deploys a Service that runs the sample application, and returns it once it is ready.
func (s *server) application(t testing.TB, namespace, name string, env ...corev1.EnvVar) *servingv1.Service {
	t.Helper()
	services := s.Knative.ServingV1().Services(namespace)
	create(t, services, &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
				Image: "ko.local/app", Command: []string{harness.AppBinary(t)}, Env: env,
			}}}},
		}}},
	})
	return eventually(t, services, name, "is ready", func(s *servingv1.Service) error {
		return condition(s, &s.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	})
}

// subscriberIs waits until a Trigger is ready with a subscriber at an address.
func (s *server) subscriberIs(t testing.TB, namespace, name, want string) {
	t.Helper()
	eventually(t, s.Knative.EventingV1().Triggers(namespace), name, "has the subscriber "+want, func(t *eventingv1.Trigger) error {
		if t.Status.SubscriberURI != want {
			return fmt.Errorf("status.subscriberUri is %q: %+v", t.Status.SubscriberURI, t.Status.Conditions)
		}
		return condition(t, &t.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	})
}

// TestDestinations checks that references to objects of this server resolve to their addresses, and that a uri is relative to
// the address (eventing Destination Resolution-1 to -3 and -6, eventing Trigger Lifecycle-1).
// It covers eventing duckv1.Destination-1 and -2.
func TestDestinations(t *testing.T) {
	ns := namespace()
	app := shared.application(t, ns, "app")
	broker, channel := shared.broker(t, ns, "others"), shared.channel(t, ns, "others")
	shared.broker(t, ns, "orders")
	serving := servingv1.SchemeGroupVersion.String()
	service := app.Status.Address.GetURL()
	origin := strings.TrimSuffix(service, "/")
	if !strings.HasPrefix(service, "http://") {
		t.Fatalf("the Service has the address %q", service)
	}
	for i, tt := range []struct {
		to   *duckv1.Destination
		want string
	}{
		{uri("http://127.0.0.1:1/a?b"), "http://127.0.0.1:1/a?b"},
		{uri("https://sink.example.com"), "https://sink.example.com"},
		{ref(serving, "Service", "app", ""), service},
		{ref(serving, "Route", "app", ""), service},
		{brokerRef("others"), broker},
		{channelRef("others"), channel},
		{ref(serving, "Service", "app", "/events?code=200"), origin + "/events?code=200"},
		{ref(serving, "Service", "app", "events"), origin + "/events"},
		{ref(eventingv1.SchemeGroupVersion.String(), "Broker", "others", "other"), strings.TrimSuffix(broker, "others") + "other"},
		{ref(messagingv1.SchemeGroupVersion.String(), "Channel", "others", "?a=b"), channel + "?a=b"},
		{ref("v1", "Service", "backend", ""), "http://backend." + ns + ".svc.cluster.local"},
		{ref("v1", "Service", "backend", "/events"), "http://backend." + ns + ".svc.cluster.local/events"},
	} {
		name := fmt.Sprintf("trigger-%d", i)
		shared.trigger(t, ns, "orders", name, "", sentTo(tt.to))
		if got := fetch(t, shared.Knative.EventingV1().Triggers(ns), name).Status.SubscriberURI; got != tt.want {
			t.Errorf("%+v: status.subscriberUri is %q, want %q", *tt.to, got, tt.want)
		}
	}
}

// TestEventsFollowReferences checks that events are sent to the addresses in the status: through references to Brokers and
// Channels, and to a uri relative to one (eventing Event Delivery-1 and -2, eventing Destination Resolution-1 and -3).
func TestEventsFollowReferences(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	subscriber := sink.At("/")
	address := shared.broker(t, ns, "orders")
	shared.broker(t, ns, "more")
	shared.channel(t, ns, "last")
	shared.trigger(t, ns, "orders", "to-more", "", sentTo(ref(eventingv1.SchemeGroupVersion.String(), "Broker", "orders", "more")))
	shared.trigger(t, ns, "more", "to-last", "", sentTo(channelRef("last")))
	shared.subscribe(t, newSubscription(ns, "last", "last", to(uri(subscriber.URL))))
	mustPost(t, address, event{id: "1", kind: "order"})
	if err := subscriber.AwaitAll(bounded(t), []string{"1"}); err != nil {
		t.Error(err)
	}
}

// TestUnresolvedSubscriber checks that an unresolved subscriber makes a Trigger not ready, with a reason that names the object
// and the missing part, and an empty URI; it is resolved once the object exists (eventing Trigger Lifecycle-1 to -4, eventing
// Destination Resolution-4 and -5, eventing Error Signalling-6 and -9).
func TestUnresolvedSubscriber(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	serving := servingv1.SchemeGroupVersion.String()
	address := shared.broker(t, ns, "orders")
	channels := shared.Knative.MessagingV1().Channels(ns)
	// This object has no address.
	create(t, channels, &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "foreign"},
		Spec: messagingv1.ChannelSpec{ChannelTemplate: &messagingv1.ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "ExampleChannel"}}}})
	triggers := shared.Knative.EventingV1().Triggers(ns)
	for i, tt := range []struct {
		to             *duckv1.Destination
		reason, object string
	}{
		{ref(serving, "Service", "missing", ""), "SubscriberNotFound", `serving.knative.dev/v1 Service "` + ns + `/missing"`},
		{ref(serving, "Route", "missing", "/a"), "SubscriberNotFound", `serving.knative.dev/v1 Route "` + ns + `/missing"`},
		{brokerRef("missing"), "SubscriberNotFound", `eventing.knative.dev/v1 Broker "` + ns + `/missing"`},
		{channelRef("foreign"), "SubscriberNotAddressable", `messaging.knative.dev/v1 Channel "` + ns + `/foreign"`},
		{ref(serving, "Configuration", "missing", ""), "SubscriberNotFound", `Configuration "` + ns + `/missing"`},
		{ref("apps/v1", "Deployment", "app", ""), "SubscriberNotFound", `apps/v1 Deployment "` + ns + `/app"`},
	} {
		name := fmt.Sprintf("trigger-%d", i)
		create(t, triggers, newTrigger(ns, "orders", name, "", sentTo(tt.to)))
		shared.triggerIs(t, ns, name, corev1.ConditionFalse, tt.reason)
		status := fetch(t, triggers, name).Status
		resolved := status.Conditions.Get(eventingv1.TriggerConditionSubscriberResolved)
		if status.SubscriberURI != "" || resolved == nil || resolved.Reason != tt.reason || !strings.Contains(resolved.Message, tt.object) {
			t.Errorf("%+v: status.subscriberUri is %q, the condition %+v; want %q in it", *tt.to.Ref, status.SubscriberURI, resolved, tt.object)
		}
	}

	// The object is created, its events arrive, and it is deleted and created again.
	subscriber := sink.At("/")
	create(t, triggers, newTrigger(ns, "orders", "later", "", sentTo(channelRef("later"))))
	shared.triggerIs(t, ns, "later", corev1.ConditionFalse, "SubscriberNotFound")
	later := shared.channel(t, ns, "later")
	shared.subscribe(t, newSubscription(ns, "later", "later", to(uri(subscriber.URL))))
	shared.subscriberIs(t, ns, "later", later)
	mustPost(t, address, event{id: "1", kind: "order"})
	if err := subscriber.AwaitAll(bounded(t), []string{"1"}); err != nil {
		t.Fatal(err)
	}
	if err := channels.Delete(t.Context(), "later", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	shared.triggerIs(t, ns, "later", corev1.ConditionFalse, "SubscriberNotFound")
	if got := fetch(t, triggers, "later").Status.SubscriberURI; got != "" {
		t.Errorf("without its Channel, status.subscriberUri is %q", got)
	}
	shared.channel(t, ns, "later")
	shared.subscriberIs(t, ns, "later", later)
}

// TestUnresolvedDeadLetterSink checks that dead letter sinks of Brokers, Triggers and Channels are resolved and reported like
// subscribers (eventing Trigger Lifecycle-5, eventing Destination Resolution-1 and -4; eventing Error Signalling-9).
func TestUnresolvedDeadLetterSink(t *testing.T) {
	ns := namespace()
	options := func() *duckv1.DeliverySpec { return deadTo(brokerRef("letters"), nil) }
	brokers, channels := shared.Knative.EventingV1().Brokers(ns), shared.Knative.MessagingV1().Channels(ns)
	meta := metav1.ObjectMeta{Namespace: ns, Name: "sink"}
	create(t, brokers, &eventingv1.Broker{ObjectMeta: meta, Spec: eventingv1.BrokerSpec{Delivery: options()}})
	create(t, channels, &messagingv1.Channel{ObjectMeta: meta, Spec: messagingv1.ChannelSpec{Delivery: options()}})
	shared.broker(t, ns, "orders")
	create(t, shared.Knative.EventingV1().Triggers(ns), newTrigger(ns, "orders", "sink", "http://127.0.0.1:1/", delivered(options())))
	expect := func(want corev1.ConditionStatus, reason, address string) {
		t.Helper()
		check := func(object metav1.Object, status *duckv1.Status, got string) error {
			if got != address {
				return fmt.Errorf("status.deadLetterSinkUri is %q, want %q", got, address)
			}
			if err := condition(object, status, "DeadLetterSinkResolved", want, reason); err != nil {
				return err
			}
			return condition(object, status, duckv1.ConditionReady, want, reason)
		}
		eventually(t, brokers, "sink", "reports its dead letter sink", func(b *eventingv1.Broker) error {
			return check(b, &b.Status.Status, b.Status.DeadLetterSinkURI)
		})
		eventually(t, channels, "sink", "reports its dead letter sink", func(c *messagingv1.Channel) error {
			return check(c, &c.Status.Status, c.Status.DeadLetterSinkURI)
		})
		eventually(t, shared.Knative.EventingV1().Triggers(ns), "sink", "reports its dead letter sink", func(trigger *eventingv1.Trigger) error {
			return check(trigger, &trigger.Status.Status, trigger.Status.DeadLetterSinkURI)
		})
	}
	expect(corev1.ConditionFalse, "DeadLetterSinkNotFound", "")
	letters := shared.broker(t, ns, "letters")
	expect(corev1.ConditionTrue, "", letters)
	if err := brokers.Delete(t.Context(), "letters", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(corev1.ConditionFalse, "DeadLetterSinkNotFound", "")
}
