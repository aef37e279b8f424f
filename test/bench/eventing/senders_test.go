package eventing

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// features enables the verification of senders.
const features = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: config-features
data:
  authentication-oidc: enabled
`

// token is a token of the size of a ServiceAccount's.
var token = strings.Repeat("x", 1000)

// BenchmarkSenders measures events per second with a token of each sender, an EventPolicy and its filter, and without verification of senders.
func BenchmarkSenders(b *testing.B) {
	figures.Once(b, func() {
		dir := b.TempDir()
		tokens := filepath.Join(dir, "tokens.csv")
		for path, content := range map[string]string{tokens: token + ",jane,1\n", filepath.Join(dir, "config", "features.yaml"): features} {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				b.Fatal(err)
			}
		}
		open, verified := start(b), start(b, "--config-dir", filepath.Join(dir, "config"), "--token-auth-file", tokens)
		toOpen, toVerified := open.broker(b, 1, 1), verified.broker(b, 1, 1)
		verified.allow(b, "jane")
		authorization := "Authorization: Bearer " + token
		if without := send(b, toVerified, subscribers.begin(b), warmUp).wait(b); without.accepted > 0 {
			b.Fatalf("%d events without token were accepted", without.accepted)
		}
		var opens, verifieds, openCosts, costs []float64
		figures.Alternate(rounds, flows(b, open, toOpen, &opens, &openCosts), flows(b, verified, toVerified, &verifieds, &costs, authorization))
		b.ReportMetric(figures.Median(opens), "open-events/s")
		b.ReportMetric(figures.Median(verifieds), "verified-events/s")
		b.ReportMetric(figures.Percent(verifieds, opens), "verified-%-of-open")
		b.ReportMetric(figures.Median(openCosts), "open-server-cpu-µs/event")
		b.ReportMetric(figures.Median(costs), "verified-server-cpu-µs/event")
	})
}

// allow creates an EventPolicy for the Broker that lets a user send the events of the benchmark, and waits until it is in force.
func (s *server) allow(b *testing.B, user string) {
	b.Helper()
	policies, brokers := s.Knative.EventingV1alpha1().EventPolicies(namespace), s.Knative.EventingV1().Brokers(namespace)
	_, err := policies.Create(b.Context(), &eventingv1alpha1.EventPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bench"},
		Spec: eventingv1alpha1.EventPolicySpec{
			From:    []eventingv1alpha1.EventPolicySpecFrom{{Sub: &user}},
			Filters: []eventingv1.SubscriptionsAPIFilter{{Exact: map[string]string{"type": eventType}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	harness.Eventually(b, "the EventPolicy is in force", func() error {
		broker, err := brokers.Get(b.Context(), brokerName, metav1.GetOptions{})
		if err == nil && len(broker.Status.Policies) == 0 {
			err = fmt.Errorf("the status is %+v", broker.Status)
		}
		return err
	})
}
