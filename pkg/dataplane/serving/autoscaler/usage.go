package autoscaler

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

const (
	// UsagePath is the path of UsageHandler.
	UsagePath = "/autoscaler/usage"

	// reportInterval is the interval at which followers report, reportTimeout the timeout of a report.
	reportInterval = time.Second
	reportTimeout  = time.Second
	// staleAfter is the age at which a report expires.
	staleAfter = 3 * reportInterval
	// maxReport is the maximum size of a report in bytes.
	maxReport = 64 << 20
)

// Usage is the load of one revision at one gateway in an interval.
type Usage struct {
	Key routing.Key `json:"key"`
	UID types.UID   `json:"uid"`
	// See Sample.
	Concurrency       float64 `json:"concurrency,omitempty"`
	RequestsPerSecond float64 `json:"requestsPerSecond,omitempty"`
	Waiting           int     `json:"waiting,omitempty"`
}

// Report is the load at the gateway of a replica in an interval. Revisions without an entry had no requests.
type Report struct {
	// Member is the replica's name.
	Member string  `json:"member"`
	Usages []Usage `json:"usages,omitempty"`
	// ColdStarts are the cold starts that have begun or changed; their Gateway is Member.
	ColdStarts []ColdStart `json:"coldStarts,omitempty"`
}

// Post sends a report to the UsageHandler of a replica. transport connects to the addresses of members.
func (r *Report) Post(ctx context.Context, transport http.RoundTripper, to membership.Member) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode usage report: %w", err)
	}
	if err := (peer.Call{Method: http.MethodPost, Path: UsagePath, Body: bytes.NewReader(body)}).Do(ctx, transport, to); err != nil {
		return fmt.Errorf("post usage report: %w", err)
	}
	return nil
}

// UsageHandler serves POST of a Report by other replicas. The caller must have authenticated them.
func (l *Loop) UsageHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "method must be POST", http.StatusMethodNotAllowed)
			return
		}
		report := &Report{}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport)).Decode(report); err != nil {
			http.Error(w, "decode usage report: "+err.Error(), http.StatusBadRequest)
			return
		}
		l.receiveReport(report)
		w.WriteHeader(http.StatusNoContent)
	})
}

// peerUsage holds the latest reports of the other replicas. Its methods may be called concurrently.
type peerUsage struct {
	members *membership.View

	// mu guards reports, by member.
	mu      sync.Mutex
	reports map[string]*received
}

// received is a report by revision with its time of arrival. Immutable.
type received struct {
	at     time.Time
	usages map[routing.Key]Usage
}

// put replaces the report of a replica.
func (p *peerUsage) put(report *Report, now time.Time) {
	r := &received{at: now, usages: make(map[routing.Key]Usage, len(report.Usages))}
	for _, u := range report.Usages {
		r.usages[u.Key] = u
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports[report.Member] = r
}

// sum returns the load of a revision at the other members. stale is true if a member that stopped reporting last had
// requests.
func (p *peerUsage) sum(key routing.Key, uid types.UID, now time.Time) (sum Sample, stale bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.reports) == 0 {
		return Sample{}, false
	}
	set := p.members.Current()
	for _, m := range set.Members() {
		r := p.reports[m.Name]
		if r == nil || m.Name == set.Self() {
			continue
		}
		u, ok := r.usages[key]
		switch {
		case !ok || u.UID != uid:
		case now.Sub(r.at) > staleAfter:
			stale = true
		default:
			sum.Concurrency += u.Concurrency
			sum.RequestsPerSecond += u.RequestsPerSecond
			sum.Waiting += u.Waiting
		}
	}
	return sum, stale
}

// retain drops the reports of all replicas except the members.
func (p *peerUsage) retain(set *membership.Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	members := map[string]bool{}
	for _, m := range set.Members() {
		members[m.Name] = true
	}
	for name := range p.reports {
		if !members[name] {
			delete(p.reports, name)
		}
	}
}
