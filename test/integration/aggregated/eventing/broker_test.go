package eventing

import (
	"context"
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestForeignBroker checks that a Broker of another class reports that its controller did not reconcile it. The controller, a
// user with the permission on the host cluster, then writes the status of the Broker and of its Triggers (eventing Broker
// Lifecycle).
func TestForeignBroker(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "class", nil)
	const user = "controller-of-class"
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{eventingv1.GroupName}, Resources: []string{"brokers/status", "triggers/status"}, Verbs: []string{"patch"}},
	}}
	if _, err := host.Host.RbacV1().Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	host.Bind(t, ns, user, "Role", role.Name)
	clients := host.Admin.Knative.EventingV1()
	create := func(name, class string) {
		t.Helper()
		broker := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{eventingv1.BrokerClassAnnotationKey: class}}}
		if _, err := clients.Brokers(ns).Create(t.Context(), broker, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name}}
		trigger.Spec.Broker, trigger.Spec.Subscriber = name, duckv1.Destination{URI: "http://sink.example.com/"}
		if _, err := clients.Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	broker := referrer{kind: "Broker", read: func(ctx context.Context, ns, name string) (seen, error) {
		broker, err := clients.Brokers(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return seen{}, err
		}
		return seen{broker.Status.Status, broker.Status.Address.GetURL()}, nil
	}}
	const notReported = "Unknown BrokerClassNotReported"
	create("foreign", "Example")
	create("own", eventingv1.BrokerClassJetStream)
	broker.becomes(t, ns, "foreign", notReported, "", `class "Example"`)

	// The host's authorizer may not have observed the Role yet.
	controller := host.Admin.As(t, user).Knative.EventingV1()
	const url = "http://broker.example.com/"
	patch := func(name string) error {
		status := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "Ready", "status": "True"}], "address": {"url": %q}}}`, url)
		_, err := controller.Brokers(ns).Patch(t.Context(), name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
		return err
	}
	harness.Eventually(t, "the controller of the class writes the status", func() error { return patch("foreign") })
	ready := []byte(`{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`)
	if _, err := controller.Triggers(ns).Patch(t.Context(), "foreign", types.MergePatchType, ready, metav1.PatchOptions{}, "status"); err != nil {
		t.Error(err)
	}
	if err := patch("own"); !apierrors.IsForbidden(err) {
		t.Errorf("writing the status of a Broker of this server: %v, want 403", err)
	}

	// The controller observes changes of the Broker. A later object was reconciled after it.
	if _, err := clients.Brokers(ns).Patch(t.Context(), "foreign", types.MergePatchType, []byte(`{"spec": {"delivery": {"retry": 3}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	create("later", "Example")
	broker.becomes(t, ns, "later", notReported, "")
	broker.becomes(t, ns, "foreign", "True", url)
	trigger, err := clients.Triggers(ns).Get(t.Context(), "foreign", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(trigger.Status.Conditions) != 1 || trigger.Status.ObservedGeneration != 0 {
		t.Errorf("the status of the Trigger is %+v, want only the controller's", trigger.Status)
	}
}
