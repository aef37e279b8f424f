package broker

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// batch returns events with headers of some size.
func batch(n, headers int) []*event.Event {
	events := make([]*event.Event, n)
	for i := range events {
		events[i] = &event.Event{
			Attributes: newEvent(strconv.Itoa(i)).Attributes,
			Headers:    []event.Header{{Name: "knative-x", Value: strings.Repeat("x", headers)}},
		}
	}
	return events
}

// allocated returns the number of bytes that a function allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A batch that would be much larger in the log than in its request, because of the headers of each event or the
// consumers of each record, is rejected before its records are made.
func TestBatchThatGrowsIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		triggers, events, headers int
	}{
		"headers":                      {1, 19_000, event.MaxHeaderBytes},
		"consumers":                    {1000, 19_000, 0},
		"consumers that have a record": {1000, 2000, 10},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				for _, id := range numbers(test.triggers) {
					w.set(trigger("t"+id, func(c *eventing.Consumer) { c.Ordered = name == "consumers that have a record" }))
				}
				events := batch(test.events, test.headers)
				var err error
				if bytes := allocated(func() { err = w.Accept(w.Context(), brokerKey, events) }); bytes > 2*maxWritten {
					t.Errorf("%d bytes were allocated, want at most %d", bytes, 2*maxWritten)
				}
				if err == nil || ingress.RefusalOf(err).Status != http.StatusRequestEntityTooLarge {
					t.Errorf("the batch got %v, want 413", err)
				}
				if _, written := w.log.sizes(); written > 0 {
					t.Errorf("%d bytes were written", written)
				}
				// A single event is never rejected because of the number of its consumers.
				w.must(w.Accept(w.Context(), brokerKey, events[:1]))
			})
		})
	}
}

// A batch that is large in the log is written by several commits, and all of it is delivered.
func TestBatchIsWrittenInParts(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		events := batch(2000, event.MaxHeaderBytes-16)
		w.must(w.Accept(w.Context(), brokerKey, events))
		if largest, written := w.log.sizes(); largest > commitBytes || written < 2000*(event.MaxHeaderBytes-16) {
			t.Errorf("%d bytes were written, %d at once, want at most %d", written, largest, commitBytes)
		}
		w.after(0)
		if n := len(w.attempts("a")); n != 2000 {
			t.Errorf("%d events were delivered, want 2000", n)
		}
		w.log.expectLeft(t, "b", nil)
	})
}

// Memory for records is reserved before they are encoded, and released afterwards.
func TestMemoryIsReserved(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		received := int64(0)
		for w.budget.Reserve("default", 1<<20) {
			received += 1 << 20
		}
		large := newEvent("1")
		large.Data = make([]byte, 1<<20)
		err := w.Accept(w.Context(), brokerKey, []*event.Event{large})
		if err == nil {
			t.Fatal("the event was accepted without memory")
		}
		if refusal := ingress.RefusalOf(err); refusal.Status != http.StatusServiceUnavailable || refusal.RetryAfter == 0 {
			t.Errorf("without memory, the event got %v, want 503 with Retry-After", err)
		}
		w.budget.Release("default", received)
		w.must(w.Accept(w.Context(), brokerKey, []*event.Event{large}))
		w.after(0)
		w.expect("received", w.received("a"), "1")
		if held := w.budget.Held("default"); held != 0 {
			t.Errorf("%d bytes are held at the end", held)
		}
	})
}
