package autoscaler

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// explain returns the explanation of a revision.
func (w *fixture) explain(t *testing.T, r routing.Revision) *Explanation {
	t.Helper()
	synctest.Wait()
	e, err := w.Explain(r.Key, r.UID)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// lines returns the decisions of an explanation, oldest first, as "from>to reason: message".
func (e *Explanation) lines() []string {
	var all []string
	for _, d := range e.Decisions {
		all = append(all, fmt.Sprintf("%d>%d %s: %s", d.From, d.To, d.Reason, d.Message))
	}
	slices.Reverse(all)
	return all
}

// coldStartsOf makes the gateway return cold starts once.
func (w *fixture) coldStartsOf(all ...ColdStart) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending := all
	w.options.ColdStarts = func() []ColdStart {
		w.mu.Lock()
		defer w.mu.Unlock()
		now := pending
		pending = nil
		return now
	}
}

// TestExplainFromZeroToZero follows a revision from an activating request to zero. The decisions are recorded when the scale or the
// reason changes, not at each tick.
func TestExplainFromZeroToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		r.Autoscaling = routing.Autoscaling{Target: ptr.To(10.0), Retention: ptr.To(30 * time.Second)}
		w.start(t)
		w.setRevision(r)
		e := w.explain(t, r)
		if e.Desired != 0 || e.Reason != reasonNoRequests || e.Decisions != nil || e.Keepers != nil || w.registry.revisions[r.Key].history != nil {
			t.Errorf("at zero: %+v", e)
		}
		received := time.Now()
		w.coldStartsOf(ColdStart{Key: r.Key, UID: r.UID, Request: "GET a.example.com/x", Received: received})
		w.setLoad(r.Key, Sample{Concurrency: 12, Waiting: 1})
		w.Activate(r.Key)
		if e = w.explain(t, r); e.Message != "Activated by GET a.example.com/x." || e.Activated == nil || e.Activated.Request != "GET a.example.com/x" {
			t.Errorf("activated: %+v", e)
		}
		w.setLoad(r.Key, Sample{Concurrency: 12})
		w.after(2*time.Minute, r.Key)
		e = w.explain(t, r)
		if e.Desired != 2 || e.Ready != 2 || e.Target != 7 || e.Capacity != 10 || e.Stable < 11.9 || e.Stable > 12.1 {
			t.Errorf("with load: %+v", e)
		}
		if want := []Keeper{
			{reasonStableAverage, "Stable average of 12 requests in flight at a target of 7 per instance needs 2 instances."},
		}; !cmp.Equal(e.Keepers, want) {
			t.Errorf("with load the last instance is kept by %v, want %v", e.Keepers, want)
		}
		w.setLoad(r.Key, Sample{})
		w.after(time.Minute+4*time.Second, r.Key)
		e = w.explain(t, r)
		until := e.Decisions[0].At.Add(30 * time.Second).UTC().Format(time.RFC3339)
		if want := []Keeper{{reasonRetention, "Without requests the last instance stays for the retention period of 30s, until " + until + "."}}; !cmp.Equal(e.Keepers, want) {
			t.Errorf("without load the last instance is kept by %v, want %v", e.Keepers, want)
		}
		w.after(time.Minute, r.Key)
		e = w.explain(t, r)
		want := []string{
			"0>1 RequestWaiting: Activated by GET a.example.com/x.",
			"1>2 PanicAverage: Panic mode, which does not scale down until ",
			"2>2 StableAverage: Stable average of ",
			"2>1 StableAverage: Stable average of ",
			"1>1 ScaleToZeroPodRetention: Without requests the last instance stays for the retention period of 30s, until " + until + ".",
			"1>0 NoRequests: No requests in the stable window of 1m0s.",
		}
		got := e.lines()
		if len(got) != len(want) {
			t.Fatalf("decisions\n%s", strings.Join(got, "\n"))
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("decision %d is %q, want %q", i, got[i], want[i])
			}
		}
		if e.Stable != 0 || e.Keepers != nil {
			t.Errorf("at zero again: %+v", e)
		}
		if e.Activated == nil || !e.Activated.Received.Equal(received) {
			t.Errorf("activated by %+v", e.Activated)
		}
	})
}

