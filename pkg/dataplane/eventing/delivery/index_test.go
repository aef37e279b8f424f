package delivery

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// counts are the counters of an index with one delivery and its segment. Known is the kind of record that it expects to read.
type counts struct {
	InFlight, Read, Storing, Sharing, Busy int
	Known                                  string
}

func (x *index) counts(d *Delivery) counts {
	c := counts{InFlight: len(x.inFlight), Read: x.read, Storing: x.storing, Sharing: x.sharing, Busy: d.owned.busy}
	if known := x.records[d.id]; known != nil {
		c.Known = known.state.Record.String()
	}
	return c
}

func TestIndexCounts(t *testing.T) {
	for name, row := range map[string]struct {
		record machine.Record
		events []machine.Event
		want   counts
	}{
		"nothing":                    {machine.Shared, nil, counts{}},
		"ready from shared":          {machine.Shared, []machine.Event{machine.Offered}, counts{Sharing: 1}},
		"behind":                     {machine.Shared, []machine.Event{machine.OfferedBehind}, counts{Storing: 1}},
		"stored behind":              {machine.Shared, []machine.Event{machine.OfferedBehind, machine.Appended}, counts{}},
		"in flight from shared":      {machine.Shared, []machine.Event{machine.Offered, machine.Started}, counts{InFlight: 1}},
		"retry read":                 {machine.SharedRetry, []machine.Event{machine.Read}, counts{Read: 1}},
		"retry ready":                {machine.SharedRetry, []machine.Event{machine.Read, machine.Due}, counts{Read: 1, Sharing: 1}},
		"own record read":            {machine.Owned, []machine.Event{machine.Read}, counts{Read: 1, Known: "Owned"}},
		"own record in flight":       {machine.Owned, []machine.Event{machine.Read, machine.Due, machine.Started}, counts{InFlight: 1, Read: 1, Busy: 1, Known: "Owned"}},
		"own record failed":          {machine.Owned, []machine.Event{machine.Read, machine.Due, machine.Started, machine.Failed}, counts{Read: 1, Storing: 1, Busy: 1, Known: "Owned"}},
		"own record replaced":        {machine.Owned, []machine.Event{machine.Read, machine.Due, machine.Started, machine.Failed, machine.Appended}, counts{}},
		"own record delivered":       {machine.Owned, []machine.Event{machine.Read, machine.Due, machine.Started, machine.Succeeded}, counts{}},
		"own record returned":        {machine.Owned, []machine.Event{machine.Read, machine.Returned}, counts{Known: "Owned"}},
		"own record returned unsent": {machine.Owned, []machine.Event{machine.Read, machine.Due, machine.Started, machine.FailedInOrder}, counts{Known: "Owned"}},
		"dead letter sent":           {machine.Owned, []machine.Event{machine.Read, machine.Due, machine.Started, machine.Undeliverable}, counts{Read: 1, Busy: 1, Known: "Owned"}},
		"copying":                    {machine.Shared, []machine.Event{machine.Offered, machine.Started, machine.Slow}, counts{InFlight: 1, Storing: 1, Known: "Copying"}},
		"copy refused":               {machine.Shared, []machine.Event{machine.Offered, machine.Started, machine.Slow, machine.CopyRejected}, counts{InFlight: 1}},
		"copied":                     {machine.Shared, []machine.Event{machine.Offered, machine.Started, machine.Slow, machine.CopyAppended}, counts{InFlight: 1, Known: "Copied"}},
		"copy read":                  {machine.Shared, []machine.Event{machine.Offered, machine.Started, machine.Slow, machine.CopyRead}, counts{InFlight: 1, Read: 1, Busy: 1, Known: "Owned"}},
		"delivered while copying":    {machine.Shared, []machine.Event{machine.Offered, machine.Started, machine.Slow, machine.Succeeded}, counts{Storing: 1, Known: "CopyingStale"}},
		"delivered, copied":          {machine.Shared, []machine.Event{machine.Offered, machine.Started, machine.Slow, machine.Succeeded, machine.CopyAppended}, counts{Known: "Stale"}},
		"delivered, copy read":       {machine.Shared, []machine.Event{machine.Offered, machine.Started, machine.Slow, machine.Succeeded, machine.CopyRead}, counts{}},
		"refused event":              {machine.Shared, []machine.Event{machine.Offered, machine.Succeeded}, counts{Sharing: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			x, d := newIndex(), &Delivery{id: 7, state: machine.State{Record: row.record}, owned: &segment{}}
			for _, e := range row.events {
				x.transition(d, e)
			}
			if diff := cmp.Diff(row.want, x.counts(d)); diff != "" {
				t.Error(diff)
			}
			if want := row.want.Read == 0 && row.want.Storing == 0; x.idle() != want {
				t.Errorf("idle is %t, want %t", x.idle(), want)
			}
		})
	}
}

