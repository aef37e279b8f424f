package routetable

import (
	"math/rand/v2"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

func split(percents ...int) *Host[routing.Key] {
	route := routing.Host{Name: "h"}
	for i, percent := range percents {
		route.Targets = append(route.Targets, routing.Target{Revision: key(string(rune('a' + i))), Percent: percent})
	}
	t := New[routing.Key]()
	t.Set(&routing.Route{Key: key("r"), Hosts: []routing.Host{route}}, self)
	return Lookup(t, "h")
}

// TestChooseExact checks that requests are dispatched in accordance with the weights (serving 8-6): exactly so in
// each hundred.
func TestChooseExact(t *testing.T) {
	for _, percents := range [][]int{{100}, {50, 50}, {90, 10}, {1, 99}, {99, 1}, {33, 33, 34}, {1, 1, 98}} {
		h := split(percents...)
		for block := range 200 {
			counts := map[string]int{}
			for range slots {
				counts[h.Choose().Name]++
			}
			for i, percent := range percents {
				if got := counts[string(rune('a'+i))]; got != percent {
					t.Fatalf("%v: block %d has %d requests to target %d", percents, block, got, i)
				}
			}
		}
	}
}

// TestChooseNotSticky checks that a periodic client gets the same weights (serving 8-10): a client whose requests
// are every n-th of a host, for any n, gets the same weights in the long run.
func TestChooseNotSticky(t *testing.T) {
	for _, percent := range []int{50, 90, 99} {
		for _, stride := range []uint64{2, 3, 4, 5, 7, 10, 20, 25, 50, 64, 100, 200, 6400} {
			c := newChooser(rand.Uint64())
			const requests = 40_000
			first, seed := 0, rand.Uint64()
			for i := range uint64(requests) {
				if c.slot(seed, i*stride) < percent {
					first++
				}
			}
			got := float64(first) / requests * 100
			// Six standard deviations of independent choices are 1.5 at most.
			if got < float64(percent)-1.5 || got > float64(percent)+1.5 {
				t.Errorf("every %d-th request: %.2f %% to the first target, want %d", stride, got, percent)
			}
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	h := split(90, 10)
	b.ReportAllocs()
	for b.Loop() {
		h.Choose()
	}
}