// TestCauses covers the reason and the sentence of each kind of decision.
func TestCauses(t *testing.T) {
	unready := func(c *config) { c.Started = false }
	routed := func(c *config) {}
	const s = time.Second
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		options routing.Autoscaling
		config  func(*config)
		in      []input
		want    string
	}{
		"up rate": {
			config: func(c *config) { c.MaxScaleUpRate = 2; c.PanicThreshold = 1e9 },
			in:     []input{{Sampled: true, Stable: 700, Panic: 700, Ready: 1, Desired: 1}},
			want:   "2 MaxScaleUpRate: Stable average of 700 requests in flight at a target of 70 per instance needs 10 instances; max-scale-up-rate allows 2 now.",
		},
		"down rate": {
			config: routed,
			in:     []input{{Sampled: true, Stable: 1, Panic: 1, Ready: 8, Desired: 8}},
			want:   "4 MaxScaleDownRate: Stable average of 1 requests in flight at a target of 70 per instance needs 1 instance; max-scale-down-rate keeps 4 now.",
		},
		"panic": {
			config: routed,
			in:     []input{{Sampled: true, Stable: 70, Panic: 345.6, Ready: 1, Desired: 1}},
			want:   "5 PanicAverage: Panic mode, which does not scale down until 2026-01-02T03:05:05Z at the earliest: panic average of 346 requests in flight at a target of 70 per instance needs 5 instances.",
		},
		"requests per second": {
			options: routing.Autoscaling{RPS: true},
			config:  routed,
			in:      []input{{Sampled: true, Stable: 150, Panic: 150, Ready: 2, Desired: 2}},
			want:    "2 StableAverage: Stable average of 150 requests per second at a target of 140 per instance needs 2 instances.",
		},
		"scale-down delay": {
			options: routing.Autoscaling{ScaleDownDelay: ptr.To(15 * s)},
			config:  routed,
			in: []input{
				{Sampled: true, Stable: 140, Panic: 140, Ready: 2, Desired: 2},
				{Sampled: true, Stable: 70, Panic: 70, Ready: 2, Desired: 2, Now: start.Add(2 * s)},
			},
			want: "2 ScaleDownDelay: Stable average of 70 requests in flight at a target of 70 per instance needs 1 instance; the scale-down delay of 15s keeps 2 until 2026-01-02T03:04:20Z.",
		},
		"activation scale": {
			options: routing.Autoscaling{Activation: ptr.To[int32](3)},
			config:  routed,
			in:      []input{{Waiting: 1}},
			want:    "3 ActivationScale: The activation scale is 3.",
		},
		"minimum": {
			options: routing.Autoscaling{Min: ptr.To[int32](3)},
			config:  routed,
			in:      []input{{}},
			want:    "3 MinScale: The minimum scale is 3.",
		},
		"initial": {
			options: routing.Autoscaling{Initial: ptr.To[int32](3)},
			config:  unready,
			in:      []input{{}},
			want:    "3 InitialScale: The initial scale is 3.",
		},
		"maximum": {
			options: routing.Autoscaling{Max: ptr.To[int32](3)},
			config:  routed,
			in:      []input{{Sampled: true, Stable: 700, Panic: 100, Ready: 3, Desired: 3}},
			want:    "3 MaxScale: 10 instances would be needed; the maximum scale is 3.",
		},
		"no scale to zero": {
			config: func(c *config) { c.ScaleToZero = false },
			in:     []input{{Sampled: true, Ready: 1, Desired: 1}},
			want:   "1 ScaleToZeroDisabled: Scaling to zero is disabled by enable-scale-to-zero of config-autoscaler.",
		},
		"just started": {
			config: routed,
			in:     []input{{Sampled: true, Ready: 1, Desired: 1}},
			want:   "1 StableWindow: The last instance stays for the stable window of 1m0s after it became ready, until 2026-01-02T03:05:05Z.",
		},
		"a missing gateway": {
			config: routed,
			in:     []input{{Sampled: true, Ready: 1, Desired: 1, Stale: true, Now: start.Add(time.Hour)}},
			want:   "1 GatewayMissing: A gateway that stopped reporting may have requests.",
		},
		"failing": {
			config: routed,
			in:     []input{{Sampled: true, Stable: 700, Panic: 100, Desired: 1, Waiting: 700, Failing: true}},
			want:   "1 Failing: The newest instances do not become ready, so waiting requests start no more.",
		},
		"another replica": {
			config: routed,
			in:     []input{{Desired: 1, Activated: true}},
			want:   "1 ActivatedByAnotherReplica: Another replica started an instance for a waiting request.",
		},
		"without samples the reason stays": {
			config: routed,
			in: []input{
				{Sampled: true, Stable: 140, Panic: 140, Ready: 2, Desired: 2},
				{Stable: 1, Panic: 1, Ready: 2, Desired: 2, Now: start.Add(s)},
			},
			want: "2 StableAverage: Stable average of 140 requests in flight at a target of 70 per instance needs 2 instances.",
		},
		"no route": {
			config: func(c *config) { c.Reachable = false },
			in:     []input{{}},
			want:   "0 NoRequests: No Route refers to the Revision, and it has no requests.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := configOf(tc.options)
			tc.config(&c)
			var m memory
			var d decision
			for _, in := range tc.in {
				if in.Now.IsZero() {
					in.Now = start
				}
				d = decide(&c, &in, &m)
			}
			if got := fmt.Sprintf("%d %s: %s", d.Desired, d.Cause.reason, d.Cause.message(&c)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// TestKeepers covers that all reasons which keep the last backend are listed, whatever decided.
func TestKeepers(t *testing.T) {
	c := configOf(routing.Autoscaling{Min: ptr.To[int32](1), Activation: ptr.To[int32](2), ScaleDownDelay: ptr.To(time.Minute), Retention: ptr.To(time.Minute)})
	now := time.Unix(1000, 0)
	in := &input{Now: now, Sampled: true, Stable: 1, Panic: 200, Waiting: 1, Stale: true}
	var m memory
	decide(&c, in, &m)
	var got []string
	for _, why := range m.keepers(&c, in) {
		got = append(got, why.reason)
		if why.message(&c) == "" {
			t.Errorf("%s has no message", why.reason)
		}
	}
	want := []string{reasonMinScale, reasonRequest, reasonStableAverage, reasonPanicAverage, reasonScaleDownDelay, reasonActivationScale, reasonGatewayMissing, reasonStableWindow}
	if !slices.Equal(got, want) {
		t.Errorf("the last instance is kept by %q, want %q", got, want)
	}
}

// TestHistoryIsBounded makes more decisions and cold starts than are remembered.
func TestHistoryIsBounded(t *testing.T) {
	r := &revision{key: revisionNamed("a").Key}
	now := time.Unix(0, 0)
	for i := range int32(100) {
		r.record(&input{Now: now}, &decision{Desired: i + 1, Cause: cause{reason: reasonMinScale}}, i)
		r.history.addColdStart(ColdStart{Received: now.Add(time.Duration(i) * time.Second)})
	}
	r.record(&input{Now: now}, &decision{Desired: 100, Cause: cause{reason: reasonMinScale}}, 100)
	h := r.history
	if len(h.decisions) != maxDecisions || h.decisions[maxDecisions-1].To != 100 || h.decisions[0].To != 91 {
		t.Errorf("%d decisions: %+v", len(h.decisions), h.decisions)
	}
	if len(h.coldStarts) != maxColdStarts || h.coldStarts[maxColdStarts-1].Received.Unix() != 99 {
		t.Errorf("%d cold starts: %+v", len(h.coldStarts), h.coldStarts)
	}
}

// TestExplainByReports checks that the leader learns from reports which request activated a revision at another gateway, also if that
// started the backend first, and the progress of the cold start.
func TestExplainByReports(t *testing.T) {
	for _, started := range []bool{false, true} {
		t.Run(fmt.Sprintf("started=%t", started), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, r := newReplicated(true), revisionNamed("a")
				w.start(t)
				w.setRevision(r)
				w.Observe(r.Key, workload.State{UID: r.UID})
				w.after(time.Second, r.Key)
				reason := reasonRequest
				if started {
					reason = reasonPeerRequest
					w.Observe(r.Key, workload.State{UID: r.UID, Desired: 1})
					synctest.Wait()
				}
				cold := ColdStart{Key: r.Key, UID: r.UID, Request: "POST a/b", Received: time.Now()}
				report := func() {
					w.receiveReport(&Report{Member: "b", Usages: []Usage{{Key: r.Key, UID: r.UID, Waiting: 1}}, ColdStarts: []ColdStart{cold}})
					synctest.Wait()
				}
				report()
				e := w.explain(t, r)
				if want := []string{"0>1 " + reason + ": Activated by POST a/b."}; !slices.Equal(e.lines(), want) {
					t.Errorf("decisions %q, want %q", e.lines(), want)
				}
				if e.Replica != "a" || e.Activated == nil || e.Activated.Gateway != "b" {
					t.Errorf("%+v", e)
				}
				cold.Granted, cold.Backend = time.Now(), "pod"
				report()
				cold.Responded = time.Now()
				report()
				want := cold
				want.Gateway = "b"
				if e := w.explain(t, r); !cmp.Equal(e.ColdStarts, []ColdStart{want}) {
					t.Errorf("cold starts %+v, want %+v", e.ColdStarts, want)
				}
				// Another Revision of that name has none.
				other := r
				other.UID = "other"
				w.setRevision(other)
				if e := w.explain(t, other); e.ColdStarts != nil || e.Decisions != nil {
					t.Errorf("the next Revision of that name has %+v", e)
				}
			})
		})
	}
}

