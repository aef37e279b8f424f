package eventtrace

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var (
	orders  = eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}
	letters = eventing.Key{Kind: eventing.Channel, Namespace: "shop", Name: "letters"}
	ledger  = eventing.Key{Kind: eventing.Broker, Namespace: "billing", Name: "ledger"}
	begin   = time.Unix(1_700_000_000, 0)
)

func at(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }

func consumer(kind eventing.Kind, namespace, name string) eventing.Key {
	return eventing.Key{Kind: kind, Namespace: namespace, Name: name}
}

// fixture are Traces over the records of one replica.
type fixture struct {
	*testing.T
	Traces
	store     *trace.Store
	consumers map[eventing.Key][]eventing.Consumer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, store: newStore(t), consumers: map[eventing.Key][]eventing.Consumer{}}
	f.Traces = Traces{
		Source:    &Replicas{Store: f.store},
		Consumers: func(stream eventing.Key) []eventing.Consumer { return f.consumers[stream] },
		UID:       func(stream eventing.Key) (types.UID, bool) { return types.UID(stream.Name), stream.Name != "deleted" },
		StreamAt: func(address string) (eventing.Key, bool) {
			for _, stream := range []eventing.Key{orders, letters, ledger, {Kind: eventing.Broker, Namespace: "shop", Name: "deleted"}} {
				if address == addressOf(stream) {
					return stream, true
				}
			}
			return eventing.Key{}, false
		},
	}
	return f
}

