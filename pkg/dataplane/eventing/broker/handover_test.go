package broker

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Events that are in the log when a stream is acquired are delivered once all consumers are set, so that replies to them reach
// each consumer (eventing Content Based Routing).
func TestAcquireStreamDeliversWhenComplete(t *testing.T) {
	run(t, func(w *fixture) {
		spec := eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}
		only := func(value string) func(*eventing.Consumer) {
			return func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": value} }
		}
		asked := trigger("asked", only("t"))
		replies := []eventing.Consumer{trigger("r1", only("reply")), trigger("r2", only("reply"))}
		w.set(asked)
		w.set(replies...)
		w.answer("asked", slow(stuck))
		w.accept(brokerKey, "1")
		w.after(0)
		w.ReleaseStream(brokerKey)
		if w.Exists(brokerKey) {
			t.Error("a released stream accepts events")
		}
		reply := newEvent("2")
		reply.Attributes[2].Value = "reply"
		w.answer("asked", replying(reply))
		served, err := w.AcquireStream(w.Context(), spec, append([]eventing.Consumer{asked}, replies...))
		if !served || err != nil {
			t.Fatalf("received %t, %v", served, err)
		}
		w.after(time.Minute)
		w.expectReceived(map[string]string{"asked": "1", "r1": "2", "r2": "2"})
		w.log.expectLeft(t, "b", map[string]int{})
	})
}

// A consumer that cannot be set does not prevent the acquisition of its stream.
func TestAcquireStreamWithBrokenConsumer(t *testing.T) {
	run(t, func(w *fixture) {
		broken := trigger("broken")
		broken.StreamUID = "other"
		served, err := w.AcquireStream(w.Context(), eventing.Stream{Key: brokerKey, UID: "another"}, []eventing.Consumer{broken})
		if !served || err == nil {
			t.Errorf("received %t, %v", served, err)
		}
		if served, err = w.AcquireStream(w.Context(), eventing.Stream{Key: brokerKey, UID: "another"}, nil); !served || err != nil {
			t.Errorf("second call: returned %t, %v", served, err)
		}
	})
}

// Refresh, which is called periodically, finds records that another replica wrote to a queue without an open consumer.
func TestRefresh(t *testing.T) {
	for name, refresh := range map[string]func(*fixture){
		"at once":      func(w *fixture) { w.must(w.Refresh(w.Context(), brokerKey)) },
		"periodically": func(w *fixture) { w.after(2 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a"))
				w.after(20 * watchInterval)
				for _, queue := range []string{delivery.SharedQueue, "uid-a", "uid-a" + deadLetterSuffix} {
					h := record.Header{ID: record.NewID(), Accepted: time.Now()}
					if queue == delivery.SharedQueue {
						h.Targets = []types.UID{"uid-a"}
					}
					w.log.put("b", queue, newEvent("in "+queue).Append(h.Append(nil)))
				}
				w.after(watchInterval - time.Second)
				w.expect("before, a took", w.received("a"), "")
				refresh(w)
				w.after(10 * time.Second)
				w.log.expectLeft(t, "b", map[string]int{})
				if have := len(w.attempts("a")); have != 2 {
					t.Errorf("%d events were sent, want 2", have)
				}
			})
		})
	}
}

// Refresh deletes reappeared records of a removed consumer, once the API does not have the consumer.
func TestRefreshPrunes(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("gone"), trigger("paused", func(c *eventing.Consumer) { c.Subscriber.Unresolved = true }))
		w.must(w.RemoveConsumer(w.Context(), trigger("gone").Key))
		h := record.Header{ID: record.NewID(), Accepted: time.Now()}
		for _, queue := range []string{"uid-gone", "uid-gone" + deadLetterSuffix, "uid-paused", "uid-late"} {
			w.log.put("b", queue, newEvent("1").Append(h.Append(nil)))
		}
		all := map[string]int{"uid-gone": 1, "uid-gone" + deadLetterSuffix: 1, "uid-paused": 1, "uid-late": 1}
		w.must(w.Refresh(w.Context(), brokerKey))
		w.log.expectLeft(t, "b", all)
		w.mu.Lock()
		// The consumers of this Broker exist, regardless of its informers.
		w.absent["uid-gone"], w.absent["uid-paused"] = true, true
		w.mu.Unlock()
		unavailable := errors.New("unavailable")
		w.log.setRefuse(func(string) error { return unavailable })
		if err := w.Refresh(w.Context(), brokerKey); !errors.Is(err, unavailable) {
			t.Errorf("without the log: %v", err)
		}
		w.log.setRefuse(nil)
		w.options.Existing = func(context.Context) (sets.Set[types.UID], error) { return sets.New[types.UID]("uid-gone"), nil }
		w.must(w.Refresh(w.Context(), brokerKey))
		w.log.expectLeft(t, "b", all)
		w.options.Existing = nil
		w.must(w.Refresh(w.Context(), brokerKey))
		w.log.expectLeft(t, "b", map[string]int{"uid-paused": 1, "uid-late": 1})
		if have := len(w.attempts("gone")); have != 0 {
			t.Errorf("%d events were sent to a removed consumer", have)
		}
	})
}

// The events of an object that only other replicas have observed yet are kept.
func TestPruneAsksTheAPI(t *testing.T) {
	run(t, func(w *fixture) {
		w.absent["new"], w.absent["gone"] = true, true
		for _, uid := range []string{"new", "gone"} {
			w.log.put(uid, delivery.SharedQueue, []byte("record"))
		}
		broken := errors.New("the server is down")
		w.options.Existing = func(context.Context) (sets.Set[types.UID], error) { return nil, broken }
		if err := w.Prune(w.Context()); !errors.Is(err, broken) {
			t.Errorf("without the API: %v", err)
		}
		w.log.expectLeft(t, "gone", map[string]int{"": 1})
		w.options.Existing = func(context.Context) (sets.Set[types.UID], error) { return sets.New[types.UID]("new"), nil }
		w.must(w.Prune(w.Context()))
		w.log.expectLeft(t, "new", map[string]int{"": 1})
		w.log.expectLeft(t, "gone", map[string]int{})
	})
}
