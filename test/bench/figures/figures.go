// Package figures computes the figures that benchmarks report.
package figures

import (
	"slices"
	"testing"
	"time"
)

// Once runs a benchmark that reports its own measurement.
func Once(b *testing.B, measure func()) {
	b.Helper()
	for range b.N {
		measure()
	}
	b.ReportMetric(0, "ns/op")
}

// Alternate calls two measurements in each round, and begins each round with the other one: the second measurement of a round is
// usually slower, or faster.
func Alternate(rounds int, one, other func()) {
	for round := range rounds {
		if round%2 == 0 {
			one()
			other()
		} else {
			other()
			one()
		}
	}
}

// Median returns the median of values, of which there is at least one.
func Median[T int64 | float64 | time.Duration](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// Percent returns the median of each value of part relative to the one of whole in the same round.
func Percent(part, whole []float64) float64 {
	ratios := make([]float64, len(part))
	for i := range part {
		ratios[i] = 100 * part[i] / whole[i]
	}
	return Median(ratios)
}

// Microseconds returns d in microseconds.
func Microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Milliseconds returns d in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
