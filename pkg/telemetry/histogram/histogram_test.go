package histogram

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestMetric checks the buckets of one histogram with both bounds: a duration belongs to the bucket whose bound it equals.
func TestMetric(t *testing.T) {
	var h Histogram
	for _, took := range []time.Duration{
		0, 500 * time.Microsecond, 501 * time.Microsecond, 5 * time.Millisecond, 60 * time.Millisecond, 80 * time.Millisecond,
		time.Second, 8 * time.Second, 11 * time.Second, time.Hour,
	} {
		h.Observe(took)
	}
	var sum Sum
	sum.Add(&h)
	desc := prometheus.NewDesc("d_seconds", "help", nil, nil)
	tests := map[string]struct {
		bounds []float64
		want   map[float64]uint64
	}{
		"fine":    {Fine(), map[float64]uint64{.0005: 2, .001: 3, .005: 4, .05: 4, .1: 6, 1: 7, 5: 7, 10: 8, 30: 9, 300: 9}},
		"Knative": {Knative(), map[float64]uint64{.005: 4, .05: 4, .075: 5, .1: 6, .75: 6, 1: 7, 7.5: 7, 10: 8}},
	}
	for name, test := range tests {
		var out dto.Metric
		if err := sum.Metric(desc, test.bounds).Write(&out); err != nil {
			t.Fatal(err)
		}
		got := out.GetHistogram()
		if got.GetSampleCount() != 10 || got.GetSampleSum() < 3600 || len(got.GetBucket()) != len(test.bounds) {
			t.Errorf("%s: %d durations of %v s in %d buckets", name, got.GetSampleCount(), got.GetSampleSum(), len(got.GetBucket()))
		}
		for _, bucket := range got.GetBucket() {
			if want, ok := test.want[bucket.GetUpperBound()]; ok && bucket.GetCumulativeCount() != want {
				t.Errorf("%s: %d durations up to %v, want %d", name, bucket.GetCumulativeCount(), bucket.GetUpperBound(), want)
			}
		}
	}
}

// TestBounds checks that the buckets have all bounds.
func TestBounds(t *testing.T) {
	have := map[float64]bool{}
	for _, bound := range bounds {
		have[bound.Seconds()] = true
	}
	for _, bound := range append(Fine(), Knative()...) {
		if !have[bound] {
			t.Errorf("no bucket has the bound %v", bound)
		}
	}
}

// TestVectorLimit checks that a bounded number of Histograms counts any number of keys.
func TestVectorLimit(t *testing.T) {
	var v Vector[int]
	hundreds := func(code int) int { return code / 100 * 100 }
	for code := 200; code < 600; code++ {
		v.Of(code, 16, hundreds).Observe(time.Millisecond)
		v.Of(201, 16, hundreds).Observe(time.Millisecond)
	}
	counts := map[int]uint64{}
	total, n := uint64(0), 0
	v.Each(func(code int, h *Histogram) {
		var sum Sum
		sum.Add(h)
		counts[code], total, n = sum.Count(), total+sum.Count(), n+1
	})
	if n > 16+4 || total != 800 || counts[201] != 401 || counts[500] != 100 {
		t.Errorf("%d histograms count %d: %v", n, total, counts)
	}
}