// handle is a logqueue.Handle that records the delay of a redelivery.
type handle struct{ nacked time.Duration }

func (*handle) Ack()                    {}
func (h *handle) Nack(in time.Duration) { h.nacked = in }

// A delivery is in flight while the segment of its record is rejected for another one and read into a new segment.
func TestIndexRejectsSegments(t *testing.T) {
	log := &handle{}
	x, from, to := newIndex(), &segment{handle: log, finished: []uint64{3}}, &segment{handle: log}
	d := &Delivery{id: 7, state: machine.State{Record: machine.Owned}, owned: from}
	for _, e := range []machine.Event{machine.Read, machine.Due, machine.Started} {
		x.transition(d, e)
	}
	if have := x.segment([]*Delivery{{id: 1}, {id: 7}}); have != from {
		t.Errorf("the segment in memory is %p, want %p", have, from)
	}
	x.reject(from, time.Second)
	if log.nacked != time.Second {
		t.Errorf("the segment is redelivered after %s, want 1s", log.nacked)
	}
	if known := x.records[3]; known == nil || known.state.Record != machine.Stale {
		t.Errorf("the finished record is %+v, want a stale one", known)
	}
	if have := x.segment([]*Delivery{{id: 7}}); have != nil {
		t.Error("a rejected segment counts as held")
	}
	x.move(d, to)
	if d.owned != to || from.busy != 0 || to.busy != 1 || len(x.inFlight) != 1 {
		t.Errorf("after the move, %d and %d deliveries are busy and %d in flight; want 0, 1 and 1", from.busy, to.busy, len(x.inFlight))
	}
	// The segment is rejected once more while the attempt ends.
	x.reject(to, 0)
	x.transition(d, machine.Succeeded)
	if known := x.records[7]; known == nil || known.state.Record != machine.Stale {
		t.Errorf("the delivered record is %+v, want a stale one", known)
	}
}

func TestIndexStatus(t *testing.T) {
	at := func(n int64) time.Time { return epoch.Add(time.Duration(n)) }
	x := newIndex()
	for i, events := range [][]machine.Event{
		{machine.Read},
		{machine.Read, machine.Due},
		{machine.Read, machine.Due, machine.Started},
		{machine.Read, machine.Due, machine.Started, machine.Succeeded},
	} {
		d := &Delivery{
			id: uint64(i), accepted: at(int64(-i)), state: machine.State{Record: machine.Owned}, owned: &segment{},
			Event: &event.Event{}, encoded: []byte("12345"),
		}
		for _, e := range events {
			x.transition(d, e)
		}
		switch d.state.Phase {
		case machine.Waiting:
			x.wait(d)
		case machine.Ready:
			x.ready.push(d)
		}
	}
	want := Status{Oldest: at(-2), InFlight: 1, Ready: 1, Waiting: 1, Read: 3, WaitingBytes: 5}
	if diff := cmp.Diff(want, x.status()); diff != "" {
		t.Error(diff)
	}
}
