package ownership

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// TestClaim covers the use of backends that a claim permits.
func TestClaim(t *testing.T) {
	none, some := Round{Known: true, Requests: map[string]int{}}, Round{Known: true, Requests: map[string]int{"i": 2}}
	for name, test := range map[string]struct {
		claim  func(c *Claim)
		usable bool
		others int
		asks   bool
	}{
		"alone":                          {claim: func(c *Claim) { c.Gain(false) }, usable: true},
		"with others":                    {claim: func(c *Claim) { c.Gain(true) }, asks: true},
		"asked already":                  {claim: func(c *Claim) { c.Gain(true); c.Ask() }},
		"others have requests":           {claim: func(c *Claim) { c.Gain(true); c.Ask(); c.Learn(1, some) }, usable: true, others: 2},
		"others have ended":              {claim: func(c *Claim) { c.Gain(true); c.Learn(1, some); c.Learn(1, none) }, usable: true},
		"another owner appears":          {claim: func(c *Claim) { c.Gain(true); c.Ask(); c.Learn(1, some); c.Learn(1, Round{}) }},
		"late answer":                    {claim: func(c *Claim) { c.Gain(true); c.Release(); c.Gain(true); c.Learn(1, none) }, asks: true},
		"answer after the end":           {claim: func(c *Claim) { c.Gain(true); c.Learn(1, none); c.Learn(1, some) }, usable: true},
		"released":                       {claim: func(c *Claim) { c.Gain(true); c.Learn(1, some); c.Release() }, usable: true},
		"no request waits":               {claim: func(c *Claim) { c.Gain(true); c.Ask(); c.Learn(1, Round{}); c.Continue(false) }, asks: true},
		"a request waits":                {claim: func(c *Claim) { c.Gain(true); c.Ask(); c.Learn(1, Round{}); c.Continue(true) }},
		"no requests of others, at once": {claim: func(c *Claim) { c.Gain(true); c.Ask(); c.Learn(1, none); c.Continue(true) }, usable: true},
	} {
		t.Run(name, func(t *testing.T) {
			var c Claim
			if c.Gained() {
				t.Error("gained from the beginning")
			}
			test.claim(&c)
			if !c.Gained() {
				t.Error("not gained")
			}
			if c.Usable() != test.usable || c.Others("i") != test.others {
				t.Errorf("usable %t with %d requests of others, want %t with %d", c.Usable(), c.Others("i"), test.usable, test.others)
			}
			if _, asks := c.Ask(); asks != test.asks {
				t.Errorf("starts an inquiry: %t, want %t", asks, test.asks)
			}
		})
	}
}

// TestInquiry covers the replicas that an inquiry queries, and its end.
func TestInquiry(t *testing.T) {
	type answers map[string][]any
	for name, test := range map[string]struct {
		answers answers
		want    []Round
		asked   string
	}{
		"no requests": {
			answers: answers{"b": {Usage{}}, "c": {Usage{}}, "d": {Usage{}}},
			want:    []Round{{Known: true, Requests: map[string]int{}}},
			asked:   "b c d",
		},
		"requests that end": {
			answers: answers{
				"b": {Usage{Requests: map[string]int{"i": 1, "j": 1}}, Usage{Requests: map[string]int{"i": 1}}, Usage{}},
				"c": {Usage{}}, "d": {Usage{Requests: map[string]int{"i": 2}}, Usage{}},
			},
			want: []Round{
				{Known: true, Requests: map[string]int{"i": 3, "j": 1}},
				{Known: true, Requests: map[string]int{"i": 1}},
				{Known: true, Requests: map[string]int{}},
			},
			asked: "b b b c d d",
		},
		"another owner": {
			answers: answers{"b": {Usage{Owner: true}, Usage{}}, "c": {Usage{}}, "d": {Usage{}}},
			want:    []Round{{Requests: map[string]int{}}, {Known: true, Requests: map[string]int{}}},
			asked:   "b b c d",
		},
		"member does not answer": {
			answers: answers{"b": {errors.New("refused"), Usage{}}, "c": {Usage{}}, "d": {Usage{}}},
			want:    []Round{{Requests: map[string]int{}}, {Known: true, Requests: map[string]int{}}},
			asked:   "b b c d",
		},
		"former member does not answer": {
			answers: answers{"b": {Usage{}}, "c": {Usage{}}, "d": {errors.New("refused"), errors.New("refused"), errors.New("refused")}},
			want:    []Round{{Requests: map[string]int{}}, {Requests: map[string]int{}}, {Known: true, Requests: map[string]int{}}},
			asked:   "b c d d d",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				holders := NewHolders(membersOf("a", "a", "b", "c", "d"))
				holders.Set(membersOf("a", "a", "b", "c"))
				asks := make(chan string, 100)
				given := map[string]chan any{}
				for member, all := range test.answers {
					given[member] = make(chan any, len(all))
					for _, answer := range all {
						given[member] <- answer
					}
				}
				var rounds []Round
				began := time.Now()
				Inquiry{
					Holders: holders, StopTime: 2 * askInterval,
					Ask: func(_ context.Context, m membership.Member) (Usage, error) {
						asks <- m.Name
						answer := <-given[m.Name]
						if err, failed := answer.(error); failed {
							return Usage{}, err
						}
						return answer.(Usage), nil
					},
					Learned: func(r Round) bool {
						rounds = append(rounds, r)
						return len(rounds) < len(test.want)
					},
				}.Run(t.Context())
				if diff := cmp.Diff(test.want, rounds); diff != "" {
					t.Errorf("rounds (-want +got):\n%s", diff)
				}
				if took := time.Since(began); took != time.Duration(len(test.want)-1)*askInterval {
					t.Errorf("it took %s", took)
				}
				close(asks)
				var asked []string
				for name := range asks {
					asked = append(asked, name)
				}
				slices.Sort(asked)
				if got := strings.Join(asked, " "); got != test.asked {
					t.Errorf("asked %s, want %s", got, test.asked)
				}
			})
		})
	}
}

