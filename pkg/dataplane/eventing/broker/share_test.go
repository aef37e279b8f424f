package broker

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// A namespace whose subscribers are slow has no more attempts in flight than its share, which its consumers use in
// turn; other namespaces are not slowed.
func TestShares(t *testing.T) {
	run(t, func(w *fixture) {
		const share = 4
		w.shares = delivery.NewShares(share)
		w.must(w.RemoveStream(w.Context(), brokerKey))
		w.must(w.SetStream(w.Context(), eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}))
		other := eventing.Key{Kind: eventing.Broker, Namespace: "other", Name: "o"}
		w.must(w.SetStream(w.Context(), eventing.Stream{Key: other, UID: types.UID(other.Name)}))
		calm := trigger("calm", func(c *eventing.Consumer) {
			c.Key.Namespace, c.Stream, c.StreamUID = other.Namespace, other, types.UID(other.Name)
		})
		w.set(trigger("x"), trigger("y"), calm)
		w.answer("x", slow(time.Second))
		w.answer("y", slow(time.Second))
		w.accept(brokerKey, numbers(20)...)
		w.after(0)
		if have := len(w.attempts("x")) + len(w.attempts("y")); have != share {
			t.Errorf("%d attempts are in flight, want %d", have, share)
		}
		for i := range 10 {
			w.accept(other, fmt.Sprint("calm", i))
			w.after(100 * time.Millisecond)
		}
		for i, at := range w.times("calm") {
			if want := time.Duration(i) * 100 * time.Millisecond; at != want {
				t.Errorf("event %d was sent after %s, want %s", i, at, want)
			}
		}
		w.after(4 * time.Second)
		x, y := len(w.attempts("x")), len(w.attempts("y"))
		if x < 8 || y < 8 {
			t.Errorf("after five seconds there were %d attempts at x and %d at y, want equal numbers", x, y)
		}
		w.after(time.Minute)
		w.expectReceived(map[string]string{"x": w.sorted("x"), "y": w.sorted("x")})
		if have := len(w.attempts("x")); have < 20 {
			t.Errorf("%d attempts at x, want 20", have)
		}
		if free, waiting := w.shares.Of("default").Status(); free != share || waiting > 0 {
			t.Errorf("%d of the share are free at the end, and %d queues wait", free, waiting)
		}
	})
}

// A Trigger of another namespace than its Broker's uses the share of its own namespace.
func TestShareOfLinkedTrigger(t *testing.T) {
	run(t, func(w *fixture) {
		const share = 4
		w.shares = delivery.NewShares(share)
		w.must(w.RemoveStream(w.Context(), brokerKey))
		w.must(w.SetStream(w.Context(), eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}))
		w.set(trigger("x"), trigger("y", func(c *eventing.Consumer) { c.Key.Namespace = "guest" }))
		w.answer("x", slow(time.Second))
		w.answer("y", slow(time.Second))
		w.accept(brokerKey, numbers(20)...)
		w.after(0)
		if x, y := len(w.attempts("x")), len(w.attempts("y")); x != share || y != share {
			t.Errorf("%d and %d attempts are in flight, want %d each", x, y, share)
		}
		w.after(time.Minute)
	})
}
