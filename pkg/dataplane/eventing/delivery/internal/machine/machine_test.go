package machine

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
)

// edge is a transition of one half of a State.
type edge[S comparable] struct {
	from    S
	event   Event
	to      S
	effects Effects
}

// phaseEdges has a row per transition between phases.
var phaseEdges = []edge[Phase]{
	{Logged, Offered, Ready, Enqueue},
	{Logged, OfferedBehind, Storing, Append},
	{Logged, Read, Waiting, Schedule},
	{Logged, ConsumerRemoved, Removed, Ungroup},
	{Ready, Started, InFlight, Attempt},
	{Ready, Displaced, Storing, Ungroup | Append},
	{Ready, Returned, Logged, Return},
	{Ready, ConsumerRemoved, Removed, Ungroup},
	{Waiting, Due, Ready, Enqueue},
	{Waiting, Displaced, Storing, Ungroup | Append},
	{Waiting, Returned, Logged, Return},
	{Waiting, ConsumerRemoved, Removed, Ungroup},
	{InFlight, Slow, InFlight, AppendCopy},
	{InFlight, Succeeded, Delivered, Ungroup},
	{InFlight, Discarded, Dropped, Ungroup},
	{InFlight, Failed, Storing, Append},
	{InFlight, FailedInOrder, Logged, Return},
	{InFlight, Undeliverable, DeadLettering, SendDeadLetter},
	{InFlight, Aborted, Ready, Enqueue},
	{Storing, Appended, Logged, Ungroup},
	{Storing, Rejected, Waiting, Schedule},
	{Storing, ConsumerRemoved, Removed, Ungroup},
	{DeadLettering, DeadLetterEnded, DeadLettered, Ungroup},
}

// recordEdges has a row per transition between records.
var recordEdges = []edge[Record]{
	{Shared, Slow, Copying, 0},
	{SharedRetry, Slow, Copying, 0},
	{Copying, CopyAppended, Copied, ReleaseShared},
	{Copying, CopyRejected, Shared, 0},
	{Copying, CopyRead, Owned, ReleaseShared},
	{Copied, CopyRead, Owned, 0},
	{CopyingStale, CopyAppended, Stale, ReleaseShared},
	{CopyingStale, CopyRejected, None, ReleaseShared},
	{CopyingStale, CopyRead, None, ReleaseShared | ReleaseOwned},
	{Stale, CopyRead, None, ReleaseOwned},
}

// released are the transitions of records at the end of a delivery, and when another record replaces the current one.
var released = []edge[Record]{
	{from: Shared, to: None, effects: ReleaseShared},
	{from: SharedRetry, to: None, effects: ReleaseShared},
	{from: Owned, to: None, effects: ReleaseOwned},
	{from: Copying, to: CopyingStale},
	{from: Copied, to: Stale},
}

// recordStays has the records that events do not change.
var recordStays = map[Event][]Record{
	Offered:       {Shared, SharedRetry},
	OfferedBehind: {Shared, SharedRetry},
	Read:          {SharedRetry, Owned},
	FailedInOrder: {Owned},
	Returned:      {Owned},
	// The copy was read before its append was confirmed.
	CopyAppended:  {None, Owned},
	CopyRejected:  {None, Owned},
	Due:           {Shared, SharedRetry, Owned, Copying, Copied},
	Started:       {Shared, SharedRetry, Owned, Copying, Copied},
	Failed:        {Shared, SharedRetry, Owned, Copying, Copied},
	Undeliverable: {Shared, SharedRetry, Owned, Copying, Copied},
	Aborted:       {Shared, SharedRetry, Owned, Copying, Copied},
	Displaced:     {Shared, SharedRetry, Owned, Copying, Copied},
	Rejected:      {Shared, SharedRetry, Owned, Copying, Copied},
}

var (
	releasing = []Event{Succeeded, Discarded, DeadLetterEnded, Appended, ConsumerRemoved}
	ofCopies  = []Event{CopyAppended, CopyRejected, CopyRead}
)

