package trigger

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestAccount covers the ServiceAccount of a Trigger: in the status, in the host cluster, and in the consumer with the audiences of its destinations.
func TestAccount(t *testing.T) {
	const name = "bill-oidc-eventing.knative.dev-trigger"
	controlled := func(uid types.UID) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: "earlier", Labels: map[string]string{senderaccount.LabelKey: senderaccount.LabelValue},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "eventing.knative.dev/v1", Kind: "Trigger", Name: "bill", UID: uid, Controller: ptr.To(true)}},
		}}
	}
	foreign := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "theirs"}}
	for _, test := range []struct {
		name          string
		authenticated bool
		existing      *corev1.ServiceAccount
		fails         bool
		// condition is OIDCIdentityCreated, and ready is Ready.
		condition, ready string
		// kept is true if the existing ServiceAccount stays, and exists if one exists at the end.
		kept, exists bool
	}{
		{name: "created", authenticated: true, condition: "True", ready: "True", exists: true},
		{name: "existing", authenticated: true, existing: controlled("trigger-uid"), condition: "True", ready: "True", exists: true, kept: true},
		{name: "of an earlier Trigger", authenticated: true, existing: controlled("other"), condition: "True", ready: "True", exists: true},
		{name: "of another owner", authenticated: true, existing: foreign, fails: true, condition: "False " + senderaccount.ReasonFailed, ready: "False " + senderaccount.ReasonFailed, exists: true, kept: true},
		{name: "disabled", condition: "True " + senderaccount.ReasonDisabled, ready: "True"},
		{name: "disabled, existing", existing: controlled("trigger-uid"), condition: "True " + senderaccount.ReasonDisabled, ready: "True"},
		{name: "disabled, of another owner", existing: foreign, condition: "True " + senderaccount.ReasonDisabled, ready: "True", exists: true, kept: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			secure := service("billing", "http://billing")
			secure.Status.Address.Audience = ptr.To("billing-audience")
			f := start(t, newBroker(), secure, newTrigger(func(trigger *eventingv1.Trigger) {
				trigger.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{URI: "http://dead/", Audience: ptr.To("dead-audience")}}
			}))
			f.host(t, controllertest.NewAccounts(test.authenticated))
			accounts := f.accounts.Host.CoreV1().ServiceAccounts("default")
			if test.existing != nil {
				if _, err := accounts.Create(t.Context(), test.existing.DeepCopy(), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			f.SyncEventing()
			f.accounts.Sync(t)
			if err := controllertest.Reconcile(t.Context(), f.r, key); (err != nil) != test.fails {
				t.Fatalf("reconcile: %v, want an error: %t", err, test.fails)
			}
			status := f.stored(t)
			conditions := brief(status.Conditions)
			if conditions["OIDCIdentityCreated"] != test.condition || conditions["Ready"] != test.ready {
				t.Errorf("conditions are %v, want OIDCIdentityCreated %q and Ready %q", conditions, test.condition, test.ready)
			}
			list, err := accounts.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if (len(list.Items) == 1) != test.exists || test.exists && (test.existing != nil && list.Items[0].UID == test.existing.UID) != test.kept {
				t.Errorf("ServiceAccounts: %v", list.Items)
			}
			consumer := f.consumers.set[Key(key)]
			want := struct {
				Subscriber, DeadLetter string
				Account                eventing.Account
			}{}
			if test.authenticated {
				want.Subscriber, want.DeadLetter = "billing-audience", "dead-audience"
			}
			if test.authenticated && !test.fails {
				want.Account = eventing.Account{Name: name, UID: list.Items[0].UID}
				if !metav1.IsControlledBy(&list.Items[0], newTrigger()) || list.Items[0].Labels[senderaccount.LabelKey] != senderaccount.LabelValue {
					t.Errorf("ServiceAccount: %v", list.Items[0])
				}
			}
			got := want
			got.Subscriber, got.DeadLetter, got.Account = consumer.Subscriber.Audience, consumer.DeadLetter.Audience, consumer.Account
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("consumer (-want +got):\n%s", diff)
			}
			if auth := status.Auth; (auth != nil) != (want.Account.Name != "") || auth != nil && *auth.ServiceAccountName != name {
				t.Errorf("status.auth: %+v", auth)
			}
			if *status.SubscriberAudience != "billing-audience" || *status.DeadLetterSinkAudience != "dead-audience" {
				t.Errorf("audiences of the status: %q, %q", *status.SubscriberAudience, *status.DeadLetterSinkAudience)
			}
		})
	}
}
