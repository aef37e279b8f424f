package subscription

import (
	"testing"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
)

// TestAccount covers the ServiceAccount of a Subscription, and the audiences of its destinations, while senders are authenticated and while they are not.
func TestAccount(t *testing.T) {
	const name = "billing-oidc-messaging.knative.dev-subscription"
	f := newFixture(t, nil, channelOf(), subscription(func(s *messagingv1.Subscription) {
		s.Spec.Subscriber.Audience = ptr.To("subscriber")
		s.Spec.Reply = &duckv1.Destination{URI: "http://reply/", Audience: ptr.To("reply")}
		s.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{URI: "http://dead/", Audience: ptr.To("dead")}}
	}))
	f.accounts = controllertest.NewAccounts(true)
	f.restart(nil)
	f.SyncEventing()
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True", duckv1.ConditionOIDCIdentityCreated: "True"})
	consumer, _ := f.consumer()
	if consumer.Account.Name != name || consumer.Subscriber.Audience != "subscriber" || consumer.Reply.Audience != "reply" || consumer.DeadLetter.Audience != "dead" {
		t.Errorf("consumer: %+v", consumer)
	}
	if auth := f.subscription().Status.Auth; auth == nil || *auth.ServiceAccountName != name {
		t.Errorf("status.auth: %+v", auth)
	}

	f.accounts.Sync(t)
	f.accounts.Enabled = func() bool { return false }
	f.restart(nil)
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True", duckv1.ConditionOIDCIdentityCreated: "True " + senderaccount.ReasonDisabled})
	if consumer, _ = f.consumer(); consumer.Account.Name != "" || consumer.Subscriber.Audience+consumer.Reply.Audience+consumer.DeadLetter.Audience != "" {
		t.Errorf("consumer while senders are not authenticated: %+v", consumer)
	}
	if auth := f.subscription().Status.Auth; auth != nil {
		t.Errorf("status.auth: %+v", auth)
	}
	f.accounts.Sync(t)
	if left := f.accounts.Informer.GetIndexer().ListKeys(); len(left) > 0 {
		t.Errorf("ServiceAccounts %v remain", left)
	}
}
