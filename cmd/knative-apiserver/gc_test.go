package main

import "testing"

func TestGCPercent(t *testing.T) {
	for _, test := range []struct {
		name         string
		before, live uint64
		want         int
	}{
		{"no live bytes yet", 0, 0, 200},
		{"a very small heap", 1 << 20, 1 << 20, 800},
		{"a gateway alone", 20 << 20, 20 << 20, 400},
		{"as many live bytes as headroom", 80 << 20, 80 << 20, 100},
		{"in steps of ten", 85 << 20, 85 << 20, 90},
		{"a large heap", 10 << 30, 10 << 30, 40},
		{"a large heap that has grown a little", 10 << 30, 10<<30 + 1<<29, 40},
		{"a large heap that has shrunk", 10 << 30, 5 << 30, 40},
		{"a large heap that grows", 200 << 20, 300 << 20, 100},
		{"a small heap that grows", 1 << 20, 20 << 20, 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := gcPercent(test.before, test.live); got != test.want {
				t.Errorf("gcPercent(%d, %d) = %d, want %d", test.before, test.live, got, test.want)
			}
		})
	}
}
