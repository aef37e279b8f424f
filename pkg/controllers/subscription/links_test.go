package subscription

import (
	"testing"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// A Subscription receives events of a Channel of another namespace while the settings allow that.
func TestLinked(t *testing.T) {
	const disabled = "False CrossNamespaceLinksDisabled " +
		"The channel is in another namespace, but cross-namespace-event-links of config-features is not enabled."
	f := newFixture(t, nil, subscription(func(s *messagingv1.Subscription) { s.Spec.Channel.Namespace = "events" }), channelOf(),
		channelOf(func(c *messagingv1.Channel) { c.Namespace, c.UID = "events", "foreign-uid" }))
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: disabled, added: disabled, channelReady: disabled})

	f.Links = func() bool { return true }
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True", added: "True"})
	if got, _ := f.consumer(); got.Stream != (eventing.Key{Kind: eventing.Channel, Namespace: "events", Name: "orders"}) || got.StreamUID != "foreign-uid" {
		t.Errorf("consumer: %+v", got)
	}

	f.Links = func() bool { return false }
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: disabled})
	if got, set := f.consumer(); set {
		t.Errorf("after the settings changed, the consumer is %+v", got)
	}
}
