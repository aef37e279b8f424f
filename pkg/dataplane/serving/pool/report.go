package pool

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// reportInterval is the longest interval between reports that averages take into account.
const reportInterval = time.Second

// Usage is the usage of a Revision between two reports.
type Usage struct {
	Key routing.Key
	UID types.UID
	// Concurrency is the average number of requests in flight, including waiting ones, RequestsPerSecond the rate of
	// arrivals, Waiting the number of requests that wait for a backend now.
	Concurrency, RequestsPerSecond float64
	Waiting                        int
}

// reports has the pools that the next report includes: those with requests.
type reports struct {
	mu    sync.Mutex
	pools map[*Pool]struct{}
	// last is the time of the last report.
	last time.Time
}

// add adds a pool when its first request after an idle period arrives. It returns the start of the interval.
func (r *reports) add(p *Pool, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pools[p] = struct{}{}
	if earliest := now.Add(-reportInterval); r.last.Before(earliest) {
		return earliest
	}
	return r.last
}

func (r *reports) remove(p *Pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pools, p)
}

// Report returns the usage of Revisions with requests since the previous call. Like Sample, it begins a new interval, so only
// one of the two may be used.
func (s *Pools) Report(now time.Time) []Usage {
	r := &s.reports
	r.mu.Lock()
	pools := make([]*Pool, 0, len(r.pools))
	for p := range r.pools {
		pools = append(pools, p)
	}
	r.last = now
	r.mu.Unlock()
	var all []Usage
	for _, p := range pools {
		if u, ok := p.report(now); ok {
			all = append(all, u)
		}
	}
	slices.SortFunc(all, func(a, b Usage) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return all
}

// report returns the usage of the pool. Without requests, ok is false, and reports omit the pool until its next request.
func (p *Pool) report(now time.Time) (u Usage, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u = Usage{Key: p.key, Waiting: p.queue.length}
	if revision := p.revision.Load(); revision != nil {
		u.UID = revision.UID
	}
	u.Concurrency, u.RequestsPerSecond = p.usage.sample(now)
	if u.Concurrency == 0 && u.RequestsPerSecond == 0 && p.usage.inFlight == 0 {
		p.reported = false
		p.pools.reports.remove(p)
		return Usage{}, false
	}
	return u, true
}
