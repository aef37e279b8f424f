package history

import (
	"strings"
	"testing"
)

// good returns a history without violations, which tests change.
func good() *History {
	return &History{
		Operations: []Operation{
			{Client: 1, Key: "a/x", Verb: Create, Value: "1", Version: 10, Result: OK, Start: 1, End: 2},
			{Client: 1, Key: "a/x", Verb: Get, Value: "1", Version: 11, Result: OK, Start: 3, End: 4},
			{Client: 1, Key: "a/x", Verb: Update, Value: "2", Base: 11, Version: 12, Result: OK, Start: 5, End: 6},
			{Client: 2, Key: "a/x", Verb: Update, Value: "3", Base: 11, Result: Conflict, Start: 5, End: 7},
			{Client: 2, Key: "a/x", Verb: Patch, Value: "4", Result: Unknown, Start: 8, End: 9},
			{Client: 1, Key: "a/x", Verb: Get, Value: "2", Version: 12, Result: OK, Start: 9, End: 10},
			{Client: 1, Key: "a/x", Verb: Get, Value: "4", Version: 14, Result: OK, Start: 11, End: 12},
			{Client: 1, Key: "a/y", Verb: Create, Value: "5", Version: 15, Result: OK, Start: 11, End: 12},
			{Client: 1, Key: "a/y", Verb: Delete, Result: OK, Start: 13, End: 14},
			{Client: 1, Key: "a/y", Verb: Get, Result: NotFound, Start: 15, End: 16},
		},
		WatchEvents: []WatchEvent{
			{Watch: "w", Change: Listed, Version: 9},
			{Watch: "w", Change: Added, Key: "a/x", Version: 10},
			{Watch: "w", Change: Modified, Key: "a/x", Version: 11},
			{Watch: "w", Change: Modified, Key: "a/x", Version: 12},
			{Watch: "w", Change: Listed, Version: 14},
			{Watch: "w", Change: Item, Key: "a/x", Version: 14},
			{Watch: "w", Change: Added, Key: "a/y", Version: 15},
			{Watch: "w", Change: Deleted, Key: "a/y", Version: 16},
		},
		Objects: map[string]uint64{"a/x": 14},
		Answers: []Answer{{Service: "a/one", Limit: 1, Most: 1}},
		Subscriptions: []Subscription{
			{Name: "ordered", Target: "b", Ordered: true, Retries: 1, DeadLetter: true},
			{Name: "even", Target: "b", Kind: "even", Retries: 1},
		},
		Posts: []Post{
			{Sender: "s", Target: "b", ID: "1", Kind: "odd", Accepted: true, Start: 1, End: 2},
			{Sender: "s", Target: "b", ID: "2", Kind: "even", Accepted: true, Start: 3, End: 4},
			{Sender: "s", Target: "b", ID: "3", Kind: "odd", Start: 5, End: 6},
			{Sender: "s", Target: "b", ID: "4", Kind: "odd", Accepted: true, Start: 7, End: 8},
		},
		Attempts: []Attempt{
			{Subscription: "ordered", ID: "1", OK: true, Start: 10, End: 11},
			{Subscription: "ordered", ID: "2", Start: 12, End: 13},
			{Subscription: "ordered", ID: "2", Start: 14, End: 15},
			{Subscription: "ordered", Dead: true, ID: "2", OK: true, Start: 16, End: 17},
			{Subscription: "ordered", ID: "4", OK: true, Start: 18, End: 19},
			{Subscription: "ordered", ID: "1", OK: true, Start: 20, End: 21},
			{Subscription: "even", ID: "2", Start: 12, End: 13},
			{Subscription: "even", ID: "2", Start: 14, End: 15},
		},
		Scrapes: []Scrape{
			{Processes: "p", Dropped: 0, Start: 5, End: 6}, {Processes: "p", Dropped: 0, Start: 15, End: 16}, {Processes: "p", Dropped: 1, Start: 17, End: 18},
		},
		Origins: []Origin{{Place: "answer", Want: "a", Got: "a"}},
	}
}

func TestGoodHistory(t *testing.T) {
	if found := good().Check(); len(found) > 0 {
		t.Errorf("violations: %q", found)
	}
}

