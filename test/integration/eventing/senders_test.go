package eventing

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestSenders covers the senders that a Broker admits: with the default mode, with an EventPolicy, with a permission, and
// without authentication. Tokens reach neither subscribers nor the log.
func TestSenders(t *testing.T) {
	t.Parallel()
	const ns, alice, own, admin = "shop", "token-of-alice", "token-of-orders", "token-of-admin"
	dir := t.TempDir()
	tokens, config := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "config")
	lines := []string{alice + ",alice,1", own + ",system:serviceaccount:" + ns + ":orders,2", admin + ",admin,3,system:masters"}
	if err := os.WriteFile(tokens, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	authenticate := func(value string) {
		t.Helper()
		features := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-features\ndata:\n  authentication-oidc: " + value + "\n"
		if err := os.WriteFile(filepath.Join(config, "features.yaml"), []byte(features), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authenticate("Enabled")
	s := start(t, filepath.Join(dir, "data"), "--token-auth-file", tokens, "--config-dir", config)

	subscriber := harness.NewSink(t).At("/")
	broker := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "all", subscriber.URL)
	send := func(token, id, kind string) *answer {
		t.Helper()
		m := binary(id, "{}", map[string]string{"Content-Type": "application/json", "Ce-Type": kind})
		if token != "" {
			m.header["Authorization"] = "Bearer " + token
		}
		return m.sendVerified(t, broker)
	}
	want := func(token, id, kind string, code int, text string) {
		t.Helper()
		if a := send(token, id, kind); a.code != code || !strings.Contains(a.body, text) {
			t.Errorf("event %s with token %q: %d %s, want %d %s", id, token, a.code, a.body, code, text)
		}
	}
	until := func(what, token, id, kind string, code int, text string) {
		t.Helper()
		harness.Eventually(t, what, func() error {
			if a := send(token, id, kind); a.code != code || !strings.Contains(a.body, text) {
				return fmt.Errorf("got %d %s, want %d %s", a.code, a.body, code, text)
			}
			return nil
		})
	}
	brokers := s.Knative.EventingV1().Brokers(ns)
	policiesAre := func(status corev1.ConditionStatus, reason string, names ...string) {
		t.Helper()
		eventually(t, brokers, "orders", "has policies", func(b *eventingv1.Broker) error {
			var got []string
			for _, p := range b.Status.Policies {
				got = append(got, p.Name)
			}
			if fmt.Sprint(got) != fmt.Sprint(names) {
				return fmt.Errorf("policies are %v, want %v", got, names)
			}
			return condition(b, &b.Status.Status, duckv1.ConditionEventPoliciesReady, status, reason)
		})
	}

	policiesAre(corev1.ConditionTrue, "DefaultAuthorizationMode")
	a := send("", "missing", "order")
	if a.code != http.StatusUnauthorized || a.header.Get("WWW-Authenticate") != `Bearer realm="eventing.knative.dev/broker/shop/orders"` {
		t.Errorf("without token: %d %s, challenge %q", a.code, a.body, a.header.Get("WWW-Authenticate"))
	}
	want("invalid", "invalid", "order", http.StatusUnauthorized, "the token is not valid")
	want(alice, "foreign", "order", http.StatusForbidden, `"alice" may not send this to Broker shop/orders`)
	want(own, "own", "order", http.StatusAccepted, "")
	want(admin, "permitted", "order", http.StatusAccepted, "")

	policies := s.Knative.EventingV1alpha1().EventPolicies(ns)
	name := "alice"
	policy := create(t, policies, &eventingv1alpha1.EventPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders-of-alice"},
		Spec: eventingv1alpha1.EventPolicySpec{
			To:      []eventingv1alpha1.EventPolicySpecTo{{Ref: &eventingv1alpha1.EventPolicyToReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Name: "orders"}}},
			From:    []eventingv1alpha1.EventPolicySpecFrom{{Sub: &name}},
			Filters: []eventingv1.SubscriptionsAPIFilter{{Exact: map[string]string{"type": "order"}}},
		},
	})
	policiesAre(corev1.ConditionTrue, "", policy.Name)
	until("the policy allows", alice, "allowed", "order", http.StatusAccepted, "")
	want(alice, "filtered", "refund", http.StatusForbidden, `an event that passes spec.filters of EventPolicy "orders-of-alice"`)
	want(own, "unnamed", "order", http.StatusForbidden, `such as "orders-of-alice"`)
	want(admin, "still-permitted", "refund", http.StatusAccepted, "")

	// A policy that cannot be resolved has no effect.
	harness.Edit(t, policies, policy.Name, func(p *eventingv1alpha1.EventPolicy) {
		p.Spec.From = []eventingv1alpha1.EventPolicySpecFrom{{Ref: &eventingv1alpha1.EventPolicyFromReference{APIVersion: "eventing.knative.dev/v1", Kind: "Trigger", Name: "absent"}}}
	})
	eventually(t, policies, policy.Name, "is not resolved", func(p *eventingv1alpha1.EventPolicy) error {
		return condition(p, &p.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "SubjectsNotResolved")
	})
	policiesAre(corev1.ConditionFalse, "EventPoliciesNotReady")
	until("the policy has no effect", own, "default", "order", http.StatusAccepted, "")
	want(alice, "unready", "order", http.StatusForbidden, `not in force, because they are not ready: "orders-of-alice"`)

	authenticate("disabled")
	until("senders are not authenticated", "", "open", "refund", http.StatusAccepted, "")
	policiesAre(corev1.ConditionTrue, "OIDCDisabled")
	_, err := policies.Create(t.Context(), &eventingv1alpha1.EventPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "late"}}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "oidc-authentication feature not enabled") {
		t.Errorf("create without authentication: %v", err)
	}

	if err := subscriber.AwaitAll(bounded(t), []string{"own", "permitted", "allowed", "still-permitted", "default", "open"}); err != nil {
		t.Fatal(err)
	}
	for _, d := range subscriber.Deliveries() {
		if d.Header.Get("Authorization") != "" {
			t.Errorf("event %s was delivered with Authorization", d.ID)
		}
		if d.ID == "foreign" || d.ID == "filtered" || d.ID == "unnamed" || d.ID == "unready" {
			t.Errorf("rejected event %s was delivered", d.ID)
		}
	}
	if strings.Contains(s.Log(), "token-of-") {
		t.Error("the log has a token")
	}
}