func newStore(t *testing.T) *trace.Store {
	t.Helper()
	store, err := trace.Open(trace.Options{Dir: t.TempDir(), Clock: clock.RealClock{}, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

func addressOf(stream eventing.Key) string { return "http://" + stream.Name }

// accepted records an acceptance for consumers.
func (f *fixture) accepted(stream eventing.Key, id string, when time.Time, change func(*trace.Acceptance), matched ...eventing.Key) {
	a := &trace.Acceptance{
		Attributes: []event.Attribute{{Name: event.EventType, Value: "t"}}, Matched: matched, MatchedCount: len(matched),
	}
	for i := range f.consumers[stream] {
		a.Filters ^= trace.Fingerprint(&f.consumers[stream][i])
	}
	if change != nil {
		change(a)
	}
	f.store.Add(&trace.Record{Stream: stream, StreamUID: types.UID(stream.Name), ID: id, Source: "/s", Accepted: when, Acceptance: a})
}

// attempted records an attempt of a delivery of an event that was accepted before.
func (f *fixture) attempted(stream eventing.Key, id string, when time.Time, a trace.Attempt) {
	f.store.Add(&trace.Record{Stream: stream, StreamUID: types.UID(stream.Name), ID: id, Source: "/s", Accepted: when, Attempt: &a})
}

// expect compares a trace, in short form.
func (f *fixture) expect(options duckv1.EventTraceOptions, readable func(eventing.Key) bool, want ...string) {
	f.Helper()
	if readable == nil {
		readable = func(eventing.Key) bool { return false }
	}
	found, err := f.Trace(f.Context(), orders, &options, readable)
	if err != nil {
		f.Fatal(err)
	}
	var got []string
	for _, e := range found.Events {
		line := fmt.Sprintf("%d %s at %s/%s", e.Number, e.ID, e.At.Namespace, e.At.Name)
		if e.Parent != nil {
			line += fmt.Sprintf(" %s of %d by %s", e.Parent.As, e.Parent.Number, e.Parent.Consumer.Name)
		}
		if e.Hidden || e.Unrecorded {
			line += fmt.Sprintf(" hidden %t unrecorded %t", e.Hidden, e.Unrecorded)
		}
		got = append(got, line)
		for _, d := range e.Deliveries {
			line := fmt.Sprintf("%d to %s/%s: %s, %d attempts", e.Number, d.Consumer.Namespace, d.Consumer.Name, d.State, len(d.Attempts))
			if d.Hidden {
				line += " hidden"
			}
			if d.Reason != "" {
				line += ", " + d.Reason
			}
			got = append(got, line)
		}
		for _, m := range e.Unmatched {
			got = append(got, fmt.Sprintf("%d not to %s: %s %s %t", e.Number, m.Consumer.Name, m.Filter, m.Reason, m.Changed))
		}
	}
	got = append(got, found.Incomplete...)
	if !slices.Equal(got, want) {
		f.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestUnknown finds nothing of unknown events, and of a Broker that the informers do not know.
func TestUnknown(t *testing.T) {
	f := newFixture(t)
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil)
	f.UID = func(eventing.Key) (types.UID, bool) { return "", false }
	f.accepted(orders, "1", at(0), nil)
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil)
	// An earlier Broker of the same name had another UID.
	f.UID = func(eventing.Key) (types.UID, bool) { return "another", true }
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil)
}

// TestStates covers the states of deliveries.
func TestStates(t *testing.T) {
	a := consumer(eventing.Trigger, "shop", "a")
	failed := trace.Attempt{Consumer: a, Outcome: trace.Retried, Number: 1, Start: at(1), Code: 503, Error: "503"}
	with := func(change func(*trace.Attempt)) trace.Attempt {
		changed := failed
		changed.Start = at(2)
		change(&changed)
		return changed
	}
	for name, test := range map[string]struct {
		attempts []trace.Attempt
		want     string
	}{
		"none":             {nil, "Pending, 0 attempts, no attempt is recorded yet"},
		"retried":          {[]trace.Attempt{failed}, "Retrying, 1 attempts, 503"},
		"delivered":        {[]trace.Attempt{failed, with(func(a *trace.Attempt) { a.Outcome = trace.Delivered })}, "Delivered, 2 attempts"},
		"repeated":         {[]trace.Attempt{with(func(a *trace.Attempt) { a.Outcome, a.Start = trace.Delivered, at(0) }), failed}, "Delivered, 2 attempts"},
		"answered":         {[]trace.Attempt{with(func(a *trace.Attempt) { a.Outcome, a.Error = trace.Answered, "" })}, "Retrying, 1 attempts, the reply was not sent yet"},
		"dropped":          {[]trace.Attempt{with(func(a *trace.Attempt) { a.Outcome = trace.Dropped })}, "Dropped, 1 attempts, 503"},
		"undeliverable":    {[]trace.Attempt{with(func(a *trace.Attempt) { a.Outcome = trace.DeadLettered })}, "DeadLettering, 1 attempts, 503"},
		"dead letter":      {[]trace.Attempt{failed, with(func(a *trace.Attempt) { a.Outcome, a.Role = trace.Delivered, trace.DeadLetter })}, "DeadLettered, 2 attempts"},
		"its retry":        {[]trace.Attempt{failed, with(func(a *trace.Attempt) { a.Role = trace.DeadLetter })}, "DeadLettering, 2 attempts, 503"},
		"its drop":         {[]trace.Attempt{with(func(a *trace.Attempt) { a.Outcome, a.Role = trace.Dropped, trace.DeadLetter })}, "Dropped, 1 attempts, 503"},
		"in another order": {[]trace.Attempt{with(func(a *trace.Attempt) { a.Outcome = trace.Delivered }), failed}, "Delivered, 2 attempts"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.consumers[orders] = []eventing.Consumer{{Key: a}}
			f.accepted(orders, "1", at(0), nil, a)
			for _, attempt := range test.attempts {
				f.attempted(orders, "1", at(0), attempt)
			}
			f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders", "1 to shop/a: "+test.want)
		})
	}
}

// TestPending covers the reasons of deliveries without attempts.
func TestPending(t *testing.T) {
	f := newFixture(t)
	deleted, unresolved := consumer(eventing.Trigger, "shop", "deleted"), consumer(eventing.Trigger, "shop", "unresolved")
	f.consumers[orders] = []eventing.Consumer{{Key: unresolved, Subscriber: eventing.Endpoint{Unresolved: true}}}
	f.accepted(orders, "1", at(0), nil, deleted, unresolved)
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders",
		"1 to shop/deleted: Pending, 0 attempts, no attempt is recorded; the Trigger does not exist anymore",
		"1 to shop/unresolved: Pending, 0 attempts, no attempt is recorded; the addresses of the Trigger are not resolved")
}

// TestUnrecorded shows the attempts of an event whose acceptance is not recorded, because the process was killed.
func TestUnrecorded(t *testing.T) {
	f := newFixture(t)
	f.attempted(orders, "1", at(0), trace.Attempt{Consumer: consumer(eventing.Trigger, "shop", "a"), Number: 1, Start: at(9), Code: 202})
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders hidden false unrecorded true", "1 to shop/a: Delivered, 1 attempts")
}

