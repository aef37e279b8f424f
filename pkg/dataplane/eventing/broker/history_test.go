package broker

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var (
	historySeed = flag.Uint64("history.seed", 0, "Run only the histories of this seed.")
	histories   = flag.Uint64("history.runs", 25, "Number of random histories of each kind.")
)

// TestHistories drives random histories: attempts fail or take long, the log rejects appends, endpoints disappear and return,
// replicas change the owner of the stream, the process stops and starts again on the same log. Each event that was accepted
// must end exactly once for each consumer: delivered, dead-lettered, or dropped and counted.
//
// An event is delivered when an attempt at the subscriber returned 2xx to the broker, dead-lettered when an attempt at the dead
// letter sink did, or the dead letter store accepted it, and dropped when the counter of drops was increased. The ends are counted over all processes of a history.
// "Exactly once" holds over orderly stops and changes of the owner, while the log accepts records: the attempts in flight end or
// are canceled, and ends are acknowledged before the next process reads the log. A process that crashes, stops while the log
// rejects records, or waits for longer than releaseGrace for an attempt when the owner changes, cannot acknowledge the ends
// that it reached last. The next process repeats these deliveries, so that an event may end more than once, or once in each of
// two ways; in histories with such steps each event ends at least once. The same is true for a consumer whose order was changed
// before its process stopped or the owner changed: segments with several events stay as they are, to keep the order.
func TestHistories(t *testing.T) {
	for kind, crashes := range map[string]bool{"exactly once": false, "at least once": true} {
		t.Run(kind, func(t *testing.T) {
			first, n := uint64(1), *histories
			if *historySeed != 0 {
				first, n = *historySeed, 1
			}
			for seed := first; seed < first+n; seed++ {
				t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
					run(t, func(w *fixture) {
						w.letters = &letterStore{fixture: w}
						w.options.DeadLetters = w.letters
						h := &history{fixture: w, random: rand.New(rand.NewPCG(seed, 0)), seed: seed, crashes: crashes, down: map[string]bool{}}
						h.run()
						h.check()
						if t.Failed() {
							t.Logf("repeat by: go test -run 'TestHistories/%s' -history.seed=%d; steps: %s", strings.ReplaceAll(kind, " ", "_"), seed, strings.Join(h.steps, ", "))
						}
					})
				})
			}
		})
	}
}

// history is a random sequence of steps.
type history struct {
	*fixture
	random  *rand.Rand
	seed    uint64
	crashes bool
	// consumers are the consumers that exist until the end. seen are their data plane objects in all processes.
	consumers []eventing.Consumer
	seen      []*consumer
	// temporary is a consumer that is removed and created again. None of its records may remain in the log.
	temporary eventing.Consumer
	// reordered is true once the order of a consumer was changed, repeats once its ends may be repeated.
	reordered, repeats bool
	// accepted and rejected are the IDs of events by the result of Accept.
	accepted, rejected []string
	// down has the URLs that do not answer. The mu of fixture guards it.
	down  map[string]bool
	steps []string
}

// choose returns a number below n that depends on the seed and the arguments alone, so that the behavior of endpoints does not
// depend on the order of attempts.
func (h *history) choose(n uint64, of ...any) uint64 {
	hash := fnv.New64a()
	fmt.Fprint(hash, h.seed, of)
	return rand.New(rand.NewPCG(hash.Sum64(), 0)).Uint64N(n)
}

// endpoint returns the answers of an endpoint.
func (h *history) endpoint(url string) func(id string, n int) (time.Duration, sender.Result) {
	return func(id string, n int) (time.Duration, sender.Result) {
		h.mu.Lock()
		down := h.down[url]
		h.mu.Unlock()
		// Fractions of milliseconds keep answers from coinciding with steps.
		latency := time.Duration(h.choose(50_000_000, url, id, n, "latency"))
		if down {
			_, r := unreachable(0)
			return latency, r
		}
		if h.choose(10, url, id, n, "late") == 0 {
			latest := releaseGrace
			if h.crashes {
				latest *= 2
			}
			latency = time.Duration(h.choose(uint64(latest), url, id, n, "latency"))
		}
		switch h.choose(10, url, id, n, "answer") {
		case 0:
			return latency, status(500)
		case 1:
			return latency, status(503)
		case 2:
			return latency, status(429)
		case 3:
			_, r := unreachable(0)
			return latency, r
		case 4:
			return latency, status(400)
		}
		return latency, status(202)
	}
}

