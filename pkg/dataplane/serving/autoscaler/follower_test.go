package autoscaler

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// replicated is a fixture for replica a of the replicas a and b.
type replicated struct {
	*fixture
	leads     atomic.Bool
	members   *membership.View
	usages    []Usage
	reports   []*Report
	activated []routing.Key
}

func newReplicated(leads bool) *replicated {
	r := &replicated{fixture: newFixture(), members: membership.NewView(setOf("a", "b"))}
	r.leads.Store(leads)
	o := *r.options
	o.Leading = r.leads.Load
	o.Members = r.members
	o.Report = func(time.Time) []Usage {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.usages
	}
	o.Send = func(_ context.Context, report *Report) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reports = append(r.reports, report)
		return errors.New("no leader")
	}
	o.ActivateNow = func(key routing.Key) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.activated = append(r.activated, key)
	}
	r.Loop = New(o)
	return r
}

func setOf(names ...string) *membership.Set {
	var all []membership.Member
	for _, name := range names {
		all = append(all, membership.Member{Name: name})
	}
	return membership.NewSet("a", all...)
}

// counts returns the numbers of reports and of revisions that were activated so far.
func (r *replicated) counts() (reports, activated int) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.reports), len(r.activated)
}

// reportFromPeer sends a report of replica b about a revision.
func (r *replicated) reportFromPeer(revision routing.Revision, u Usage) {
	u.Key, u.UID = revision.Key, revision.UID
	r.receiveReport(&Report{Member: "b", Usages: []Usage{u}})
}

// TestFollower checks that a follower does not scale, but reports, and activates a revision with waiting requests: at once, and
// every second until a backend starts.
func TestFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newReplicated(false), revisionNamed("a")
		r.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](3)}
		w.start(t)
		w.setRevision(r)
		w.check(t, 10*time.Second+time.Millisecond, r.Key)
		if reports, activated := w.counts(); reports != 10 || activated != 0 {
			t.Errorf("%d reports and %d activations in 10 s, want one a second and none", reports, activated)
		}
		w.mu.Lock()
		w.usages = []Usage{{Key: r.Key, UID: r.UID, Waiting: 1}}
		w.mu.Unlock()
		for range 100 {
			w.Activate(r.Key)
		}
		reports, activated := w.counts()
		if reports != 11 || activated != 1 {
			t.Errorf("%d reports and %d activations, want one more of each at once", reports, activated)
		}
		w.mu.Lock()
		diff := cmp.Diff(&Report{Member: "a", Usages: w.usages}, w.reports[10])
		w.mu.Unlock()
		if diff != "" {
			t.Errorf("reported other than wanted: %s", diff)
		}
		w.check(t, 3*time.Second+time.Millisecond, r.Key)
		if _, activated := w.counts(); activated != 3 {
			t.Errorf("%d activations after 3 s without instance, want one more each full second", activated)
		}
		w.Observe(r.Key, workload.State{UID: r.UID, Desired: 1})
		w.Activate(r.Key)
		w.check(t, 3*time.Second, r.Key)
		if _, activated := w.counts(); activated != 3 {
			t.Errorf("%d activations though an instance starts", activated)
		}
	})
}

// TestLeaderSums checks that the leader sums the load of all gateways, and when a report expires.
func TestLeaderSums(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newReplicated(true), revisionNamed("a")
		now := time.Now()
		w.reportFromPeer(r, Usage{Concurrency: 2, RequestsPerSecond: 3, Waiting: 4})
		w.receiveReport(&Report{Member: "c", Usages: []Usage{{Key: r.Key, UID: r.UID, Concurrency: 100}}})
		want := Sample{Concurrency: 2, RequestsPerSecond: 3, Waiting: 4}
		for _, test := range []struct {
			name   string
			uid    string
			at     time.Duration
			sample Sample
			held   bool
		}{
			{"fresh", "a-uid", staleAfter, want, false},
			{"stale", "a-uid", staleAfter + 1, Sample{}, true},
			{"another revision of that name", "b-uid", 0, Sample{}, false},
		} {
			sample, held := w.peers.sum(r.Key, revisionNamed(test.uid[:1]).UID, now.Add(test.at))
			if sample != test.sample || held != test.held {
				t.Errorf("%s: %v, held %v, want %v, %v", test.name, sample, held, test.sample, test.held)
			}
		}
		w.members.Set(setOf("a"))
		if sample, held := w.peers.sum(r.Key, r.UID, now); sample != (Sample{}) || held {
			t.Errorf("a replica that left counts: %v, held %v", sample, held)
		}
	})
}