// TestUnmatched explains why Triggers did not get an event, and whether that is certain.
func TestUnmatched(t *testing.T) {
	f := newFixture(t)
	only := func(name, kind string) eventing.Consumer {
		return eventing.Consumer{Key: consumer(eventing.Trigger, "shop", name), UID: types.UID(name), Attributes: map[string]string{"type": kind}}
	}
	f.consumers[orders] = []eventing.Consumer{only("x", "x"), only("t", "t"), only("large", "t"),
		{Key: consumer(eventing.Trigger, "billing", "secret"), Attributes: map[string]string{"type": "x"}}}
	f.accepted(orders, "1", at(0), func(a *trace.Acceptance) { a.Exceeded = []eventing.Key{consumer(eventing.Trigger, "shop", "large")} })
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders",
		"1 not to large:  the evaluation of its filters exceeded its budget false",
		"1 not to t:  it was not known when the event was accepted false",
		`1 not to x: filter.attributes.type must be "x", the event has "t" false`)
	f.consumers[orders] = f.consumers[orders][:2]
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders",
		"1 not to t:  its filters pass the event now; it did not exist or had other filters when the event was accepted true",
		`1 not to x: filter.attributes.type must be "x", the event has "t" true`)
}

// TestRedelivered explains nothing about consumers other than the one that gets a stored event again.
func TestRedelivered(t *testing.T) {
	f := newFixture(t)
	a, b := consumer(eventing.Trigger, "shop", "a"), consumer(eventing.Trigger, "shop", "b")
	f.consumers[orders] = []eventing.Consumer{{Key: a, UID: "a"}, {Key: b, UID: "b"}}
	f.accepted(orders, "1", at(0), func(a *trace.Acceptance) { a.Redelivered = true }, a)
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders", "1 to shop/a: Pending, 0 attempts, no attempt is recorded yet")
}

// TestReplies follows replies, from any event of the tree, and ends for events that reply to each other.
func TestReplies(t *testing.T) {
	f := newFixture(t)
	a := consumer(eventing.Trigger, "shop", "a")
	replied := func(id string, when int, reply string, accepted time.Time) {
		f.attempted(orders, id, at(when), trace.Attempt{Consumer: a, Number: 1, Start: at(when), Code: 200, ReplyID: reply, ReplySource: "/s", ReplyAccepted: accepted})
	}
	because := func(id string, when int) func(*trace.Acceptance) {
		return func(c *trace.Acceptance) {
			c.Cause = trace.Cause{ID: id, Source: "/s", Accepted: at(when), Consumer: a}
		}
	}
	f.accepted(orders, "1", at(0), nil, a)
	replied("1", 0, "2", at(1))
	f.accepted(orders, "2", at(1), because("1", 0), a)
	replied("2", 1, "3", at(2))
	f.accepted(orders, "3", at(2), because("2", 1))
	want := []string{"1 1 at shop/orders", "1 to shop/a: Delivered, 1 attempts", "2 2 at shop/orders Reply of 1 by a", "2 to shop/a: Delivered, 1 attempts", "3 3 at shop/orders Reply of 2 by a"}
	for _, id := range []string{"1", "2", "3"} {
		f.expect(duckv1.EventTraceOptions{ID: id}, nil, want...)
	}
	f.accepted(orders, "loop", at(5), because("loop", 5), a)
	replied("loop", 5, "loop", at(5))
	f.expect(duckv1.EventTraceOptions{ID: "loop"}, nil, "1 loop at shop/orders", "1 to shop/a: Delivered, 1 attempts")
}