func (h *history) run() {
	withSink := func(c *eventing.Consumer) { c.DeadLetter.URL = "http://dead-" + c.Key.Name + "/" }
	h.consumers = []eventing.Consumer{
		trigger("sink", withDelivery(linear(3, time.Second)), withSink),
		trigger("backoff", withDelivery(eventing.DefaultDelivery()), withSink),
		trigger("none", withDelivery(linear(2, 300*time.Millisecond)), withoutStore),
		trigger("stored", withDelivery(linear(2, 300*time.Millisecond))),
		trigger("ordered", ordered, withDelivery(linear(2, time.Second)), withSink),
		trigger("switching", withDelivery(linear(5, time.Second)), withSink),
	}
	h.temporary = trigger("temporary", withDelivery(linear(10, time.Second)), withSink)
	for _, c := range append(h.consumers, h.temporary) {
		for _, url := range []string{c.Subscriber.URL, "http://dead-" + c.Key.Name + "/"} {
			h.respond(url, h.endpoint(url))
		}
	}
	h.set(append(h.consumers, h.temporary)...)
	h.observe()
	for i := range 60 {
		var events []*event.Event
		var ids []string
		for j := range 1 + h.random.IntN(4) {
			ids = append(ids, fmt.Sprintf("%03d-%d", i, j))
			events = append(events, newEvent(ids[j]))
		}
		if h.Accept(h.Context(), brokerKey, events) == nil {
			h.accepted = append(h.accepted, ids...)
		} else {
			h.rejected = append(h.rejected, ids...)
		}
		h.pause(300)
		if h.random.IntN(3) == 0 {
			h.step()
		}
	}
	h.removeTemporary()
	h.after(100 * time.Hour)
}

// removeTemporary deletes the consumer that does not exist until the end.
func (h *history) removeTemporary() {
	h.mu.Lock()
	h.absent[h.temporary.UID] = true
	h.mu.Unlock()
	h.must(h.RemoveConsumer(h.Context(), h.temporary.Key))
}

// pause waits for a random time of at most some milliseconds.
func (h *history) pause(milliseconds int) {
	h.after(time.Duration(1+h.random.IntN(milliseconds)) * time.Millisecond)
}

// observe records the consumers of a new process or owner.
func (h *history) observe() {
	h.repeats = h.repeats || h.reordered
	for _, c := range h.consumers {
		h.seen = append(h.seen, h.consumer(c))
	}
}

func (h *history) step() {
	c := &h.consumers[h.random.IntN(len(h.consumers))]
	n := 8
	if h.crashes {
		n = 10
	}
	switch h.random.IntN(n) {
	case 0:
		h.note("log rejects")
		h.log.setRefuse(func(string) error { return errors.New("full") })
		h.pause(3000)
		h.log.setRefuse(nil)
	case 1:
		h.note("log rejects all but new events")
		h.log.setRefuse(func(queue string) error {
			if queue == delivery.SharedQueue {
				return nil
			}
			return errors.New("full")
		})
		h.pause(3000)
		h.log.setRefuse(nil)
	case 2:
		h.note("no answer from " + c.Key.Name)
		h.setDown(c.Subscriber.URL, true)
		h.pause(5000)
		h.setDown(c.Subscriber.URL, false)
	case 3:
		h.note("unresolved " + c.Key.Name)
		unresolved := *c
		if h.random.IntN(2) == 0 {
			unresolved.Subscriber = eventing.Endpoint{Unresolved: true}
		} else {
			unresolved.DeadLetter = eventing.Endpoint{Unresolved: true}
		}
		if c.DeadLetter.URL == "" {
			unresolved = *c
			unresolved.Subscriber = eventing.Endpoint{Unresolved: true}
		}
		h.set(unresolved)
		h.pause(8000)
		h.set(*c)
	case 4:
		h.note("order changes")
		h.reordered = true
		switching := &h.consumers[len(h.consumers)-1]
		switching.Ordered = !switching.Ordered
		h.set(*switching)
	case 5:
		h.note("restart")
		h.restart()
		h.observe()
	case 6:
		h.note("owner changes")
		h.ReleaseStream(brokerKey)
		h.pause(1000)
		_, err := h.AcquireStream(h.Context(), eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}, append(h.consumers, h.temporary))
		h.must(err)
		h.observe()
	case 7:
		h.note("consumer removed and created")
		h.removeTemporary()
		h.temporary.UID += "+"
		h.set(h.temporary)
	case 8:
		h.note("crash")
		h.crash()
		h.observe()
	case 9:
		h.note("restart while the log rejects")
		h.log.setRefuse(func(string) error { return errors.New("full") })
		h.pause(1000)
		h.restart()
		h.observe()
		h.log.setRefuse(nil)
	}
}