// TestLeaderScalesByReports checks that reports alone scale a revision, that it stays above zero while a replica that had
// requests does not report, and that it scales to zero once that replica reports none.
func TestLeaderScalesByReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newReplicated(true), revisionNamed("a")
		w.start(t)
		w.setRevision(r)
		w.reportFromPeer(r, Usage{Waiting: 1, Concurrency: 1})
		w.check(t, 0, r.Key, 1)
		for range 60 {
			w.reportFromPeer(r, Usage{Concurrency: 170})
			w.after(time.Second, r.Key)
		}
		scales := w.after(0, r.Key)
		if last := scales[len(scales)-1]; last != 3 {
			t.Errorf("scales = %v, want 3 for 170 requests in flight at another replica", scales)
		}
		scales = w.after(time.Hour, r.Key)
		if last := scales[len(scales)-1]; last != 1 {
			t.Errorf("scales = %v, want 1 while the replica with requests does not report", scales)
		}
		w.receiveReport(&Report{Member: "b"})
		scales = w.after(time.Minute+tickInterval, r.Key)
		if last := scales[len(scales)-1]; last != 0 {
			t.Errorf("scales = %v, want 0 once there are no requests anywhere", scales)
		}
	})
}

// TestBecomingLeader checks that running backends are kept for a stable window when a replica becomes leader.
func TestBecomingLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, one, many := newReplicated(false), revisionNamed("a"), revisionNamed("b")
		w.start(t)
		for _, r := range []struct {
			routing.Revision
			n int32
		}{{one, 1}, {many, 5}} {
			w.setRevision(r.Revision)
			w.Observe(r.Key, workload.State{UID: r.UID, Desired: r.n, Ready: r.n})
		}
		w.check(t, time.Hour, one.Key)
		w.leads.Store(true)
		w.check(t, time.Minute-tickInterval, one.Key)
		w.check(t, 0, many.Key)
		if w.check(t, 2*time.Minute, one.Key, 0); len(w.after(0, many.Key)) == 0 {
			t.Error("many instances without requests stay for more than a window")
		}
		w.leads.Store(false)
		before := len(w.after(2*time.Second, many.Key))
		w.Observe(many.Key, workload.State{UID: many.UID, Desired: 9, Ready: 9})
		if after := len(w.after(time.Hour, many.Key)); after != before {
			t.Errorf("scaled %d times after another replica became leader", after-before)
		}
	})
}

// TestActivatedByPeer checks that a backend that another replica started is kept, and that the leader's own scale to zero is
// not mistaken for such an activation.
func TestActivatedByPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newReplicated(true), revisionNamed("a")
		w.silent = true
		w.start(t)
		w.setRevision(r)
		w.Observe(r.Key, workload.State{UID: r.UID, Desired: 0})
		w.after(time.Second, r.Key)
		w.Observe(r.Key, workload.State{UID: r.UID, Desired: 1})
		w.after(time.Second, r.Key)
		w.Observe(r.Key, workload.State{UID: r.UID, Desired: 1, Ready: 1})
		w.check(t, 50*time.Second, r.Key)
		if scales := w.after(12*time.Second, r.Key); len(scales) == 0 {
			t.Error("an instance without requests stays for more than a window")
		}
		// The workload publishes an outdated state.
		w.Observe(r.Key, workload.State{UID: r.UID, Desired: 1, Ready: 1})
		w.after(time.Second, r.Key)
		w.Observe(r.Key, workload.State{UID: r.UID})
		for _, scale := range w.after(time.Hour, r.Key) {
			if scale != 0 {
				t.Errorf("scales = %v, want 0 only", w.scales[r.Key])
				break
			}
		}
	})
}

// TestUsageHandler posts a report to the leader.
func TestUsageHandler(t *testing.T) {
	w, r := newReplicated(true), revisionNamed("a")
	server := httptest.NewTLSServer(w.UsageHandler())
	defer server.Close()
	leader := membership.Member{Name: "a", Address: server.Listener.Addr().String()}
	report := &Report{Member: "b", Usages: []Usage{{Key: r.Key, UID: r.UID, Concurrency: 1.5, RequestsPerSecond: 2, Waiting: 3}}}
	// The report has not expired at the time before it.
	before := time.Now()
	if err := report.Post(t.Context(), server.Client().Transport, leader); err != nil {
		t.Fatal(err)
	}
	want := Sample{Concurrency: 1.5, RequestsPerSecond: 2, Waiting: 3}
	if got, _ := w.peers.sum(r.Key, r.UID, before); got != want {
		t.Errorf("%v arrives, want %v", got, want)
	}
	res, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %s", res.Status)
	}
}
