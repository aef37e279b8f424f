package gateway

import (
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// reportInterval is how long an interval between reports is, at most, as far as averages are concerned.
const reportInterval = time.Second

// Usage is what there was at a revision between two reports.
type Usage struct {
	Key routing.Key
	UID types.UID
	// Concurrency is the average number of requests in flight, those that waited included, RequestsPerSecond those
	// that came, Waiting the number of those that wait for an instance now.
	Concurrency, RequestsPerSecond float64
	Waiting                        int
}

// reports has the pools that the next report tells of: those that had requests.
type reports struct {
	mu    sync.Mutex
	pools map[*pool]struct{}
	// last is when the last report was.
	last time.Time
}

// add has the next report tell of a pool that gets its first request since long. It returns when the interval began.
func (r *reports) add(p *pool, now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pools[p] = struct{}{}
	if earliest := now.Add(-reportInterval); r.last.Before(earliest) {
		return earliest
	}
	return r.last
}

func (r *reports) remove(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pools, p)
}

// Report returns what there was at revisions since the previous call, of those that had requests. All others had
// none. Like Sample, it begins a new interval: only one of both may be used at a time.
func (g *Gateway) Report(now time.Time) []Usage {
	r := &g.reports
	r.mu.Lock()
	pools := make([]*pool, 0, len(r.pools))
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

// report returns what there was at the pool, and false if there was nothing: then it is not asked again until
// something comes.
func (p *pool) report(now time.Time) (Usage, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := Usage{Key: p.key, Waiting: p.queue.length}
	if spec := p.spec.Load(); spec != nil {
		u.UID = spec.UID
	}
	u.Concurrency, u.RequestsPerSecond = p.usage.sample(now)
	if u.Concurrency == 0 && u.RequestsPerSecond == 0 && p.usage.inFlight == 0 {
		p.reported = false
		p.gateway.reports.remove(p)
		return Usage{}, false
	}
	return u, true
}
