package channelable

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// Subscriptions are found by the channel that they refer to, in their own namespace and in any version of its kind (eventing Subscription Lifecycle).
func TestSubscriptionsOf(t *testing.T) {
	informer := externalversions.NewSharedInformerFactory(fake.NewSimpleClientset(), 0).Messaging().V1().Subscriptions().Informer()
	for range 2 {
		if err := IndexSubscriptions(informer); err != nil {
			t.Fatal(err)
		}
	}
	for name, channel := range map[string]duckv1.KReference{
		"v1":            {APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "orders"},
		"v1beta1":       {APIVersion: "messaging.knative.dev/v1beta1", Kind: "Channel", Name: "orders"},
		"other name":    {APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "other"},
		"other kind":    {APIVersion: "messaging.knative.dev/v1", Kind: "KafkaChannel", Name: "orders"},
		"other group":   {APIVersion: "example.com/v1", Kind: "Channel", Name: "orders"},
		"without group": {APIVersion: "v1", Kind: "Channel", Name: "orders"},
	} {
		subscription := &messagingv1.Subscription{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		subscription.Spec.Channel = channel
		if err := informer.GetIndexer().Add(subscription); err != nil {
			t.Fatal(err)
		}
	}
	keys := SubscriptionsOf(informer.GetIndexer(), Kind)
	for namespace, want := range map[string]int{"default": 2, "other": 0} {
		if got := keys(&metav1.ObjectMeta{Namespace: namespace, Name: "orders"}); len(got) != want {
			t.Errorf("in namespace %s: %v, want %d", namespace, got, want)
		}
	}
}
