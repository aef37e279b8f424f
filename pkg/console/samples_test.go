package console

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// TestSamples reads the metrics once in an interval, however many pages ask.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, missing := 0, ""
		read := func(context.Context, string) (*inspect.Sample, string) {
			reads++
			if missing != "" {
				return nil, missing
			}
			return &inspect.Sample{}, ""
		}
		var s samples
		expect := func(what string, wait time.Duration, wantReads int, wantRates bool, wantMissing string) {
			t.Helper()
			time.Sleep(wait) //nolint:forbidigo // the time of synctest
			if rates, why := s.rates(t.Context(), "shop", read); reads != wantReads || (rates != nil) != wantRates || why != wantMissing {
				t.Errorf("%s: %d reads, rates %v, missing %q", what, reads, rates != nil, why)
			}
		}
		expect("first", time.Hour, 1, false, "")
		expect("at once", 0, 1, false, "")
		expect("second", sampleInterval, 2, true, "")
		expect("within the interval", sampleInterval/2, 2, true, "")
		expect("after a pause", time.Minute, 3, false, "")
		missing = "forbidden"
		expect("forbidden", sampleInterval, 4, false, "forbidden")
		if rates, _ := s.rates(t.Context(), "other", read); reads != 5 || rates != nil {
			t.Errorf("another namespace has rates after %d reads", reads)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // the time of synctest
		if s.rates(t.Context(), "other", read); len(s.namespaces) != 1 {
			t.Errorf("%d namespaces are kept", len(s.namespaces))
		}
	})
}