// TestJoin covers which request is named as the cause of an activation.
func TestJoin(t *testing.T) {
	now := time.Unix(1000, 0)
	received := func(ago time.Duration) ColdStart { return ColdStart{Request: "GET r/", Received: now.Add(-ago)} }
	responded := func(ago time.Duration) ColdStart {
		c := received(ago)
		c.Granted, c.Responded = now, now
		return c
	}
	for name, test := range map[string]struct {
		before, after ColdStart
		later, want   bool
	}{
		"known before":             {before: received(time.Second), want: true},
		"known later":              {after: received(time.Second), want: true},
		"after another decision":   {after: received(time.Second), later: true, want: true},
		"by a clock that is ahead": {after: received(-time.Second), want: true},
		"long waiting":             {before: received(30 * time.Second), want: true},
		"already responded":        {before: responded(time.Second), want: true},
		"an earlier cold start":    {before: responded(6 * time.Second)},
		"none":                     {},
	} {
		t.Run(name, func(t *testing.T) {
			r := &revision{history: &history{}}
			if !test.before.Received.IsZero() {
				r.history.addColdStart(test.before)
			}
			r.record(&input{Now: now, Waiting: 1}, &decision{Desired: 1, Cause: cause{reason: reasonRequest}}, 0)
			if test.later {
				r.record(&input{Now: now.Add(2 * time.Second)}, &decision{Desired: 1, Cause: cause{reason: reasonStableAverage}}, 1)
			}
			if !test.after.Received.IsZero() {
				r.history.addColdStart(test.after)
			}
			if got := r.history.decisions[0].Request == "GET r/" && r.history.activated != nil; got != test.want {
				t.Errorf("named: %t, want %t", got, test.want)
			}
		})
	}
}