// TestBadHistories changes one record of a good history, which a check must report.
func TestBadHistories(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*History)
		want   string
	}{
		"a stale read":                    {func(h *History) { h.Operations[6].Value = "2"; h.Operations[6].Version = 11 }, "not linearizable"},
		"a read of a value never written": {func(h *History) { h.Operations[6].Value = "9" }, "not linearizable"},
		"a lost update":                   {func(h *History) { h.Operations[3].Result, h.Operations[3].Version = OK, 13 }, "not linearizable"},
		"two creates":                     {func(h *History) { h.Operations[1].Verb = Create }, "not linearizable"},
		"a read after delete": {func(h *History) {
			h.Operations[9] = Operation{Key: "a/y", Verb: Get, Value: "5", Version: 15, Result: OK, Start: 15, End: 16}
		}, "not linearizable"},
		"an object that disappeared":       {func(h *History) { h.Operations[6].Result = NotFound }, "not linearizable"},
		"an unreadable write":              {func(h *History) { delete(h.Objects, "a/x"); h.WatchEvents = nil }, "is missing"},
		"an old object":                    {func(h *History) { h.Objects["a/x"] = 11; h.WatchEvents = nil }, "has version 11"},
		"a gap":                            {func(h *History) { h.WatchEvents[1].Change, h.WatchEvents[1].Key = Added, "a/z" }, "has a gap"},
		"a modified object before added":   {func(h *History) { h.WatchEvents[1].Change = Modified }, "was not there"},
		"an object added twice":            {func(h *History) { h.WatchEvents[2].Change = Added }, "was already there"},
		"versions out of order":            {func(h *History) { h.WatchEvents[3].Version = 10 }, "follows version"},
		"a watch that misses a delete":     {func(h *History) { h.WatchEvents = h.WatchEvents[:7] }, "differ"},
		"an event before a list":           {func(h *History) { h.WatchEvents = h.WatchEvents[1:] }, "before the first list"},
		"a backend with too many requests": {func(h *History) { h.Answers[0].Most = 2 }, "had 2 requests"},
		"a lost event":                     {func(h *History) { h.Attempts[4].OK = false }, "event 4, accepted"},
		"an event without retry":           {func(h *History) { h.Attempts = h.Attempts[:7] }, "event 2, accepted"},
		"a lost dead letter":               {func(h *History) { h.Attempts[3].OK = false }, "event 2, accepted"},
		"an event that does not match":     {func(h *History) { h.Attempts[6].ID = "1" }, "not for it"},
		"an event that was not posted":     {func(h *History) { h.Attempts[6].ID = "5" }, "not for it"},
		"an event out of order":            {func(h *History) { h.Attempts[4].Start = 11 }, "before 2 was settled"},
		"an event before a delivered one":  {func(h *History) { h.Attempts[0].Start = 13; h.Attempts[5].Start = 20 }, "before 1 was settled"},
		"a drop that is not counted":       {func(h *History) { h.Scrapes[2].Dropped = 0 }, "counted 0"},
		"a drop that is not counted, after one that was counted twice": {func(h *History) {
			h.Scrapes = append([]Scrape{{Processes: "p", Start: 1, End: 2}}, h.Scrapes...)
			for i := range h.Scrapes[1:] {
				h.Scrapes[1+i].Dropped = 1
			}
		}, "counted 0 dropped events after"},
		"a counter that vanished":      {func(h *History) { h.Scrapes[1].Dropped = 2; h.Scrapes[2].Dropped = 1; h.Scrapes[0].Dropped = 0 }, "counted 1 dropped events at"},
		"content of another namespace": {func(h *History) { h.Origins[0].Got = "b" }, "content of namespace"},
		"an object that is not ready":  {func(h *History) { h.Unready = []string{"a/one"} }, "not ready"},
	} {
		t.Run(name, func(t *testing.T) {
			h := good()
			tt.change(h)
			if found := strings.Join(h.Check(), "\n"); !strings.Contains(found, tt.want) {
				t.Errorf("violations: %q, want one that contains %q", found, tt.want)
			}
		})
	}
}

func TestRecovery(t *testing.T) {
	h := &History{
		Faults: []Fault{{"kill", 10e6, 20e6}, {"kill", 100e6, 200e6}, {"stop", 300e6, 400e6}},
		Successes: []Success{
			{"writes", 15e6, 50e6}, {"writes", 20e6, 60e6}, {"writes", 210e6, 300e6}, {"events", 25e6, 30e6},
		},
	}
	want := `fault          times                writes                events
kill               2          100ms, 100ms   10ms, 10ms, 1 never
stop               1                 never                 never`
	if got := h.Recovery([]string{"writes", "events"}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