// TestHops follows deliveries to other Brokers and Channels: to the event that was accepted at the time of the attempt, and into other
// namespaces only with the right there.
func TestHops(t *testing.T) {
	f := newFixture(t)
	to := func(name string, stream eventing.Key, role trace.Role, second int) eventing.Key {
		key := consumer(eventing.Trigger, "shop", name)
		f.attempted(orders, "1", at(0), trace.Attempt{
			Consumer: key, Role: role, Number: 1, Start: at(second), Duration: time.Second, Code: 202, Address: addressOf(stream),
		})
		return key
	}
	f.accepted(letters, "1", at(-3600), nil)
	f.accepted(letters, "1", at(100), nil)
	f.accepted(letters, "1", at(200), nil)
	f.accepted(ledger, "1", at(300), nil)
	f.accepted(orders, "1", at(0), nil, to("a", letters, trace.Subscriber, 100), to("b", letters, trace.DeadLetter, 200), to("c", ledger, trace.Subscriber, 300),
		to("d", eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "deleted"}, trace.Subscriber, 400))
	deliveries := []string{"1 1 at shop/orders", "1 to shop/a: Delivered, 1 attempts", "1 to shop/b: DeadLettered, 1 attempts", "1 to shop/c: Delivered, 1 attempts",
		"1 to shop/d: Delivered, 1 attempts", "2 1 at shop/letters Delivery of 1 by a", "3 1 at shop/letters DeadLetter of 1 by b"}
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, append(slices.Clone(deliveries), "4  at billing/ Delivery of 1 by c hidden true unrecorded false")...)
	f.expect(duckv1.EventTraceOptions{ID: "1"}, func(key eventing.Key) bool { return key == ledger }, append(slices.Clone(deliveries), "4 1 at billing/ledger Delivery of 1 by c")...)
}

// TestLinked hides the deliveries of Triggers of other namespaces.
func TestLinked(t *testing.T) {
	f := newFixture(t)
	linked := consumer(eventing.Trigger, "billing", "linked")
	f.accepted(orders, "1", at(0), nil, linked)
	f.attempted(orders, "1", at(0), trace.Attempt{Consumer: linked, Number: 1, Start: at(1), Code: 202, Address: "http://secret"})
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders", "1 to billing/: , 0 attempts hidden")
	f.expect(duckv1.EventTraceOptions{ID: "1"}, func(key eventing.Key) bool { return key == linked }, "1 1 at shop/orders", "1 to billing/linked: Delivered, 1 attempts")
}

// TestDeadReply shows the dead letter of a reply with the delivery of the event that it replies to.
func TestDeadReply(t *testing.T) {
	f := newFixture(t)
	a := consumer(eventing.Trigger, "shop", "a")
	f.accepted(orders, "1", at(0), nil, a)
	f.attempted(orders, "1", at(0), trace.Attempt{Consumer: a, Outcome: trace.Answered, Start: at(1), Code: 200, ReplyID: "2", ReplySource: "/s"})
	f.attempted(orders, "1", at(0), trace.Attempt{Consumer: a, Role: trace.Reply, Outcome: trace.DeadLettered, Start: at(2), Code: 400, ReplyID: "2", ReplySource: "/s"})
	f.attempted(orders, "2", at(0), trace.Attempt{Consumer: a, Role: trace.DeadLetter, Start: at(3), Code: 202})
	f.expect(duckv1.EventTraceOptions{ID: "1"}, nil, "1 1 at shop/orders", "1 to shop/a: DeadLettered, 3 attempts")
}

// TestBounds limits the events of an answer, and reports it.
func TestBounds(t *testing.T) {
	f := newFixture(t)
	for i := range maxEvents + 10 {
		f.accepted(orders, "same", at(i), nil)
	}
	found, err := f.Trace(t.Context(), orders, &duckv1.EventTraceOptions{ID: "same"}, func(eventing.Key) bool { return false })
	if err != nil || len(found.Events) != maxEvents || len(found.Incomplete) != 1 {
		t.Errorf("got %d events, incomplete %q, %v", len(found.Events), found.Incomplete, err)
	}
	for i := range 2 * maxFacts {
		f.consumers[orders] = append(f.consumers[orders], eventing.Consumer{
			Key: consumer(eventing.Trigger, "shop", fmt.Sprint(i)), UID: types.UID(fmt.Sprint(i)), Attributes: map[string]string{"type": "x"},
		})
	}
	f.accepted(orders, "mismatches", at(0), nil)
	found, err = f.Trace(t.Context(), orders, &duckv1.EventTraceOptions{ID: "mismatches"}, func(eventing.Key) bool { return false })
	if err != nil || len(found.Events) != 1 || len(found.Events[0].Unmatched) != maxFacts || !slices.Equal(found.Incomplete, []string{tooMany}) {
		t.Errorf("got %d events, incomplete %q, %v", len(found.Events), found.Incomplete, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Trace(ctx, orders, &duckv1.EventTraceOptions{ID: "same"}, nil); err == nil {
		t.Error("a canceled request succeeded")
	}
}
