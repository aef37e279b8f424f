package load

import (
	"slices"
	"testing"
	"time"
)

// TestPercentiles checks the percentiles of 101 durations in any order.
func TestPercentiles(t *testing.T) {
	var durations []time.Duration
	for i := range 101 {
		durations = append(durations, time.Duration(i)*time.Millisecond)
	}
	slices.Reverse(durations)
	want := Latency{P50: 50 * time.Millisecond, P95: 95 * time.Millisecond, P99: 99 * time.Millisecond}
	if got := percentiles(durations); got != want {
		t.Errorf("the percentiles are %v, want %v", got, want)
	}
}

// TestMedians checks that one bad window does not determine the result, and that two of three do.
func TestMedians(t *testing.T) {
	good, bad := Latency{P50: 1, P95: 2, P99: 3}, Latency{P50: 10, P95: 20, P99: 30}
	for _, test := range []struct {
		of   []Latency
		want Latency
	}{
		{of: []Latency{good}, want: good},
		{of: []Latency{good, bad, good}, want: good},
		{of: []Latency{bad, good, bad}, want: bad},
	} {
		if got := medians(test.of); got != test.want {
			t.Errorf("the medians of %v are %v, want %v", test.of, got, test.want)
		}
	}
}
