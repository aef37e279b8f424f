package main

import (
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	for _, test := range []struct {
		name string
		// before and live are the numbers of live bytes, allocated the number of bytes that were allocated within a time between.
		before, live, allocated uint64
		within                  time.Duration
		want                    int
	}{
		{"no live bytes yet", 0, 0, 0, time.Second, 200},
		{"a very small heap", 1 << 20, 1 << 20, 1 << 20, time.Second, 800},
		{"a gateway alone", 20 << 20, 20 << 20, 20 << 20, time.Second, 400},
		{"a busy gateway", 20 << 20, 20 << 20, 1 << 30, time.Second, 400},
		{"busy", 80 << 20, 80 << 20, 160 << 20, 2 * time.Second, 200},
		{"very busy", 80 << 20, 80 << 20, 1 << 30, time.Second, 300},
		{"very busy with few live bytes", 40 << 20, 40 << 20, 1 << 30, time.Second, 400},
		{"as many live bytes as headroom", 80 << 20, 80 << 20, 10 << 20, time.Second, 100},
		{"in steps of ten", 85 << 20, 85 << 20, 10 << 20, time.Second, 90},
		{"a large heap", 10 << 30, 10 << 30, 4 << 30, time.Minute, 40},
		{"a large heap, collected every two seconds", 10 << 30, 10 << 30, 4 << 30, 2 * time.Second, 40},
		{"a large heap, collected more often", 10 << 30, 10 << 30, 4 << 30, time.Second, 70},
		{"a large heap, busy with more headroom", 10 << 30, 10 << 30, 7 << 30, 3 * time.Second, 70},
		{"a large heap, quiet with more headroom", 10 << 30, 10 << 30, 10 << 30, time.Minute, 40},
		{"a large heap that has grown a little", 10 << 30, 10<<30 + 1<<29, 4 << 30, time.Minute, 40},
		{"a large heap that has shrunk", 10 << 30, 5 << 30, 2 << 30, time.Minute, 40},
		{"busy, and grows", 60 << 20, 80 << 20, 1 << 30, time.Second, 100},
		{"a large heap that grows", 200 << 20, 300 << 20, 200 << 20, time.Second, 100},
		{"a small heap that grows", 1 << 20, 20 << 20, 40 << 20, time.Second, 400},
		{"at the same time", 10 << 30, 10 << 30, 1 << 20, 0, 40},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			before := heap{at: start, live: test.before, allocated: 1 << 40}
			now := heap{at: start.Add(test.within), live: test.live, allocated: before.allocated + test.allocated}
			if got := gcPercent(before, now, 240<<20); got != test.want {
				t.Errorf("%d %%, want %d", got, test.want)
			}
		})
	}
	// A small machine.
	busy := heap{at: time.Now(), live: 80 << 20, allocated: 1 << 40}
	if got := gcPercent(heap{at: busy.at.Add(-time.Second), live: busy.live}, busy, 40<<20); got != 100 {
		t.Errorf("%d %% with little memory, want 100", got)
	}
}