// TestStopped covers the conditions under which a replica that does not answer counts as stopped.
func TestStopped(t *testing.T) {
	const stopTime = 16 * time.Second
	for name, test := range map[string]struct {
		// then happens stopTime after the replica was a member.
		then     func(h *Holders)
		wait     time.Duration
		upToDate bool
		err      error
		want     bool
	}{
		"too early":             {wait: -time.Nanosecond, upToDate: true},
		"in time":               {upToDate: true, want: true},
		"Lease renewed":         {},
		"Lease not readable":    {err: errors.New("the server is down")},
		"confirmed meanwhile":   {upToDate: true, then: func(h *Holders) { h.Confirm("b", true) }},
		"denied meanwhile":      {upToDate: true, then: func(h *Holders) { h.Confirm("b", false) }, want: true},
		"member again":          {upToDate: true, then: func(h *Holders) { h.Set(membersOf("a", "a", "b")) }},
		"announced":             {wait: -stopTime, then: func(h *Holders) { h.Forget("b") }, want: true},
		"announced as a member": {upToDate: true, then: func(h *Holders) { h.Set(membersOf("a", "a", "b")); h.Forget("b") }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHolders(membersOf("a", "a", "b"))
				h.Set(membersOf("a", "a"))
				<-time.After(stopTime + test.wait)
				if test.then != nil {
					test.then(h)
				}
				i := Inquiry{Holders: h, StopTime: stopTime, UpToDate: func(context.Context, string) (bool, error) { return test.upToDate, test.err }}
				if got := i.stopped(t.Context(), "b"); got != test.want || got && len(h.All()) > 0 {
					t.Errorf("stopped: %t, want %t; holders %v", got, test.want, h.All())
				}
			})
		})
	}
}

func TestHolders(t *testing.T) {
	names := func(members []membership.Member) string {
		var all []string
		for _, m := range members {
			all = append(all, m.Name)
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	h := NewHolders(membersOf("a", "a", "b"))
	expect := func(members, all string) {
		t.Helper()
		if names(h.Members()) != members || names(h.All()) != all {
			t.Errorf("members %q of %q, want %q of %q", names(h.Members()), names(h.All()), members, all)
		}
	}
	expect("b", "b")
	h.Set(membersOf("a", "a", "c"))
	expect("c", "b c")
	if h.Forget("c") {
		t.Error("a member is forgotten")
	}
	h.Set(membersOf("a", "a", "b"))
	expect("b", "b c")
	if !h.Forget("c") {
		t.Error("a former member is not forgotten")
	}
	expect("b", "b")
	h.Set(membersOf("a"))
	expect("", "b")
}
