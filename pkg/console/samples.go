package console

import (
	"context"
	"maps"
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

// samples are the latest two samples of the metrics of each namespace, which all pages share.
type samples struct {
	// mu guards the fields below, and is held while the metrics are read: many pages read them once.
	mu         sync.Mutex
	namespaces map[string]*sampled
}

// sampled are the samples of a namespace. missing is why there is none.
type sampled struct {
	old, last *inspect.Sample
	at        time.Time
	missing   string
}

// rates returns the present rates of a namespace, which are nil before the second sample. missing is why there are none.
func (s *samples) rates(ctx context.Context, namespace string, read func(ctx context.Context, namespace string) (*inspect.Sample, string)) (rates *inspect.Interval, missing string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(s.namespaces, func(_ string, of *sampled) bool { return now.Sub(of.at) > maxInterval })
	of := s.namespaces[namespace]
	if of == nil {
		of = &sampled{}
		if s.namespaces == nil {
			s.namespaces = map[string]*sampled{}
		}
		s.namespaces[namespace] = of
	}
	if now.Sub(of.at) >= sampleInterval {
		of.old = of.last
		of.last, of.missing = read(ctx, namespace)
		of.at = now
	}
	if of.old == nil || of.last == nil {
		return nil, of.missing
	}
	return &inspect.Interval{From: of.old, To: of.last}, of.missing
}