// TestTransitions compares the state machine with the rows above, for every state and event: a transition without a row fails,
// as does a row without a transition.
func TestTransitions(t *testing.T) {
	for from := range Phase(len(phaseNames)) {
		for e := range Event(len(eventNames)) {
			want, ok := edge[Phase]{to: from}, slices.Contains(ofCopies, e)
			for _, row := range phaseEdges {
				if row.from == from && row.event == e {
					want, ok = row, true
				}
			}
			if to, effects, have := from.next(e); to != want.to || effects != want.effects || have != ok {
				t.Errorf("%s on %s: %s, effects %b, %t; want %s, effects %b, %t", from, e, to, effects, have, want.to, want.effects, ok)
			}
		}
	}
	for from := range Record(len(recordNames)) {
		for e := range Event(len(eventNames)) {
			want, ok := edge[Record]{to: from}, slices.Contains(recordStays[e], from)
			rows := recordEdges
			if slices.Contains(releasing, e) {
				rows = released
			}
			for _, row := range rows {
				if row.from == from && (row.event == e || slices.Contains(releasing, e)) {
					want, ok = row, true
				}
			}
			if to, effects, have := from.next(e); to != want.to || effects != want.effects || have != ok {
				t.Errorf("%s on %s: %s, effects %b, %t; want %s, effects %b, %t", from, e, to, effects, have, want.to, want.effects, ok)
			}
		}
	}
}

// TestStates combines phases with records: it follows all events from the states in which deliveries are created, and checks
// the invariants of every state.
func TestStates(t *testing.T) {
	reached := map[State]bool{}
	left := []State{{Logged, Shared}, {Logged, SharedRetry}, {Logged, Owned}}
	ends := []Phase{Delivered, DeadLettered, Dropped, Removed}
	for len(left) > 0 {
		s := left[0]
		left = left[1:]
		if reached[s] {
			continue
		}
		reached[s] = true
		progress := 0
		for e := range Event(len(eventNames)) {
			next, effects, ok := s.Next(e)
			if !ok {
				if next != s || effects != 0 {
					t.Errorf("%v on %s: refused, but with state %v and effects %b", s, e, next, effects)
				}
				continue
			}
			if next.Phase != s.Phase {
				progress++
			}
			if effects&Attempt != 0 && next.Phase != InFlight || effects&Append != 0 && next.Phase != Storing {
				t.Errorf("%v on %s: %v with effects %b", s, e, next, effects)
			}
			left = append(left, next)
		}
		lost := s.Record == None || s.Record == Stale || s.Record == CopyingStale
		if s.Phase.Held() && lost {
			t.Errorf("%v: the event log keeps no record of a delivery in memory", s)
		}
		if slices.Contains(ends, s.Phase) && progress > 0 {
			t.Errorf("%v: the delivery continues after its end", s)
		}
		if !slices.Contains(ends, s.Phase) && !lost && progress == 0 {
			t.Errorf("%v: no event continues the delivery", s)
		}
	}
	for p := range Phase(len(phaseNames)) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(reached)), func(s State) bool { return s.Phase == p }) {
			t.Errorf("%s is never reached", p)
		}
	}
	for r := range Record(len(recordNames)) {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(reached)), func(s State) bool { return s.Record == r }) {
			t.Errorf("%s is never reached", r)
		}
	}
}

// TestDiagrams compares the state diagrams of the documentation with the transitions.
func TestDiagrams(t *testing.T) {
	page, err := os.ReadFile("../../../../../../docs/eventing.md")
	if err != nil {
		t.Fatal(err)
	}
	diagrams := regexp.MustCompile("(?s)```mermaid\nstateDiagram-v2\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(diagrams) != 2 {
		t.Fatalf("docs/eventing.md has %d state diagrams, want 2", len(diagrams))
	}
	var phases, records []string
	for _, row := range phaseEdges {
		phases = append(phases, fmt.Sprintf("%s --> %s: %s", row.from, row.to, row.event))
	}
	for _, row := range recordEdges {
		records = append(records, fmt.Sprintf("%s --> %s: %s", row.from, row.to, row.event))
	}
	for _, row := range released {
		records = append(records, fmt.Sprintf("%s --> %s: released", row.from, row.to))
	}
	for i, want := range [][]string{phases, records} {
		var have []string
		for _, line := range regexp.MustCompile(`(?m)^ *(\w+ --> \w+: \w+)$`).FindAllStringSubmatch(diagrams[i][1], -1) {
			have = append(have, line[1])
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Errorf("diagram %d has\n%q\nwant\n%q", i+1, have, want)
		}
	}
}
