package eventing

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/natstest"
)

const (
	// posters is the number of connections that post events during failures.
	posters = 16
	// posterPause is the pause of each poster between two events: a higher rate would test the machine, not the broker.
	posterPause = 5 * time.Millisecond
)

// lossTime is the duration, one minute unless EVENTING_LOSS_TIME is set.
func lossTime(t *testing.T) time.Duration {
	t.Helper()
	value := os.Getenv("EVENTING_LOSS_TIME")
	if value == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("EVENTING_LOSS_TIME: %v", err)
	}
	return d
}

// lossScene is the fixture of events and failures: a Broker with a Trigger for all events and one for half of them, and a
// Channel with a Subscription.
type lossScene struct {
	*server
	broker, channel          string
	all, half, subscriptions *harness.Subscriber
}

func newLossScene(t *testing.T, s *server) *lossScene {
	t.Helper()
	ns, sink := namespace(), harness.NewSink(t)
	scene := &lossScene{
		server: s, broker: s.broker(t, ns, "orders"), channel: s.channel(t, ns, "orders"),
		all: sink.At("/all"), half: sink.At("/half"), subscriptions: sink.At("/subscription"),
	}
	s.trigger(t, ns, "orders", "all", scene.all.URL)
	s.trigger(t, ns, "orders", "half", scene.half.URL, ofType("even"))
	s.subscription(t, ns, "orders", "orders", scene.subscriptions.URL)
	return scene
}

// acknowledged are the IDs of events that were answered 202.
type acknowledged struct {
	even, odd, channel []string
	// failed counts all other events.
	failed int
}

// postAll posts events over several connections until done is closed.
func (s *lossScene) postAll(t *testing.T, done <-chan struct{}) *acknowledged {
	t.Helper()
	var all [posters]*acknowledged
	var running sync.WaitGroup
	for p := range all {
		running.Go(func() { all[p] = s.post(t, fmt.Sprint(p), done) })
	}
	running.Wait()
	total := &acknowledged{}
	for _, one := range all {
		total.even, total.odd = append(total.even, one.even...), append(total.odd, one.odd...)
		total.channel, total.failed = append(total.channel, one.channel...), total.failed+one.failed
	}
	return total
}

// post posts one event after the other, alternating between broker and channel, until done is closed. It does not repeat
// rejected events.
func (s *lossScene) post(t *testing.T, prefix string, done <-chan struct{}) *acknowledged {
	t.Helper()
	got := &acknowledged{}
	for i := 0; ; i++ {
		address, kind, ids := s.broker, "even", &got.even
		switch i % 4 {
		case 0:
			kind, ids = "odd", &got.odd
		case 1:
			address, ids = s.channel, &got.channel
		}
		e := event{id: fmt.Sprintf("%s-%d", prefix, i), kind: kind}
		if a, err := post(t.Context(), address, e); err == nil && a.code == http.StatusAccepted {
			*ids = append(*ids, e.id)
		} else {
			got.failed++
		}
		select {
		case <-time.After(posterPause):
		case <-done:
			return got
		}
	}
}

// unreliable is a subscriber that fails at random: it rejects an event, closes the connection without a response, responds
// late, or accepts an event and closes the connection.
func unreliable(*harness.Delivery) harness.Answer {
	switch n := rand.IntN(100); {
	case n < 5:
		return harness.Answer{Code: http.StatusServiceUnavailable}
	case n < 8:
		return harness.Answer{Drop: true}
	case n < 11:
		return harness.Answer{Delay: time.Duration(rand.IntN(300)) * time.Millisecond}
	case n < 12:
		return harness.Answer{Delay: time.Duration(rand.IntN(100)) * time.Millisecond, Drop: true}
	}
	return harness.Answer{}
}

