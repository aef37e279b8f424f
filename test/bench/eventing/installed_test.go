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

// BenchmarkInstalled measures durable events per second on a cluster: from its node through a Broker of the installation to one Trigger's
// subscriber on the node. The installation must allow deliveries to the node (--allow-destination), as hack/e2e.sh does.
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
		space.Apply(b, "{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: bench}}",
			fmt.Sprintf("{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: bench}, spec: {broker: bench, subscriber: {uri: %q}}}", subscribers.at(0)))
		space.Ready(b, "broker/bench", "trigger/bench")
		address := "http://" + net.JoinHostPort(ingress.Spec.ClusterIP, "80") + "/" + space.Name + "/bench"
		var directs, events, costs []float64
		for range rounds {
			directs = append(directs, direct(b))
			f := flowOf(b, installation{node}, address, 1)
			events, costs = append(events, f.events(1)), append(costs, figures.Microseconds(f.cost))
		}
		b.ReportMetric(figures.Median(directs), "direct-events/s")
		b.ReportMetric(figures.Median(events), "events/s")
		b.ReportMetric(100*figures.Median(events)/figures.Median(directs), "broker-%-of-direct")
		b.ReportMetric(figures.Median(costs), "replicas-cpu-µs/event")
	})
}
