package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// traced runs a test in a fixture that records traces in the returned Store.
func runTraced(t *testing.T, test func(w *fixture, store *trace.Store)) {
	t.Helper()
	run(t, func(w *fixture) {
		store, err := trace.Open(trace.Options{Dir: w.TempDir(), Clock: clock.RealClock{}, Logger: logr.Discard()})
		w.must(err)
		defer store.Close()
		w.Broker.options.Trace = store
		test(w, store)
	})
}

// records returns the records of an event in the order of their times, in short form.
func records(w *fixture, store *trace.Store, id string) (found []string) {
	w.Helper()
	all, more, err := store.Find(w.Context(), trace.Query{Namespace: "default", ID: id})
	if w.must(err); more {
		w.Error("there are more records")
	}
	slices.SortStableFunc(all, func(a, b trace.Record) int { return whatEnded(a).Compare(whatEnded(b)) })
	for _, r := range all {
		since := func(t time.Time) time.Duration { return t.Sub(r.Accepted) }
		if a := r.Acceptance; a != nil {
			var matched []string
			for _, c := range a.Matched {
				matched = append(matched, c.Name)
			}
			slices.Sort(matched)
			found = append(found, fmt.Sprintf("%s accepted for %v of %d, cause %q", r.Stream.Name, matched, a.MatchedCount, a.Cause.ID))
			continue
		}
		a := r.Attempt
		line := fmt.Sprintf("%s %d role %d outcome %d: %s %d after %v", a.Consumer.Name, a.Number, a.Role, a.Outcome, a.Address, a.Code, since(a.Start))
		if a.Outcome == trace.Retried {
			line += fmt.Sprintf(", next after %v", since(a.Next))
		}
		if a.ReplyID != "" {
			line += fmt.Sprintf(", reply %s accepted %t", a.ReplyID, !a.ReplyAccepted.IsZero())
		}
		if a.Error != "" {
			line += ", " + a.Error
		}
		found = append(found, line)
	}
	return found
}

// whatEnded returns the time of an acceptance, or of the end of an attempt.
func whatEnded(r trace.Record) time.Time {
	if r.Attempt == nil {
		return r.Accepted
	}
	return r.Attempt.Start.Add(r.Attempt.Duration)
}

