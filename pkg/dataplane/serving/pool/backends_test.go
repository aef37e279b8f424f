package pool

import (
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// TestChoose covers the choice of the backend for the next request. A backend is written as its name, the number of its
// requests, and "!" if it is avoided.
func TestChoose(t *testing.T) {
	for name, test := range map[string]struct {
		backends string
		next     int
		limit    int
		// others are the requests of another replica.
		others map[string]int
		want   string
	}{
		"none":                     {limit: 10},
		"first":                    {backends: "a0 b0 c0", limit: 10, want: "a"},
		"in turn":                  {backends: "a0 b0 c0", next: 2, limit: 10, want: "c"},
		"round-robin among equals": {backends: "a1 b2 c1", next: 1, limit: 10, want: "c"},
		"fewest":                   {backends: "a2 b1 c3", next: 2, limit: 10, want: "b"},
		"at the limit":             {backends: "a2 b2", limit: 2},
		"below the limit":          {backends: "a2 b1", limit: 2, want: "b"},
		"avoided":                  {backends: "a0! b1", limit: 10, want: "b"},
		"all avoided":              {backends: "a0! b1!", limit: 10},
		"requests of others":       {backends: "a0 b1", limit: 10, others: map[string]int{"a": 2}, want: "b"},
		"limit with others":        {backends: "a1 b1", limit: 2, others: map[string]int{"a": 1, "b": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			fake := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
			s := newBackends(fake)
			for _, in := range strings.Fields(test.backends) {
				b := &Backend{name: in[:1], inFlight: int(in[1] - '0')}
				if strings.HasSuffix(in, "!") {
					b.unreachable(fake.Now())
				}
				s.ready = append(s.ready, b)
			}
			s.next = test.next
			var claim ownership.Claim
			claim.Gain(true)
			claim.Learn(1, ownership.Round{Known: true, Requests: test.others})
			before := 0
			b := s.choose(test.limit, &claim)
			got := ""
			if b != nil {
				got = b.name
				before = int(test.backends[strings.Index(test.backends, got)+1] - '0')
			}
			if got != test.want {
				t.Fatalf("got %q, want %q", got, test.want)
			}
			if b != nil && b.inFlight != before+1 {
				t.Errorf("%d requests at %s, want %d", b.inFlight, got, before+1)
			}
		})
	}
}

// TestUnreachablePauses covers the time for which a backend that accepts no connections is avoided.
func TestUnreachablePauses(t *testing.T) {
	b, now := &Backend{}, time.Unix(1, 0)
	for i, want := range []time.Duration{firstAvoid, 2 * firstAvoid, 4 * firstAvoid} {
		if got := b.unreachable(now); got != want {
			t.Errorf("pause %d takes %v, want %v", i, got, want)
		}
		if got := b.unreachable(now); got != 0 {
			t.Errorf("a second failure in pause %d extends it by %v", i, got)
		}
		now = now.Add(want)
	}
}

// TestBackendDrains covers the conditions under which a backend counts as drained, and checks that waits for it end.
func TestBackendDrains(t *testing.T) {
	draining := []workload.Instance{{Name: "a", Address: "a:1", Draining: true}}
	s := newBackends(clocktesting.NewFakePassiveClock(time.Unix(1, 0)))
	check := func(step string, changed <-chan struct{}, wantChanged, want, wantKnown bool) <-chan struct{} {
		t.Helper()
		select {
		case <-changed:
			if !wantChanged {
				t.Errorf("%s: a wait ends", step)
			}
		default:
			if wantChanged {
				t.Errorf("%s: the wait continues", step)
			}
		}
		drained, known, next := s.drained("a")
		if drained != want || known != wantKnown {
			t.Errorf("%s: drained %t, known %t, want %t, %t", step, drained, known, want, wantKnown)
		}
		return next
	}
	changed := check("unknown", nil, false, true, false)
	s.set(ready("a"), maphash.Seed{})
	changed = check("ready", changed, true, false, true)
	b := s.choose(1, new(ownership.Claim))
	if drained := s.set(draining, maphash.Seed{}); len(drained) != 0 {
		t.Errorf("%v has drained with a request", drained)
	}
	changed = check("draining", changed, true, false, true)
	if !s.release(b) {
		t.Error("not drained without a request")
	}
	changed = check("drained", changed, true, true, true)
	if drained := s.set(draining, maphash.Seed{}); slices.Contains(drained, b) {
		t.Error("drained twice")
	}
	s.set(nil, maphash.Seed{})
	check("removed", changed, true, true, false)
	if !s.empty() {
		t.Error("a backend remains")
	}
}