// TestReportedColdStartsAreBounded checks that the strings of another replica are cut.
func TestReportedColdStartsAreBounded(t *testing.T) {
	w, r := newReplicated(true), revisionNamed("a")
	w.setRevision(r)
	long := strings.Repeat("é", 1<<20)
	w.receiveReport(&Report{Member: long, ColdStarts: []ColdStart{{Key: r.Key, UID: r.UID, Request: long, Backend: long}}})
	c := w.registry.revisions[r.Key].history.coldStarts[0]
	if len(c.Request) > maxRequest || len(c.Backend) > maxName || len(c.Gateway) > maxName || !strings.HasSuffix(c.Request, "é") {
		t.Errorf("%d, %d and %d bytes", len(c.Request), len(c.Backend), len(c.Gateway))
	}
}

// TestFollowerReportsColdStarts checks that cold starts are reported until the leader has received them, and are not explained by a
// follower.
func TestFollowerReportsColdStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newReplicated(false), revisionNamed("a")
		w.coldStartsOf(ColdStart{Key: r.Key, UID: r.UID, Request: "GET a/"})
		w.start(t)
		w.setRevision(r)
		// Each report fails.
		w.after(2*time.Second+time.Millisecond, r.Key)
		w.mu.Lock()
		reports := w.reports
		w.mu.Unlock()
		if len(reports) != 2 || len(reports[0].ColdStarts) != 1 || len(reports[1].ColdStarts) != 1 {
			t.Errorf("%d reports, want 2 with the cold start", len(reports))
		}
		if _, err := w.Explain(r.Key, r.UID); !errors.Is(err, ErrFollowing) {
			t.Errorf("a follower explains: %v", err)
		}
		// A new leader remembers nothing, and says since when it decides.
		w.Observe(r.Key, workload.State{UID: r.UID, Desired: 2, Ready: 2})
		w.leads.Store(true)
		began := time.Now()
		w.after(sampleInterval, r.Key)
		e := w.explain(t, r)
		if want := []string{"2>2 Running: 2 instances ran when this replica began to decide; the load is not known yet."}; !slices.Equal(e.lines(), want) {
			t.Errorf("decisions %q, want %q", e.lines(), want)
		}
		if e.Since.Before(began) || e.Since.After(began.Add(sampleInterval)) {
			t.Errorf("it decides since %s, want since %s", e.Since, began)
		}
	})
}

// TestExplanationHandler requests explanations from another replica.
func TestExplanationHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newReplicated(true), revisionNamed("a")
		r.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](2)}
		w.start(t)
		w.setRevision(r)
		want := w.explain(t, r)
		transport := handled{w.ExplanationHandler()}
		leader := membership.Member{Name: "a", Address: "192.0.2.1:8444"}
		got, err := RequestExplanation(t.Context(), transport, leader, r.Key, r.UID)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Decision{}), cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".waited" }, cmp.Ignore())); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if _, err := RequestExplanation(t.Context(), transport, leader, r.Key, "other"); !errors.Is(err, ErrUnknown) {
			t.Errorf("an unknown Revision: %v", err)
		}
		w.leads.Store(false)
		if _, err := RequestExplanation(t.Context(), transport, leader, r.Key, r.UID); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("a replica that does not lead: %v", err)
		}
	})
}

// handled is a transport to a handler.
type handled struct{ http.Handler }

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}
