package eventing

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// partitioned is the manifest of the Broker default with a number of partitions.
func partitioned(partitions int) string {
	return fmt.Sprintf(`{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: default, annotations: {eventing.knative.dev/partitions: "%d"}}}`, partitions)
}

// TestPartitions raises the number of partitions of a Broker while it accepts events: each replica accepts the events that it receives then, and
// every event is delivered. Events with the same partition key stay in order, whichever replica gets them (CloudEvents Partitioning 1.0.2). A smaller
// number is refused.
func TestPartitions(t *testing.T) {
	t.Parallel()
	s := node.NewSpace(t, "partitions")
	sink := newSink(t)
	s.Apply(t, broker("default", ""), trigger("all", "order", uri(sink.At("/all").URL), ""),
		fmt.Sprintf(`{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: ordered, annotations: {eventing.knative.dev/delivery.order: ordered}},
			spec: {broker: default, filters: [{exact: {type: keyed}}], subscriber: %s, delivery: {retry: 5, backoffDelay: PT0.05S}}}`, uri(sink.At("/ordered").URL)))
	s.Ready(t, "trigger/all", "trigger/ordered")
	address, clients := s.Address(t, "broker/default"), replicas(t)
	var ids []string
	send := func(prefix string, count int) {
		for i := range count {
			id := fmt.Sprint(prefix, i)
			ids = append(ids, id)
			post(t, clients[i%len(clients)], address, id, "order")
		}
	}
	send("before", 15)
	var raised sync.WaitGroup
	raised.Go(func() { s.Apply(t, partitioned(3)) })
	send("during", 60)
	raised.Wait()
	shared := func() map[string]float64 {
		all := map[string]float64{}
		pods, err := node.ServerPods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		accepted := fmt.Sprintf(`knative_eventing_events_accepted_total{kind="Broker",name="default",namespace=%q}`, s.Name)
		for i := range pods {
			values, err := node.MetricsOf(t.Context(), &pods[i])
			if err != nil {
				t.Fatal(err)
			}
			if values[accepted] > 0 {
				all[pods[i].Name] = values[accepted]
			}
		}
		return all
	}
	round := 0
	until(t, "all replicas accept events", func() error {
		round++
		send(fmt.Sprint("after", round, "-"), 6)
		if accepted := shared(); len(accepted) != len(clients) {
			return fmt.Errorf("accepted by %v", accepted)
		}
		return nil
	})
	if err := sink.At("/all").AwaitAll(bounded(t), ids); err != nil {
		t.Error(err)
	}

	sink.At("/ordered").Answer(func(d *harness.Delivery) harness.Answer {
		if strings.HasSuffix(d.ID, "5") && d.Attempt <= 2 {
			return harness.Answer{Code: 503}
		}
		return harness.Answer{}
	})
	var keyed []string
	for i := range 60 {
		id := fmt.Sprintf("%d-%02d", i%4, i)
		keyed = append(keyed, id)
		postWith(t, clients[i%len(clients)], address, id, "keyed", map[string]string{"Ce-Partitionkey": fmt.Sprint(i % 4)})
	}
	if err := sink.At("/ordered").AwaitAll(bounded(t), keyed); err != nil {
		t.Fatal(err)
	}
	byKey := map[string][]string{}
	for _, d := range sink.At("/ordered").Deliveries() {
		// After a replica shut down, the new owner may repeat its last delivery.
		if got := byKey[d.ID[:1]]; len(got) == 0 || got[len(got)-1] != d.ID {
			byKey[d.ID[:1]] = append(got, d.ID)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		if !slices.IsSorted(byKey[key]) {
			t.Errorf("the events with key %s arrived as %v", key, byKey[key])
		}
	}
	until(t, "the trace of an event is complete", func() error {
		result := harness.NewKubectl(t, node.Kubeconfig, s.Name).Run(t, "", "get", "--raw",
			"/apis/eventing.knative.dev/v1/namespaces/"+s.Name+"/brokers/default/trace?id="+ids[len(ids)-1])
		if result.Code != 0 || !strings.Contains(result.Stdout, `"name":"all"`) {
			return fmt.Errorf("%s%s", result.Stdout, result.Stderr)
		}
		return nil
	})
	result := harness.NewKubectl(t, node.Kubeconfig, s.Name).Run(t, partitioned(2), "apply", "-f", "-")
	if result.Code == 0 || !strings.Contains(result.Stderr, "metadata.annotations[eventing.knative.dev/partitions]") || !strings.Contains(result.Stderr, "must be at least 3") {
		t.Errorf("two partitions instead of three: exit code %d, %s", result.Code, result.Stderr)
	}
}
