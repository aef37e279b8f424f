package console

import (
	"context"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

const (
	// sampleInterval is the time between samples of the metrics while a page with rates is open, and the minimum over which rates are computed.
	sampleInterval = 2 * time.Second
	// maxInterval is the age at which a sample is too old for the present rate.
	maxInterval = 5 * sampleInterval
)

// samples are the latest two samples of the metrics, which all pages share.
type samples struct {
	// mu guards the fields below, and is held while the metrics are read: many pages read them once.
	mu        sync.Mutex
	old, last *inspect.Sample
	at        time.Time
	missing   string
}

// rates returns the present rates, which are nil before the second sample. missing is why there are none.
func (s *samples) rates(ctx context.Context, read func(context.Context) (*inspect.Sample, string)) (rates *inspect.Interval, missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if age := now.Sub(s.at); age >= sampleInterval {
		s.old = s.last
		if age > maxInterval {
			s.old = nil
		}
		s.last, s.missing = read(ctx)
		s.at = now
	}
	if s.old == nil || s.last == nil {
		return nil, s.missing
	}
	return &inspect.Interval{From: s.old, To: s.last}, ""
}
