package broker

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// partitioned is a Broker with several partitions.
var partitioned = eventing.Key{Kind: eventing.Broker, Namespace: "default", Name: "partitioned"}

// partition sets a number of partitions of a Broker at some replicas, one after the other, each until it succeeds as a controller does.
func (i *installation) partition(partitions int, names ...string) {
	i.Helper()
	var setting sync.WaitGroup
	for n, name := range names {
		setting.Go(func() {
			<-time.After(time.Duration(n) * 100 * time.Millisecond)
			i.retry(func() error {
				return i.replicas[name].shards.SetStream(i.Context(), eventing.Stream{Key: partitioned, UID: "p", Partitions: partitions})
			})
		})
	}
	setting.Wait()
}

// consume sets a Trigger of the partitioned Broker at some replicas, as partition does.
func (i *installation) consume(c eventing.Consumer, names ...string) {
	i.Helper()
	c.Stream, c.StreamUID = partitioned, "p"
	var setting sync.WaitGroup
	for n, name := range names {
		setting.Go(func() {
			<-time.After(time.Duration(n) * 100 * time.Millisecond)
			i.retry(func() error { return i.replicas[name].shards.SetConsumer(i.Context(), c) })
		})
	}
	setting.Wait()
}

func (i *installation) retry(do func() error) {
	i.Helper()
	var err error
	for range 20 {
		if err = do(); err == nil {
			return
		}
		<-time.After(time.Second)
	}
	i.Error(err)
}

// expectSent sends an event to the partitioned Broker.
func (i *installation) expectSent(replica string, attributes map[string]string) {
	i.Helper()
	if code := i.sendTo(replica, partitioned, attributes); code != http.StatusAccepted {
		i.Errorf("%s answers %d to event %v", replica, code, attributes)
	}
}

// served returns the number of partitions of the Broker that a replica serves.
func (i *installation) served(name string) (n int) {
	i.replicas[name].broker.streams.Range(func(key, _ any) bool {
		if key.(eventing.Key).Whole() == partitioned {
			n++
		}
		return true
	})
	return n
}

// TestPartitions covers a Broker with as many partitions as replicas: each accepts the events that it receives, and delivers them once. Nothing is
// left in the log, and removing the Broker removes the logs of all partitions.
func TestPartitions(t *testing.T) {
	install(t, abc, func(i *installation) {
		i.partition(3, abc...)
		i.consume(trigger("p"), abc...)
		i.mu.Lock()
		i.forwards = 0
		i.mu.Unlock()
		var want []string
		for n := range 30 {
			id := fmt.Sprint(n)
			want = append(want, id)
			i.expectSent(abc[n%3], map[string]string{"id": id})
		}
		i.after(time.Second)
		slices.Sort(want)
		i.expect("p was sent", sorted(i.tried("p")), strings.Join(want, " "))
		if i.forwards != 0 {
			t.Errorf("%d events were forwarded, want none", i.forwards)
		}
		for _, name := range abc {
			if n := i.served(name); n != 1 {
				t.Errorf("%s serves %d partitions, want 1", name, n)
			}
		}
		for _, id := range []string{"p", "p_1", "p_2"} {
			i.log.expectLeft(t, id, map[string]int{})
		}
		for _, name := range abc {
			i.must(i.replicas[name].shards.RemoveStream(i.Context(), partitioned))
		}
		for _, id := range []string{"p", "p_1", "p_2"} {
			i.log.mu.Lock()
			if i.log.streams[id] != nil {
				t.Errorf("the log %s was not deleted", id)
			}
			i.log.mu.Unlock()
		}
		if code := i.sendTo("a", partitioned, map[string]string{"id": "x"}); code != http.StatusNotFound {
			t.Errorf("the removed Broker answers %d", code)
		}
	})
}

// TestPartitionKeys covers events with a partition key: whichever replica gets them, those with one key reach an ordered consumer in their order
// (CloudEvents Partitioning 1.0.2), also while attempts fail.
func TestPartitionKeys(t *testing.T) {
	install(t, abc, func(i *installation) {
		i.partition(3, abc...)
		i.consume(trigger("p", func(c *eventing.Consumer) { c.Ordered = true }, withDelivery(eventing.Delivery{Retry: 10, Policy: eventing.BackoffLinear, Backoff: time.Second})), abc...)
		i.answer("p", failing(1, 503))
		for n := range 20 {
			// The partition of this replica is behind the others.
			i.expectSent("a", map[string]string{"id": fmt.Sprint("x", n)})
		}
		for n := range 40 {
			i.expectSent(abc[n%3], map[string]string{"id": fmt.Sprintf("%d-%02d", n%4, n), "partitionkey": fmt.Sprint(n % 4)})
		}
		i.after(5 * time.Minute)
		byKey := map[string][]string{}
		for _, id := range strings.Fields(i.received("p")) {
			byKey[id[:1]] = append(byKey[id[:1]], id)
		}
		delete(byKey, "x")
		for key, ids := range byKey {
			if len(ids) != 10 || !slices.IsSorted(ids) {
				t.Errorf("the events with key %s arrived as %v", key, ids)
			}
		}
		if len(byKey) != 4 {
			t.Errorf("events with %d keys arrived, want 4", len(byKey))
		}
	})
}

