package eventing

import (
	"fmt"
	"net"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// installation is the server as it is installed on a cluster.
type installation struct{ *harness.Node }

// CPUTime returns the CPU time of all replicas and gateways.
func (i installation) CPUTime(t testing.TB) time.Duration {
	t.Helper()
	seconds := 0.0
	for _, used := range i.ReplicaMetric(t, "process_cpu_seconds_total") {
		seconds += used
	}
	return time.Duration(seconds * float64(time.Second))
}

// spreadBrokers is the number of Brokers that share the events of one measurement: enough that each replica owns some.
const spreadBrokers = 6

// BenchmarkInstalled measures durable events per second on a cluster: from its node through a Broker of the installation to one Trigger's
// subscriber on the node, and the same with a Broker of three partitions, and with several Brokers that the replicas share, each with as many
// senders. The installation must allow deliveries to the node (--allow-destination), as hack/e2e.sh does.
func BenchmarkInstalled(b *testing.B) {
	node := harness.NodeFor(b)
	local := subscribers
	defer func() { subscribers = local }()
	var err error
	if subscribers, err = startSink(node.Address); err != nil {
		b.Fatal(err)
	}
	defer subscribers.Kill()
	figures.Once(b, func() {
		ingress, err := node.Host.CoreV1().Services(harness.SystemNamespace).Get(b.Context(), "broker-ingress", metav1.GetOptions{})
		if err != nil {
			b.Fatal(err)
		}
		space := node.NewSpace(b, "bench")
		apply := func(broker, annotations string) {
			space.Apply(b, fmt.Sprintf("{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: %s, annotations: {%s}}}", broker, annotations),
				fmt.Sprintf("{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: %s}, spec: {broker: %[1]s, subscriber: {uri: %q}}}", broker, subscribers.at(0)))
			space.Ready(b, "broker/"+broker, "trigger/"+broker)
		}
		address := func(broker string) string {
			return "http://" + net.JoinHostPort(ingress.Spec.ClusterIP, "80") + "/" + space.Name + "/" + broker
		}
		apply("whole", "")
		apply("shared", `eventing.knative.dev/partitions: "3"`)
		for i := range spreadBrokers {
			apply(fmt.Sprintf("spread-%d", i), "")
		}
		var directs, wholes, shareds, spreads, wholeCosts, sharedCosts, spreadCosts []float64
		toOne := flows(b, installation{node}, address("whole"), &wholes, &wholeCosts)
		figures.Alternate(rounds, func() {
			directs = append(directs, direct(b))
			toOne()
		}, flows(b, installation{node}, address("shared"), &shareds, &sharedCosts),
			flows(b, installation{node}, address(fmt.Sprintf("spread-*%d", spreadBrokers)), &spreads, &spreadCosts))
		b.ReportMetric(figures.Median(directs), "direct-events/s")
		b.ReportMetric(figures.Median(wholes), "events/s")
		b.ReportMetric(100*figures.Median(wholes)/figures.Median(directs), "broker-%-of-direct")
		b.ReportMetric(figures.Median(wholeCosts), "replicas-cpu-µs/event")
		b.ReportMetric(figures.Median(shareds), "partitioned-events/s")
		b.ReportMetric(figures.Percent(shareds, wholes), "partitioned-%-of-whole")
		b.ReportMetric(figures.Median(sharedCosts), "partitioned-replicas-cpu-µs/event")
		b.ReportMetric(figures.Median(spreads), "spread-events/s")
		b.ReportMetric(figures.Percent(spreads, wholes), "spread-%-of-whole")
		b.ReportMetric(figures.Median(spreadCosts), "spread-replicas-cpu-µs/event")
	})
}
