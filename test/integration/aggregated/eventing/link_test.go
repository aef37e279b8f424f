package eventing

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// setFeature sets a key of config-features.
func setFeature(t *testing.T, key, value string) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"config-features"},"data":{%q:%q}}`, key, value)
	maps := host.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	if _, err := maps.Patch(t.Context(), "config-features", types.ApplyPatchType, patch, metav1.PatchOptions{FieldManager: key, Force: ptr.To(true)}); err != nil {
		t.Fatal(err)
	}
}

// allow binds a Role with rules to a user in a namespace.
func allow(t *testing.T, ns, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	if _, err := host.Host.RbacV1().Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	host.Bind(t, ns, user, "Role", role.Name)
}

// TestLink checks that a user with knsubscribe for a Broker or Channel of another namespace receives its events.
func TestLink(t *testing.T) {
	t.Parallel()
	setFeature(t, "cross-namespace-event-links", "enabled")
	shop, billing := host.Namespace(t, "shop", nil), host.Namespace(t, "billing", nil)
	referrers(t, shop)
	broker, channel := addresses(t, shop)
	const user = "linker"
	allow(t, billing, user,
		rbacv1.PolicyRule{APIGroups: []string{eventingv1.GroupName}, Resources: []string{"triggers"}, Verbs: []string{"create", "get"}},
		rbacv1.PolicyRule{APIGroups: []string{messagingv1.GroupName}, Resources: []string{"subscriptions"}, Verbs: []string{"create", "get"}})
	alice := host.Admin.As(t, user).Knative
	sink := harness.NewSink(t)

	trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "it"}}
	trigger.Spec.BrokerRef = &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Namespace: shop, Name: "parent"}
	trigger.Spec.Subscriber = duckv1.Destination{URI: sink.At("/Trigger").URL}
	createTrigger := func() error {
		_, err := alice.EventingV1().Triggers(billing).Create(t.Context(), trigger, metav1.CreateOptions{})
		return err
	}
	subscription := &messagingv1.Subscription{ObjectMeta: metav1.ObjectMeta{Name: "it"}}
	subscription.Spec.Channel = duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Namespace: shop, Name: "parent"}
	subscription.Spec.Subscriber = &duckv1.Destination{URI: sink.At("/Subscription").URL}
	createSubscription := func() error {
		_, err := alice.MessagingV1().Subscriptions(billing).Create(t.Context(), subscription, metav1.CreateOptions{})
		return err
	}
	for _, create := range []func() error{createTrigger, createSubscription} {
		// The settings and the Role may not be observed yet.
		harness.Eventually(t, "the link is rejected without the permission", func() error {
			err := create()
			if err == nil || !strings.Contains(err.Error(), "user linker is not authorized to get target resource in namespace: "+shop) {
				return fmt.Errorf("the error is %w", err)
			}
			return nil
		})
	}
	allow(t, shop, user,
		rbacv1.PolicyRule{APIGroups: []string{eventingv1.GroupName}, Resources: []string{"brokers"}, Verbs: []string{"knsubscribe"}},
		rbacv1.PolicyRule{APIGroups: []string{messagingv1.GroupName}, Resources: []string{"channels"}, Verbs: []string{"knsubscribe"}})
	harness.Eventually(t, "the Trigger is allowed", createTrigger)
	harness.Eventually(t, "the Subscription is allowed", createSubscription)

	harness.Eventually(t, "both links are Ready", func() error {
		trigger, err := alice.EventingV1().Triggers(billing).Get(t.Context(), "it", metav1.GetOptions{})
		if err != nil {
			return err
		}
		subscription, err := alice.MessagingV1().Subscriptions(billing).Get(t.Context(), "it", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, status := range []duckv1.Status{trigger.Status.Status, subscription.Status.Status} {
			if ready := status.Conditions.Get(duckv1.ConditionReady); ready == nil || ready.Status != corev1.ConditionTrue {
				return fmt.Errorf("the conditions are %+v", status.Conditions)
			}
		}
		return nil
	})
	post(t, broker, "1")
	post(t, channel, "1")
	for _, kind := range []string{"Trigger", "Subscription"} {
		harness.Eventually(t, "the event arrives at the "+kind, func() error {
			all := sink.At("/" + kind).Deliveries()
			if !slices.ContainsFunc(all, func(d harness.Delivery) bool { return d.ID == "1" }) {
				return fmt.Errorf("%d deliveries, none of them 1", len(all))
			}
			return nil
		})
	}
	checkTrace(t, shop, billing)
}
