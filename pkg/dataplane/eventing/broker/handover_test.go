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

// Events that are in the log when a stream is acquired are delivered once all consumers are there: replies to them reach each
// (eventing Content Based Routing).
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
			t.Error("a stream that was released takes events")
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

// A consumer that cannot be set keeps no stream from being acquired.
func TestAcquireStreamWithBrokenConsumer(t *testing.T) {
	run(t, func(w *fixture) {
		broken := trigger("broken")
		broken.StreamUID = "other"
		served, err := w.AcquireStream(w.Context(), eventing.Stream{Key: brokerKey, UID: "another"}, []eventing.Consumer{broken})
		if !served || err == nil {
			t.Errorf("received %t, %v", served, err)
		}
		if served, err = w.AcquireStream(w.Context(), eventing.Stream{Key: brokerKey, UID: "another"}, nil); !served || err != nil {
			t.Errorf("again: received %t, %v", served, err)
		}
	})
}

// What another replica wrote to a queue that no consumer listens to any more is found by Refresh.
func TestRefresh(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		w.after(10 * time.Minute)
		for _, queue := range []string{delivery.SharedQueue, "uid-a", "uid-a" + deadLetterSuffix} {
			h := record.Header{ID: record.NewID(), Accepted: time.Now()}
			if queue == delivery.SharedQueue {
				h.Targets = []types.UID{"uid-a"}
			}
			w.log.put("b", queue, newEvent("in "+queue).Append(h.Append(nil)))
		}
		w.after(time.Minute)
		w.expect("before, a took", w.received("a"), "")
		w.must(w.Refresh(w.Context(), brokerKey))
		w.after(time.Minute)
		w.log.expectLeft(t, "b", map[string]int{})
		if have := len(w.attempts("a")); have != 2 {
			t.Errorf("%d events were sent, want 2", have)
		}
	})
}

// An object that only other replicas have yet loses nothing.
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