// expectRecords compares the records of an event in any order: the first attempt may be recorded before the acceptance.
func expectRecords(w *fixture, store *trace.Store, id string, want ...string) {
	w.Helper()
	got := records(w, store, id)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Errorf("records of %s:\n%s\nwant:\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func failure(code int, retryable bool) sender.Result {
	return sender.Result{Code: code, Err: fmt.Errorf("POST: %d", code), Retryable: retryable}
}

// TestTraceDelivery records the acceptance of an event, its attempts with the time of the next, and its dead letter.
func TestTraceDelivery(t *testing.T) {
	runTraced(t, func(w *fixture, store *trace.Store) {
		w.set(trigger("a", withDelivery(eventing.Delivery{Retry: 1, Backoff: time.Second, Policy: eventing.BackoffLinear}), withDeadLetter),
			trigger("other", func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": "x"} }))
		w.answer("a", func(n int) (time.Duration, sender.Result) { return 0, failure(503, true) })
		w.accept(brokerKey, "1")
		w.after(10 * time.Second)
		expectRecords(w, store, "1", `b accepted for [a] of 1, cause ""`,
			"a 1 role 0 outcome 2: http://a/ 503 after 0s, next after 1s, POST: 503",
			"a 2 role 0 outcome 3: http://a/ 503 after 1s, POST: 503",
			"a 1 role 2 outcome 0: http://dead/ 202 after 1s")
	})
}

// TestTraceDropped records a drop with its reason, also by the dead letter sink.
func TestTraceDropped(t *testing.T) {
	runTraced(t, func(w *fixture, store *trace.Store) {
		w.set(trigger("a"), trigger("b", withDeadLetter))
		for _, name := range []string{"a", "b", "dead"} {
			w.answer(name, func(int) (time.Duration, sender.Result) { return 0, failure(400, false) })
		}
		w.accept(brokerKey, "1")
		w.after(time.Second)
		got := records(w, store, "1")
		slices.Sort(got)
		want := []string{
			"a 1 role 0 outcome 4: http://a/ 400 after 0s, POST: 400",
			"b 1 role 0 outcome 3: http://b/ 400 after 0s, POST: 400",
			"b 1 role 2 outcome 4: http://dead/ 400 after 0s, POST: 400",
			`b accepted for [a b] of 2, cause ""`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got:\n%s", strings.Join(got, "\n"))
		}
	})
}

// TestTraceReply records which delivery an event replies to, and what became of the reply.
func TestTraceReply(t *testing.T) {
	runTraced(t, func(w *fixture, store *trace.Store) {
		w.set(trigger("a", func(c *eventing.Consumer) { c.Attributes = map[string]string{"source": "/s"} }))
		w.answer("a", func(int) (time.Duration, sender.Result) {
			reply := newEvent("reply")
			reply.Attributes[1].Value = "/replies"
			return 0, sender.Result{Code: 200, Reply: reply}
		})
		w.accept(brokerKey, "1")
		w.must(w.Accept(w.Context(), brokerKey, []*event.Event{newEvent("2", ttl("2"))}))
		w.after(time.Second)
		expectRecords(w, store, "1", `b accepted for [a] of 1, cause ""`, "a 1 role 0 outcome 0: http://a/ 200 after 0s, reply reply accepted true")
		expectRecords(w, store, "reply", `b accepted for [] of 0, cause "1"`)
		expectRecords(w, store, "2", `b accepted for [a] of 1, cause ""`,
			"a 1 role 0 outcome 0: http://a/ 200 after 0s, reply reply accepted false, the reply was dropped: it passed too many Brokers")
	})
}

// TestTraceChannelReply records both parts of a delivery by a Subscription: to the subscriber, and of the reply.
func TestTraceChannelReply(t *testing.T) {
	runTraced(t, func(w *fixture, store *trace.Store) {
		w.set(subscription("a", withReply), subscription("b"))
		reply := func(int) (time.Duration, sender.Result) { return 0, sender.Result{Code: 200, Reply: newEvent("reply")} }
		w.answer("a", reply)
		w.answer("b", reply)
		w.answer("reply", func(int) (time.Duration, sender.Result) { return 0, failure(400, false) })
		w.accept(channelKey, "1")
		w.after(time.Second)
		got := records(w, store, "1")
		slices.Sort(got)
		want := []string{
			"a 1 role 0 outcome 1: http://a/ 200 after 0s, reply reply accepted false",
			"a 1 role 1 outcome 4: http://reply/ 400 after 0s, reply reply accepted false, POST: 400",
			"b 1 role 0 outcome 0: http://b/ 200 after 0s, reply reply accepted false, the reply was dropped: the Subscription has no reply address",
			`c accepted for [a b] of 2, cause ""`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got:\n%s", strings.Join(got, "\n"))
		}
	})
}

// TestTraceFilters changes the fingerprint of the filters with each change of a consumer, and with nothing else.
func TestTraceFilters(t *testing.T) {
	runTraced(t, func(w *fixture, store *trace.Store) {
		fingerprint := func(id string) uint64 {
			w.accept(brokerKey, id)
			all, _, err := store.Find(w.Context(), trace.Query{Namespace: "default", ID: id})
			if w.must(err); len(all) == 0 || all[0].Acceptance == nil {
				t.Fatalf("found %v", all)
			}
			return all[0].Acceptance.Filters
		}
		only := func(value string) func(*eventing.Consumer) {
			return func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": value} }
		}
		seen := []uint64{fingerprint("none")}
		change := func(id string, known bool) {
			t.Helper()
			now := fingerprint(id)
			if slices.Contains(seen, now) != known {
				t.Errorf("after %s: known is %t", id, !known)
			}
			seen = append(seen, now)
		}
		w.set(trigger("a", only("x")))
		change("added", false)
		w.set(trigger("a", only("y")))
		change("changed", false)
		w.set(trigger("b", only("x")))
		change("another", false)
		w.set(trigger("a", only("y"), withDeadLetter))
		change("something else", true)
		w.must(w.RemoveConsumer(w.Context(), trigger("b").Key))
		change("removed", true)
		all := w.Consumers(brokerKey)
		if len(all) != 1 || trace.Fingerprint(&all[0]) != seen[len(seen)-1] {
			t.Errorf("the fingerprint of %+v is another", all)
		}
	})
}

// TestTraceAddress hides credentials and queries.
func TestTraceAddress(t *testing.T) {
	for address, want := range map[string]string{
		"http://a/b": "http://a/b", "http://user:secret@a/b?token=x": "http://a/b", "http://a?x@y": "http://a", "": "", "http://[@?": "",
	} {
		if got := withoutSecrets(address); got != want {
			t.Errorf("%q becomes %q, want %q", address, got, want)
		}
	}
}
