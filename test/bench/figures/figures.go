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

// Alternate calls measurements in each round, in the other direction from round to round: the last measurement of a round is usually slower,
// or faster.
func Alternate(rounds int, subjects ...func()) {
	subjects = slices.Clone(subjects)
	for range rounds {
		for _, measure := range subjects {
			measure()
		}
		slices.Reverse(subjects)
	}
}

// Median returns the median of values, of which there is at least one.
func Median[T int64 | float64 | time.Duration](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// Percent returns the median of part relative to whole, both summed over two consecutive rounds: of two such rounds of Alternate, each measurement begins
// one. The values of a single round are compared as they are.
func Percent(part, whole []float64) float64 {
	two := min(2, len(part))
	ratios := make([]float64, 0, len(part))
	for i := range len(part) - two + 1 {
		ratios = append(ratios, 100*sum(part[i:i+two])/sum(whole[i:i+two]))
	}
	return Median(ratios)
}

func sum(values []float64) (s float64) {
	for _, v := range values {
		s += v
	}
	return s
}

// Until calls probe every millisecond until it succeeds, and returns the time that it took. After a timeout it fails the benchmark.
func Until(b *testing.B, timeout time.Duration, what string, probe func() error) time.Duration {
	b.Helper()
	began := time.Now()
	for {
		err := probe()
		took := time.Since(began)
		if err == nil {
			return took
		}
		if took > timeout {
			b.Errorf("wait until %s: %v", what, err)
			return took
		}
		<-time.After(time.Millisecond)
	}
}

// Microseconds returns d in microseconds.
func Microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Milliseconds returns d in milliseconds.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
