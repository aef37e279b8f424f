package figures

import (
	"math"
	"testing"
)

// TestPercent computes a ratio although the second measurement of each round is faster, and the machine becomes slower.
func TestPercent(t *testing.T) {
	for _, rounds := range []int{1, 2, 3, 9, 10} {
		var part, whole []float64
		position, ratio := 0, 0.98
		next := func(value float64) float64 {
			speed := 1 - 0.01*float64(position)
			if position++; position%2 == 0 {
				speed += 0.03
			}
			return value * speed
		}
		Alternate(rounds, func() { part = append(part, next(ratio)) }, func() { whole = append(whole, next(1)) })
		tolerance := 0.1
		if rounds == 1 {
			tolerance = 3
		}
		if got := Percent(part, whole); math.Abs(got-100*ratio) > tolerance {
			t.Errorf("after %d rounds the ratio is %.2f %%, want %.2f", rounds, got, 100*ratio)
		}
	}
}
