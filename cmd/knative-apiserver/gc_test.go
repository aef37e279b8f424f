package main

import "testing"

func TestGCPercent(t *testing.T) {
	for _, test := range []struct {
		name string
		live uint64
		want int
	}{
		{"no live bytes yet", 0, 200},
		{"a very small heap", 1 << 20, 800},
		{"a gateway alone", 20 << 20, 400},
		{"as many live bytes as headroom", 80 << 20, 100},
		{"in steps of ten", 85 << 20, 90},
		{"a large heap", 10 << 30, 40},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := gcPercent(test.live); got != test.want {
				t.Errorf("gcPercent(%d) = %d, want %d", test.live, got, test.want)
			}
		})
	}
}