// endure posts events while subscribers are unreliable and fail causes repeated failures of another part, until done is closed.
// Then it waits until every acknowledged event arrived at its subscribers.
func (s *lossScene) endure(t *testing.T, fail func(done <-chan struct{})) {
	t.Helper()
	for _, subscriber := range []*harness.Subscriber{s.all, s.half, s.subscriptions} {
		subscriber.Answer(unreliable)
	}
	done := make(chan struct{})
	end := sync.OnceFunc(func() { close(done) })
	time.AfterFunc(lossTime(t), end)
	defer end()
	posting := make(chan *acknowledged, 1)
	go func() { posting <- s.postAll(t, done) }()
	fail(done)
	got := <-posting
	t.Logf("acknowledged: %d events to the broker, %d to the channel; %d were not acknowledged",
		len(got.even)+len(got.odd), len(got.channel), got.failed)
	if min(len(got.even), len(got.odd), len(got.channel)) == 0 {
		t.Fatal("nothing was acknowledged")
	}
	for _, subscriber := range []*harness.Subscriber{s.all, s.half, s.subscriptions} {
		subscriber.Answer(nil)
	}
	for _, want := range []struct {
		*harness.Subscriber
		ids []string
	}{
		{s.all, append(append([]string{}, got.even...), got.odd...)},
		{s.half, got.even},
		{s.subscriptions, got.channel},
	} {
		healed := time.Now()
		if err := want.AwaitAll(bounded(t), want.ids); err != nil {
			t.Errorf("acknowledged events are lost: %v", err)
		}
		received := want.Received()
		duplicates, requests := 0, 0
		for _, count := range received {
			requests += count
			duplicates += count - 1
		}
		t.Logf("%s: want %d events, got %d, %d of them duplicates (%.2f %%); the last %s after the failures ended",
			want.URL, len(want.ids), len(received), duplicates, 100*float64(duplicates)/float64(requests), time.Since(healed).Round(time.Millisecond))
	}
	attempts := s.half.Attempts()
	for _, id := range got.odd {
		if attempts[id] > 0 {
			t.Errorf("event %s was delivered to a Trigger whose filter it does not match", id)
		}
	}
}

// pause waits for a random time between least and twice least; it returns false if done is closed first.
func pause(done <-chan struct{}, least time.Duration) bool {
	select {
	case <-time.After(least + rand.N(least)):
		return true
	case <-done:
		return false
	}
}

// TestNothingAcknowledgedIsLost checks that every event that was answered 202 arrives at every matching subscriber, although
// the server is killed every few seconds (eventing Content Based Routing-3, eventing Topology Based Routing-3; eventing Event
// Acknowledgement and Delivery Retry-1 and -7).
func TestNothingAcknowledgedIsLost(t *testing.T) {
	t.Parallel()
	scene := newLossScene(t, start(t, t.TempDir()))
	scene.endure(t, func(done <-chan struct{}) {
		kills := 0
		for pause(done, 2*time.Second) {
			scene.Kill()
			if err := scene.restart(); err != nil {
				t.Fatalf("starting the server after it was killed: %v", err)
			}
			kills++
		}
		t.Logf("the server was killed %d times", kills)
	})
}

// TestNothingAcknowledgedIsLostByCluster is like TestNothingAcknowledgedIsLost with a cluster of three NATS servers, of which
// one at a time is killed.
func TestNothingAcknowledgedIsLostByCluster(t *testing.T) {
	t.Parallel()
	cluster := natstest.Start(t, natstest.Options{Nodes: 3})
	scene := newLossScene(t, start(t, t.TempDir(), "--nats-url", cluster.URL(), "--nats-replicas", "3"))
	scene.endure(t, func(done <-chan struct{}) {
		kills := 0
		for pause(done, 2*time.Second) {
			node := cluster.Nodes[rand.IntN(len(cluster.Nodes))]
			node.Kill()
			pause(done, time.Second)
			node.Restart()
			cluster.Wait()
			kills++
		}
		t.Logf("a NATS server was killed %d times", kills)
	})
}
