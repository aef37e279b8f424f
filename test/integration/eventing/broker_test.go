package eventing

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// states returns the status and, after a colon, the reason of each condition.
func states(conditions duckv1.Conditions) map[duckv1.ConditionType]string {
	all := map[duckv1.ConditionType]string{}
	for _, c := range conditions {
		all[c.Type] = string(c.Status)
		if c.Reason != "" {
			all[c.Type] += ": " + c.Reason
		}
	}
	return all
}

// TestBrokerStatus checks the conditions of a ready Broker, and that its address accepts events unchanged (eventing Broker
// Lifecycle-1 and -3, eventing Content Based Routing-1 and -2, eventing Destination Resolution-6, eventing Broker-3, eventing
// Error Signalling-1, -2 and -8).
func TestBrokerStatus(t *testing.T) {
	for _, class := range []string{"", eventingv1.BrokerClassJetStream, eventingv1.BrokerClassMTChannelBased} {
		ns := namespace()
		brokers := shared.Knative.EventingV1().Brokers(ns)
		broker := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"}}
		if class != "" {
			metav1.SetMetaDataAnnotation(&broker.ObjectMeta, eventingv1.BrokerClassAnnotationKey, class)
		}
		create(t, brokers, broker)
		stored := eventually(t, brokers, "orders", "is ready", func(b *eventingv1.Broker) error {
			return condition(b, &b.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
		})
		if diff := cmp.Diff(map[duckv1.ConditionType]string{
			"Ready": "True", "IngressReady": "True", "FilterReady": "True", "Addressable": "True", "TriggerChannelReady": "True",
			"DeadLetterSinkResolved": "True: DeadLetterSinkNotConfigured", "EventPoliciesReady": "True: OIDCDisabled",
		}, states(stored.Status.Conditions)); diff != "" {
			t.Errorf("class %q: conditions (-want +got):\n%s", class, diff)
		}
		if got, want := stored.Status.Address.GetURL(), shared.Broker+"/"+ns+"/orders"; got != want {
			t.Errorf("class %q: status.address.url is %q, want %q", class, got, want)
		}
		mustPost(t, stored.Status.Address.GetURL(), event{id: "1", kind: "order"})
	}
}

// TestForeignObjects checks that Brokers of another class and their Triggers are ignored, and that Brokers and Channels of a
// kind without a controller report that (eventing Broker Lifecycle, eventing Channel Lifecycle, eventing Error Signalling-1).
func TestForeignObjects(t *testing.T) {
	ns := namespace()
	meta := metav1.ObjectMeta{Namespace: ns, Name: "foreign"}
	broker := &eventingv1.Broker{ObjectMeta: *meta.DeepCopy()}
	metav1.SetMetaDataAnnotation(&broker.ObjectMeta, eventingv1.BrokerClassAnnotationKey, "ExampleBroker")
	brokers, triggers, channels := shared.Knative.EventingV1().Brokers(ns), shared.Knative.EventingV1().Triggers(ns), shared.Knative.MessagingV1().Channels(ns)
	create(t, brokers, broker)
	create(t, triggers, newTrigger(ns, "foreign", "foreign", "http://127.0.0.1:1/"))
	create(t, channels, &messagingv1.Channel{ObjectMeta: meta, Spec: messagingv1.ChannelSpec{
		ChannelTemplate: &messagingv1.ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "ExampleChannel"}}}})
	create(t, shared.Knative.MessagingV1().Subscriptions(ns), newSubscription(ns, "foreign", "foreign", to(uri("http://127.0.0.1:1/"))))
	shared.subscriptionIs(t, ns, "foreign", corev1.ConditionFalse, "ChannelNotServed")
	// The later object was reconciled.
	shared.broker(t, ns, "orders")
	shared.channel(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", "http://127.0.0.1:1/")
	eventually(t, brokers, "foreign", "reports that its controller has not written a status", func(b *eventingv1.Broker) error {
		if c := b.Status.Conditions.Get(duckv1.ConditionReady); c == nil || c.Status != corev1.ConditionUnknown || c.Reason != "BrokerClassNotReported" {
			return fmt.Errorf("Ready is %+v", c)
		}
		return nil
	})
	if diff := cmp.Diff(eventingv1.TriggerStatus{}, fetch(t, triggers, "foreign").Status); diff != "" {
		t.Errorf("status of the Trigger (-want +got):\n%s", diff)
	}
	eventually(t, channels, "foreign", "reports that its kind has no controller", func(c *messagingv1.Channel) error {
		return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "ChannelTemplateKindNotFound")
	})
	for _, path := range []string{"/" + ns + "/foreign", "/channels/" + ns + "/foreign"} {
		if a := binary("1", "{}", nil).send(t, shared.Broker+path); a.code != http.StatusNotFound {
			t.Errorf("%s: %d %s, want 404", path, a.code, a.body)
		}
	}
}
