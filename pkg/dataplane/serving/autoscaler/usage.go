package autoscaler

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

const (
	// UsagePath is where UsageHandler is to be served.
	UsagePath = "/autoscaler/usage"

	// reportInterval is how often a replica that does not lead reports, reportTimeout bounds that.
	reportInterval = time.Second
	reportTimeout  = time.Second
	// staleAfter is how long a report counts.
	staleAfter = 3 * reportInterval
	// maxReport bounds a report, in bytes.
	maxReport = 64 << 20
)

// Usage is what a gateway saw of one revision's requests in an interval.
type Usage struct {
	Key routing.Key `json:"key"`
	UID types.UID   `json:"uid"`
	// See Sample.
	Concurrency       float64 `json:"concurrency,omitempty"`
	RequestsPerSecond float64 `json:"requestsPerSecond,omitempty"`
	Waiting           int     `json:"waiting,omitempty"`
}

// Report is what a replica's gateway saw in an interval: revisions that are not mentioned had no requests.
type Report struct {
	// Member is the replica's name.
	Member string  `json:"member"`
	Usages []Usage `json:"usages,omitempty"`
}

// Post sends a report to the UsageHandler of a replica. transport is what takes requests to members' addresses.
func (r *Report) Post(ctx context.Context, transport http.RoundTripper, to membership.Member) error {
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("writing the usage of revisions: %w", err)
	}
	u := url.URL{Scheme: "https", Host: to.Address, Path: UsagePath}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("reporting the usage of revisions to replica %s: %w", to.Name, err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("reporting the usage of revisions to replica %s: %w", to.Name, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		return fmt.Errorf("reporting the usage of revisions to replica %s: %s", to.Name, res.Status)
	}
	return nil
}

// UsageHandler serves POST of a Report by other replicas. Who may reach it is to be authenticated before.
func (l *Loop) UsageHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			http.Error(w, "only POST is served here", http.StatusMethodNotAllowed)
			return
		}
		report := &Report{}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport)).Decode(report); err != nil {
			http.Error(w, "not a report: "+err.Error(), http.StatusBadRequest)
			return
		}
		l.Receive(report)
		w.WriteHeader(http.StatusNoContent)
	})
}

// Receive takes the report of another replica.
func (l *Loop) Receive(report *Report) {
	usages := make(map[routing.Key]Usage, len(report.Usages))
	for _, u := range report.Usages {
		usages[u.Key] = u
	}
	l.others.put(report.Member, &reported{at: l.options.Clock.Now(), usages: usages})
	if !l.leading() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range report.Usages {
		u := &report.Usages[i]
		if r := l.revisions[u.Key]; r != nil && r.spec != nil && r.spec.UID == u.UID && r.desired == 0 && !r.requested {
			r.requested = true
			l.enqueue(r)
		}
	}
}

// others are the latest reports of the other replicas.
type others struct {
	members *membership.View

	// mu guards reports, by member.
	mu      sync.Mutex
	reports map[string]*reported
}

// reported is a report. Immutable.
type reported struct {
	at     time.Time
	usages map[routing.Key]Usage
}

func (o *others) put(member string, r *reported) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reports[member] = r
}

// sum returns what the other members see of a revision. held tells that one which does not report any more saw
// requests last.
func (o *others) sum(key routing.Key, uid types.UID, now time.Time) (sum Sample, held bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.reports) == 0 {
		return Sample{}, false
	}
	set := o.members.Current()
	for _, m := range set.Members() {
		r := o.reports[m.Name]
		if r == nil || m.Name == set.Self() {
			continue
		}
		u, ok := r.usages[key]
		switch {
		case !ok || u.UID != uid:
		case now.Sub(r.at) > staleAfter:
			held = true
		default:
			sum.Concurrency += u.Concurrency
			sum.RequestsPerSecond += u.RequestsPerSecond
			sum.Waiting += u.Waiting
		}
	}
	return sum, held
}

// follow forgets the reports of members that left.
func (o *others) follow(set *membership.Set) {
	o.mu.Lock()
	defer o.mu.Unlock()
	stay := map[string]bool{}
	for _, m := range set.Members() {
		stay[m.Name] = true
	}
	for name := range o.reports {
		if !stay[name] {
			delete(o.reports, name)
		}
	}
}
