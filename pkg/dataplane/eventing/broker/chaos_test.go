package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Regardless of failures of endpoints, log and process, every accepted event reaches every consumer, in order if
// requested, and no record of it remains in the log (eventing Content Based Routing).
func TestChaos(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, func(w *fixture) { w.chaos(rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func (w *fixture) chaos(random *rand.Rand) {
	roll := func(n int) int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return random.IntN(n)
	}
	unsteady := func(int) (time.Duration, sender.Result) {
		after := time.Duration(roll(300)) * time.Millisecond
		switch roll(12) {
		case 0:
			return after, status(500)
		case 1:
			return after, status(503)
		case 2:
			return after, status(429)
		case 3:
			_, r := unreachable(0)
			return after, r
		case 4:
			return 20 * after, status(202)
		}
		return after / 10, status(202)
	}
	consumers := []eventing.Consumer{
		trigger("a", withDelivery(eventing.DefaultDelivery())),
		trigger("b", withDelivery(linear(1000, time.Second))),
		trigger("o", withDelivery(linear(1000, time.Second)), ordered),
		trigger("switching", withDelivery(eventing.DefaultDelivery())),
	}
	w.set(consumers...)
	for _, c := range consumers {
		w.answer(c.Key.Name, unsteady)
	}
	var accepted []string
	ids := numbers(400)
	for len(ids) > 0 {
		n := min(1+roll(5), len(ids))
		var events []*event.Event
		for _, id := range ids[:n] {
			events = append(events, newEvent(id))
		}
		if w.Accept(w.Context(), brokerKey, events) == nil {
			accepted = append(accepted, ids[:n]...)
		}
		ids = ids[n:]
		w.after(time.Duration(roll(200)) * time.Millisecond)
		switch roll(30) {
		case 0:
			w.crash()
		case 1:
			w.restart()
		case 2:
			w.log.setRefuse(func(string) error { return errors.New("full") })
			w.after(time.Duration(roll(3000)) * time.Millisecond)
			w.log.setRefuse(nil)
		case 3, 4:
			c := &consumers[3]
			c.Ordered = !c.Ordered
			w.set(*c)
		case 5:
			c := consumers[roll(3)]
			c.Subscriber.URL = ""
			w.set(c)
			w.after(time.Duration(roll(2000)) * time.Millisecond)
			c.Subscriber.URL = "http://" + c.Key.Name + "/"
			w.set(c)
		}
	}
	w.after(10 * time.Hour)
	for _, c := range consumers {
		received := strings.Fields(w.received(c.Key.Name))
		if c.Key.Name == "o" {
			seen := map[string]bool{}
			first := slices.DeleteFunc(slices.Clone(received), func(id string) bool {
				repeated := seen[id]
				seen[id] = true
				return repeated
			})
			if !slices.IsSorted(first) {
				w.Errorf("the ordered consumer received %v", first)
			}
		}
		slices.Sort(received)
		if missed := slices.DeleteFunc(slices.Clone(accepted), func(id string) bool { _, found := slices.BinarySearch(received, id); return found }); len(missed) > 0 {
			w.Errorf("%s never received %v", c.Key.Name, missed)
		}
		if twice := len(received) - len(accepted); twice > len(accepted) && c.Key.Name != "switching" {
			w.Errorf("%s received %d events twice, of %d", c.Key.Name, twice, len(accepted))
		}
	}
	w.log.expectLeft(w.T, "b", nil)
}
