package eventing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestConnectedBrokers checks that, while senders are verified, a Trigger delivers to another Broker of its namespace with its own token,
// and that a subscriber without an audience gets no token.
func TestConnectedBrokers(t *testing.T) {
	t.Parallel()
	const ns, own = "shop", "token-of-orders"
	dir := t.TempDir()
	tokens, config := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "config")
	if err := os.WriteFile(tokens, []byte(own+",system:serviceaccount:"+ns+":orders,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(config, 0o755); err != nil {
		t.Fatal(err)
	}
	features := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-features\ndata:\n  authentication-oidc: enabled\n"
	if err := os.WriteFile(filepath.Join(config, "features.yaml"), []byte(features), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, filepath.Join(dir, "data"), "--token-auth-file", tokens, "--config-dir", config)
	sink := harness.NewSink(t)
	without, with := sink.At("/without"), sink.At("/with")
	orders := s.broker(t, ns, "orders")
	s.broker(t, ns, "archive")
	s.trigger(t, ns, "archive", "without", without.URL)
	s.trigger(t, ns, "orders", "to-archive", "", func(trigger *eventingv1.Trigger) {
		trigger.Spec.Subscriber = duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Name: "archive"}}
		// For a Broker that cannot verify the sender in time.
		trigger.Spec.Delivery = retries(10, "PT0.5S")
	})
	s.trigger(t, ns, "orders", "with", with.URL, func(trigger *eventingv1.Trigger) { trigger.Spec.Subscriber.Audience = ptr.To("receiver") })
	m := binary("1", "{}", map[string]string{"Content-Type": "application/json"})
	m.header["Authorization"] = "Bearer " + own
	if a := m.sendVerified(t, orders); a.code != 202 {
		t.Fatalf("send: %d %s", a.code, a.body)
	}
	for _, subscriber := range []*harness.Subscriber{without, with} {
		if err := subscriber.AwaitAll(bounded(t), []string{"1"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := without.Deliveries()[0].Header.Get("Authorization"); got != "" {
		t.Error("a subscriber without an audience gets a token")
	}
	token, ok := strings.CutPrefix(with.Deliveries()[0].Header.Get("Authorization"), "Bearer ")
	if !ok || token == own {
		t.Errorf("a subscriber with an audience gets no token of the Trigger")
	}
	if strings.Contains(s.Log(), token) {
		t.Error("the log has a token")
	}
}
