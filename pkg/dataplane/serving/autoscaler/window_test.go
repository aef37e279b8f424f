package autoscaler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// epoch is when tests begin.
var epoch = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func TestWindowAverage(t *testing.T) {
	type add struct {
		at, covers  time.Duration
		concurrency float64
	}
	second, minute := time.Second, time.Minute
	// each adds a sample of some concurrency every second from..to.
	each := func(from, to int, concurrency float64) (adds []add) {
		for i := from; i <= to; i++ {
			adds = append(adds, add{time.Duration(i) * second, second, concurrency})
		}
		return adds
	}
	for _, tc := range []struct {
		name       string
		adds       []add
		at, latest time.Duration
		want       float64
		empty      bool
	}{
		{name: "nothing", at: 0, latest: minute, empty: true},
		{name: "one second", adds: each(1, 1, 5), at: second, latest: minute, want: 5},
		{name: "younger than the window", adds: each(1, 10, 5), at: 10 * second, latest: minute, want: 5},
		{name: "whole window", adds: append(each(1, 60, 2), each(61, 90, 4)...), at: 90 * second, latest: minute, want: 3},
		{name: "panic part", adds: append(each(1, 54, 0), each(55, 60, 8)...), at: minute, latest: 6 * second, want: 8},
		{name: "panic part, half", adds: append(each(1, 57, 0), each(58, 60, 8)...), at: minute, latest: 6 * second, want: 4},
		{name: "old samples are gone", adds: each(1, 60, 7), at: 121 * second, latest: minute, empty: true},
		{name: "nothing but zero", adds: append(each(1, 60, 0.1), each(61, 120, 0)...), at: 120 * second, latest: minute, want: 0},
		{name: "weighted by time", adds: []add{{second, second, 2}, {3 * second, 2 * second, 5}}, at: 3 * second, latest: minute, want: 4},
		{name: "two in a bucket", adds: []add{{second, second, 2}, {1500 * time.Millisecond, second / 2, 8}}, at: 2 * second, latest: minute, want: 4},
		{name: "a moment's burst", adds: []add{{second, 5 * time.Millisecond, 500}}, at: second, latest: minute, want: 2.5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWindow(minute)
			for _, a := range tc.adds {
				w.Add(epoch.Add(a.at), a.covers, Sample{Concurrency: a.concurrency, RequestsPerSecond: 10 * a.concurrency})
			}
			got, ok := w.average(epoch.Add(tc.at), tc.latest)
			if ok == tc.empty {
				t.Fatalf("has samples = %v, want %v", ok, !tc.empty)
			}
			if diff := cmp.Diff(average{tc.want, 10 * tc.want}, got, closeTo); diff != "" {
				t.Errorf("average (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWindowResized(t *testing.T) {
	w := newWindow(10 * time.Second)
	for i := range 25 {
		w.Add(epoch.Add(time.Duration(i)*time.Second), time.Second, Sample{Concurrency: float64(i)})
	}
	now := epoch.Add(24 * time.Second)
	for _, tc := range []struct {
		length time.Duration
		want   float64
	}{
		{6 * time.Second, (19 + 20 + 21 + 22 + 23 + 24) / 6.0},
		{20 * time.Second, (15 + 24) / 2.0},
	} {
		got, _ := w.resized(tc.length).average(now, tc.length)
		if diff := cmp.Diff(tc.want, got.Concurrency, closeTo); diff != "" {
			t.Errorf("average over %v (-want +got):\n%s", tc.length, diff)
		}
	}
}

func TestDelayKeepsTheHighest(t *testing.T) {
	var d delay
	for i, tc := range []struct{ scale, want int32 }{
		{3, 3}, {5, 5}, {4, 5}, {1, 5}, {2, 4}, {0, 2}, {0, 2}, {0, 0}, {0, 0}, {7, 7},
	} {
		now := epoch.Add(time.Duration(i) * 2 * time.Second)
		if got := d.highest(now, 5*time.Second, tc.scale); got != tc.want {
			t.Errorf("decision %d: highest of the last 5s = %d, want %d", i, got, tc.want)
		}
	}
}
