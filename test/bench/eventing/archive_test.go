package eventing

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

// BenchmarkArchive measures events per second of a Broker that archives them (archive-retention in its ConfigMap), and of one that does not. No event
// may be missing in the archive.
func BenchmarkArchive(b *testing.B) {
	figures.Once(b, func() {
		plain, archiving := start(b), start(b)
		toPlain, toArchiving := plain.broker(b, 1, 1), archiving.archivingBroker(b)
		var withouts, withs, withoutCosts, withCosts []float64
		// Twice as many rounds as others: the limit of the ratio is within what the speed of a shared machine changes from one measurement to the next.
		figures.Alternate(2*rounds+1, flows(b, plain, toPlain, &withouts, &withoutCosts), flows(b, archiving, toArchiving, &withs, &withCosts))
		accepted, archived := archiving.metric(b, "knative_eventing_events_accepted_total"), archiving.metric(b, "knative_eventing_archived_total")
		if archived == 0 || archived < accepted || archiving.metric(b, "knative_eventing_archive_missed_total") > 0 {
			b.Errorf("%.0f events were accepted, %.0f archived", accepted, archived)
		}
		b.ReportMetric(figures.Median(withouts), "plain-events/s")
		b.ReportMetric(figures.Median(withs), "archived-events/s")
		b.ReportMetric(figures.Percent(withs, withouts), "archived-%-of-plain")
		b.ReportMetric(figures.Median(withoutCosts), "plain-server-cpu-µs/event")
		b.ReportMetric(figures.Median(withCosts), "archived-server-cpu-µs/event")
	})
}

// archivingBroker is like broker, with an archive and one matching Trigger.
func (s *server) archivingBroker(b *testing.B) string {
	b.Helper()
	core, err := kubernetes.NewForConfigAndClient(s.Config, s.HTTP)
	if err != nil {
		b.Fatal(err)
	}
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: brokerName}, Data: map[string]string{"archive-retention": "1h", "archive-max-bytes": "1Gi"},
	}
	if _, err := core.CoreV1().ConfigMaps(namespace).Create(b.Context(), config, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	broker := newBroker(brokerName)
	broker.Spec.Config = &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: brokerName}
	brokers := s.Knative.EventingV1().Brokers(namespace)
	create(b, brokers, []*eventingv1.Broker{broker})
	create(b, s.Knative.EventingV1().Triggers(namespace), []*eventingv1.Trigger{newTrigger(brokerName, brokerName, eventType, subscribers.at(0))})
	ready, err := brokers.Get(b.Context(), brokerName, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return ready.Status.Address.GetURL()
}