// TestPartitionsRaised covers a number of partitions that is raised while events wait, by replicas that observe it at different times, and a Trigger
// that is set meanwhile: once its owner has set it, it gets every event.
func TestPartitionsRaised(t *testing.T) {
	install(t, abc, func(i *installation) {
		i.partition(1, abc...)
		i.consume(trigger("p", withDelivery(eventing.Delivery{Retry: 10, Policy: eventing.BackoffLinear, Backoff: time.Second})), abc...)
		i.answer("p", failing(1, 503))
		var raised sync.WaitGroup
		raised.Go(func() { i.partition(3, abc...) })
		var want []string
		for n := range 30 {
			id := fmt.Sprint(n)
			want = append(want, id)
			i.expectSent(abc[n%3], map[string]string{"id": id})
			i.after(20 * time.Millisecond)
		}
		raised.Wait()
		owner, others := i.owner(partitioned)
		q := trigger("q")
		q.Stream, q.StreamUID = partitioned, "p"
		var ready atomic.Bool
		var set sync.WaitGroup
		for n, name := range append([]string{owner}, others...) {
			set.Go(func() {
				<-time.After(time.Duration(n) * 200 * time.Millisecond)
				i.retry(func() error { return i.replicas[name].shards.SetConsumer(i.Context(), q) })
				if name == owner {
					ready.Store(true)
				}
			})
		}
		var late []string
		for n := range 60 {
			id := fmt.Sprint("late", n)
			if ready.Load() {
				late = append(late, id)
			}
			i.expectSent(abc[n%3], map[string]string{"id": id})
			want = append(want, id)
			i.after(20 * time.Millisecond)
		}
		set.Wait()
		i.after(time.Minute)
		slices.Sort(want)
		i.expect("p took", sorted(i.received("p")), strings.Join(want, " "))
		got := strings.Fields(i.received("q"))
		for _, id := range late {
			if !slices.Contains(got, id) {
				t.Errorf("event %s, sent when the Trigger was ready, did not reach it", id)
			}
		}
		if len(late) == 0 {
			t.Error("the Trigger was not ready before the last event")
		}
	})
}

// TestPartitionsOfStoppedReplica covers replicas that leave the membership, and one that is killed: the others deliver the events of their partitions.
func TestPartitionsOfStoppedReplica(t *testing.T) {
	install(t, abc, func(i *installation) {
		i.partition(3, abc...)
		i.consume(trigger("p", withDelivery(eventing.Delivery{Retry: 10, Policy: eventing.BackoffLinear, Backoff: 10 * time.Second})), abc...)
		i.answer("p", failing(1, 503))
		for n := range 9 {
			i.expectSent(abc[n%3], map[string]string{"id": fmt.Sprint(n)})
		}
		i.after(time.Second)
		i.see(abc, "b", "c")
		i.after(time.Second)
		i.expectSent("a", map[string]string{"id": "forwarded"})
		i.kill("b")
		i.see([]string{"a", "c"}, "c")
		i.after(time.Minute)
		i.expectSent("c", map[string]string{"id": "last"})
		i.after(time.Minute)
		i.expect("p took", unique(i.received("p")), "0 1 2 3 4 5 6 7 8 forwarded last")
		if n := i.served("c"); n != 3 {
			t.Errorf("c serves %d partitions, want all", n)
		}
	})
}

// TestPartitionsUnconfirmed covers a Trigger that another replica has not observed: it is not reported as set.
func TestPartitionsUnconfirmed(t *testing.T) {
	install(t, abc, func(i *installation) {
		i.partition(3, abc...)
		owner, others := i.owner(partitioned)
		c := trigger("p")
		c.Stream, c.StreamUID = partitioned, "p"
		i.must(i.replicas[others[0]].shards.SetConsumer(i.Context(), c))
		if err := i.replicas[owner].shards.SetConsumer(i.Context(), c); err == nil || !strings.Contains(err.Error(), "replica "+others[1]+" has not set Trigger default/p yet") {
			t.Errorf("the owner set the consumer before %s: %v", others[1], err)
		}
		changed := c
		changed.Attributes = map[string]string{"type": "x"}
		i.must(i.replicas[others[1]].shards.SetConsumer(i.Context(), changed))
		if err := i.replicas[owner].shards.SetConsumer(i.Context(), c); err == nil {
			t.Errorf("the owner set the consumer although %s has other filters", others[1])
		}
		i.must(i.replicas[others[1]].shards.SetConsumer(i.Context(), c))
		i.must(i.replicas[owner].shards.SetConsumer(i.Context(), c))
	})
}