func (h *history) note(step string) {
	h.steps = append(h.steps, fmt.Sprintf("%s %s", time.Since(h.start), step))
}

func (h *history) setDown(url string, down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down[url] = down
}

// check compares the ends of deliveries with the accepted events.
func (h *history) check() {
	for _, c := range h.consumers {
		ends, exactly := map[string]int{}, !h.crashes && !(h.repeats && c.Key.Name == "switching")
		for _, endpoint := range []string{c.Key.Name, "dead-" + c.Key.Name} {
			for _, id := range strings.Fields(h.received(endpoint)) {
				ends[id]++
			}
		}
		for _, id := range h.rejected {
			if ends[id] > 0 {
				h.Errorf("%s: event %s ended %d times, but was not accepted", c.Key.Name, id, ends[id])
			}
		}
		missing, total := 0, 0
		for _, id := range h.accepted {
			total += ends[id]
			if ends[id] == 0 {
				missing++
			}
			if ends[id] > 1 && exactly {
				h.Errorf("%s: event %s ended %d times:%s", c.Key.Name, id, ends[id], h.trace(c, id))
			}
		}
		dropped := 0
		// Each process has its own counters, which changes of the owner do not reset.
		counted := map[*consumerCounts]bool{}
		for _, seen := range h.seen {
			if seen.config.Load().UID == c.UID && !counted[seen.counts] {
				counted[seen.counts] = true
				dropped += int(seen.counts.dropped.Load())
			}
		}
		if dropped < missing || dropped != missing && exactly {
			h.Errorf("%s: %d of %d events were neither delivered nor dead-lettered, and %d were dropped", c.Key.Name, missing, len(h.accepted), dropped)
		}
		if c.NoDeadLetterStore && dropped == 0 {
			h.Errorf("%s: no event was dropped, so the history does not test drops", c.Key.Name)
		}
		if c.Key.Name == "ordered" {
			h.checkOrder(c)
		}
	}
	h.log.expectLeft(h.T, "b", nil)
}

// trace returns the attempts at an event.
func (h *history) trace(c eventing.Consumer, id string) string {
	var all strings.Builder
	for _, endpoint := range []string{c.Key.Name, "dead-" + c.Key.Name} {
		for _, call := range h.attempts(endpoint) {
			if call.id == id {
				fmt.Fprintf(&all, " %s at %s to %s ok=%t", endpoint, call.at, call.end, call.ok)
			}
		}
	}
	return all.String()
}

// checkOrder fails unless one attempt after the other was made, and first attempts in order.
func (h *history) checkOrder(c eventing.Consumer) {
	var firsts []string
	end := time.Duration(0)
	for _, call := range h.attempts(c.Key.Name) {
		if call.at < end {
			h.Errorf("ordered: attempt at %s began at %s, before the previous one ended at %s", call.id, call.at, end)
		}
		end = call.end
		if !slices.Contains(firsts, call.id) {
			firsts = append(firsts, call.id)
		}
	}
	if !slices.IsSorted(firsts) {
		h.Errorf("ordered: events were sent in the order %v", firsts)
	}
}