// TestPartitionsUnknownToOwner covers partitions that the owner of the first one has not observed: they accept no events, which a Trigger that the
// owner sets could miss.
func TestPartitionsUnknownToOwner(t *testing.T) {
	install(t, abc, func(i *installation) {
		i.partition(1, abc...)
		owner, others := i.owner(partitioned)
		for _, name := range others {
			err := i.replicas[name].shards.SetStream(i.Context(), eventing.Stream{Key: partitioned, UID: "p", Partitions: 3})
			if err == nil || !strings.Contains(err.Error(), "replica "+owner+" does not know Broker default/partitioned/") {
				t.Errorf("%s set partitions before the owner: %v", name, err)
			}
		}
		c := trigger("p")
		c.Stream, c.StreamUID = partitioned, "p"
		i.must(i.replicas[owner].shards.SetConsumer(i.Context(), c))
		for _, name := range others {
			i.expectSent(name, map[string]string{"id": name})
		}
		i.after(time.Second)
		i.expect("p took", sorted(i.received("p")), strings.Join(others, " "))
	})
}

// TestPartitionsSetLate covers partitions that replicas could not set at first: they get the Triggers that were set meanwhile, and are removed with
// the Broker.
func TestPartitionsSetLate(t *testing.T) {
	install(t, abc, func(i *installation) {
		i.partition(1, abc...)
		owner, others := i.owner(partitioned)
		spec := eventing.Stream{Key: partitioned, UID: "p", Partitions: 3}
		for _, name := range others {
			if err := i.replicas[name].shards.SetStream(i.Context(), spec); err == nil {
				t.Errorf("%s set partitions before the owner", name)
			}
		}
		i.consume(trigger("p"), abc...)
		i.must(i.replicas[owner].shards.SetStream(i.Context(), spec))
		for _, name := range others {
			i.must(i.replicas[name].shards.SetStream(i.Context(), spec))
		}
		for _, name := range others {
			i.expectSent(name, map[string]string{"id": name})
		}
		i.after(time.Second)
		i.expect("p took", sorted(i.received("p")), strings.Join(others, " "))
		more := spec
		more.Partitions = 5
		failed := 0
		for _, name := range others {
			if i.replicas[name].shards.SetStream(i.Context(), more) != nil {
				failed++
			}
		}
		if failed == 0 {
			t.Error("the other replicas set more partitions before the owner")
		}
		for _, name := range abc {
			i.must(i.replicas[name].shards.RemoveStream(i.Context(), partitioned))
		}
		i.see(abc, others...)
		i.after(time.Minute)
		for _, name := range abc {
			if n := i.served(name); n > 0 {
				t.Errorf("%s serves %d partitions of the removed Broker", name, n)
			}
		}
		i.log.mu.Lock()
		defer i.log.mu.Unlock()
		for id := range i.log.streams {
			if id == "p" || strings.HasPrefix(id, "p_") {
				t.Errorf("the log %s of the removed Broker exists", id)
			}
		}
	})
}

// owner returns the owner of a stream, and the other replicas.
func (i *installation) owner(key eventing.Key) (owner string, others []string) {
	for name, r := range i.replicas {
		if _, self := r.shards.Route(key.Whole()); self && r.broker.stream(key) != nil {
			owner = name
		} else {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return owner, others
}

// unique returns sorted identifiers without duplicates.
func unique(ids string) string {
	all := strings.Fields(ids)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// TestMetricsOfPartitions covers partitions at one replica, which are counted together.
func TestMetricsOfPartitions(t *testing.T) {
	install(t, []string{"a"}, func(i *installation) {
		i.partition(3, "a")
		i.consume(trigger("p", withDelivery(eventing.Delivery{Retry: 10, Policy: eventing.BackoffLinear, Backoff: time.Minute})), "a")
		i.answer("p", failing(1, 503))
		for n := range 6 {
			i.expectSent("a", map[string]string{"id": fmt.Sprint(n)})
		}
		i.after(10 * time.Second)
		for _, id := range []string{"p", "p_1", "p_2"} {
			if len(i.log.left(id)) == 0 {
				t.Errorf("no event is in the log %s", id)
			}
		}
		registry := metrics.NewKubeRegistry()
		registry.CustomMustRegister(i.replicas["a"].broker)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				labels := map[string]string{}
				for _, pair := range m.GetLabel() {
					labels[pair.GetName()] = pair.GetValue()
				}
				if name := labels["name"]; name == "p" || name == "partitioned" {
					values[family.GetName()+" "+name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		for name, want := range map[string]float64{
			"knative_eventing_events_accepted_total partitioned": 6, "knative_eventing_events_matched_total p": 6,
			"knative_eventing_delivery_retries_total p": 6, "knative_eventing_deliveries_in_flight p": 0,
			"knative_eventing_oldest_undelivered_event_seconds p": 10, "knative_eventing_oldest_undelivered_event_seconds partitioned": 10,
		} {
			if got, found := values[name]; !found || got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if h := i.replicas["a"].shards.Health(trigger("p").Key); h.Failing {
			t.Errorf("the Trigger is failing after one attempt of each event: %+v", h)
		}
	})
}
