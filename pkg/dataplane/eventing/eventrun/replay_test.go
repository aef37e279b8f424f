package eventrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// accepted is the time at which the first events of an archive were accepted.
var accepted = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newArchive returns archives on a real event log. The Broker orders accepted requests with a number of events each, a second apart; events
// are numbered, and have some bytes of data.
func newArchive(t *testing.T, requests, each, bytesEach int) (*archive.Store, []string) {
	t.Helper()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	store := archive.NewStore(archive.Options{
		Log: log, MaxRetention: time.Hour, MaxBytes: 1 << 30, Clock: clock.RealClock{}, Logger: testr.New(t),
		Gone: func(context.Context, []types.UID) (sets.Set[types.UID], error) { return nil, nil },
	})
	if err := store.Set(orders, ordersUID, &eventing.Archive{Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for request := range requests {
		var events []*event.Event
		for range each {
			e := letter("", len(ids)).Event
			e.Data = bytes.Repeat([]byte("x"), bytesEach)
			events, ids = append(events, e), append(ids, fmt.Sprint(len(ids)))
		}
		store.Begin(t.Context(), ordersUID, accepted.Add(time.Duration(request)*time.Second), events)()
	}
	return store, ids
}

// replayTo returns a replay of all events to the Trigger bill, or to the Broker without one.
func replayTo(target eventing.Key, stored eventing.ReplayProgress) eventing.Run {
	run := eventing.Run{ID: "run-1", Replay: &eventing.Replay{Broker: orders, BrokerUID: ordersUID, To: accepted.Add(time.Hour), Stored: stored}}
	if target == consumer {
		run.Consumer, run.ConsumerUID = consumer, consumerUID
	}
	return run
}

// newReplays returns Runs with archives.
func newReplays(t *testing.T, to Target, archives Archives) (*Runs, <-chan struct{}) {
	t.Helper()
	runs, changed := newRuns(t, to, nil)
	runs.options.Archives = archives
	return runs, changed
}

// now returns the progress of the run at the moment, as if it was stored.
func (r *Runs) now() eventing.ReplayProgress {
	r.mu.Lock()
	p := r.all[name].progress
	r.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.Replay
}

// expectMarked checks that events have the attribute of the run, and their original trace.
func expectMarked(t *testing.T, events []*event.Event) {
	t.Helper()
	for _, e := range events {
		if run, _ := e.Get(event.Run); run != "run-1" {
			t.Errorf("event %s has the run %q", idOf(e), run)
		}
		if len(e.Headers) != 1 || !strings.HasPrefix(e.Headers[0].Value, "00-") {
			t.Errorf("event %s has the headers %v", idOf(e), e.Headers)
		}
	}
}

// TestReplayKills kills the process at every batch, before and after its effect, and continues with the progress that was stored at the kill, or
// at the start: no event is lost, the order is kept, and only the events after the stored progress are repeated.
func TestReplayKills(t *testing.T) {
	// Each event fills a batch, and requests differ from records and pages.
	const requests, each = 3, 3
	archives, want := newArchive(t, requests, each, batchBytes)
	for operation := range len(want) {
		for _, after := range []bool{false, true} {
			for _, newest := range []bool{false, true} {
				for _, key := range []eventing.Key{consumer, orders} {
					t.Run(fmt.Sprintf("%s %d after=%t newest=%t", key.Kind, operation, after, newest), func(t *testing.T) {
						to := &target{}
						killed := newProcess(nil, to, operation, after)
						runs, _ := newReplays(t, killed, archives)
						stored := eventing.ReplayProgress{}
						runs.Start(name, replayTo(key, stored))
						<-killed.killed
						if newest {
							stored = runs.now()
						}
						runs.Close()
						first := to.ids()

						runs, ended := newReplays(t, to, archives)
						runs.Start(name, replayTo(key, stored))
						<-ended
						progress := runs.Start(name, replayTo(key, stored))
						if !progress.Ended || progress.Err != nil || progress.Replay.Queued != int64(len(want)) || !progress.Replay.LastEvent.Equal(accepted.Add((requests-1)*time.Second)) {
							t.Errorf("progress %+v", progress)
						}
						if !slices.Equal(first, want[:len(first)]) || len(first) < operation {
							t.Errorf("queued %q before the kill", first)
						}
						begin := 0
						if newest {
							begin = operation
						}
						if second := to.ids()[len(first):]; !slices.Equal(second, want[begin:]) {
							t.Errorf("queued %q after the kill, want %q", second, want[begin:])
						}
						expectMarked(t, to.events)
					})
				}
			}
		}
	}
}

// TestReplaySelect queues the events of some time that a selector matches, goes on after an event that is too large, and queues others of its batch
// once. Batches and pages do not change the order.
func TestReplaySelect(t *testing.T) {
	archives, _ := newArchive(t, 30, 100, 10)
	to := &target{}
	// Nothing of a refused batch is queued.
	to.refuseAll = func(events []*event.Event) error {
		for _, e := range events {
			if idOf(e) == "1200" {
				return eventing.Reject(eventing.ErrTooLarge, "too large")
			}
		}
		return nil
	}
	runs, ended := newReplays(t, to, archives)
	spec := replayTo(orders, eventing.ReplayProgress{})
	spec.Filters = []eventing.Filter{{Exact: map[string]string{"type": "even"}}}
	spec.Replay.From, spec.Replay.To = accepted.Add(5*time.Second), accepted.Add(25*time.Second)
	runs.Start(name, spec)
	<-ended
	var want []string
	for i := 500; i < 2500; i += 2 {
		if i != 1200 {
			want = append(want, fmt.Sprint(i))
		}
	}
	if got := to.ids(); !slices.Equal(got, want) {
		t.Errorf("queued %d events: %q", len(got), got)
	}
	if p := runs.Start(name, spec); p.Replay.Queued != int64(len(want)) || p.Replay.Failed != 1 || !p.Ended {
		t.Errorf("progress %+v", p)
	}
	expectMarked(t, to.events)
}

// TestReplayAhead waits for stored progress after a number of events: that bounds what a crash repeats.
func TestReplayAhead(t *testing.T) {
	archives, want := newArchive(t, 10, 500, 10)
	to := &target{}
	runs, changed := newReplays(t, to, archives)
	spec := replayTo(consumer, eventing.ReplayProgress{})
	runs.Start(name, spec)
	<-changed
	if n := len(to.ids()); n < maxAhead || n >= maxAhead+batchItems {
		t.Errorf("%d events were queued ahead, want %d", n, maxAhead)
	}
	progress := runs.Start(name, spec)
	if progress.Ended || progress.Replay.Queued != int64(len(to.ids())) || progress.Replay.Position == "" {
		t.Errorf("the progress to store is %+v", progress)
	}
	spec.Replay = &eventing.Replay{Broker: orders, BrokerUID: ordersUID, To: spec.Replay.To, Stored: progress.Replay}
	runs.Start(name, spec)
	<-changed
	if p := runs.Start(name, spec); !p.Ended || !slices.Equal(to.ids(), want) {
		t.Errorf("queued %d events, progress %+v", len(to.ids()), p)
	}
}

// TestReplayErrors ends a replay whose archive was deleted, or whose position is invalid. Without an archive it succeeds.
func TestReplayErrors(t *testing.T) {
	archives, _ := newArchive(t, 1, 1, 1)
	for position, want := range map[string]error{"1-1-0": eventing.ErrArchiveReplaced, "x": eventing.ErrPosition} {
		to := &target{}
		runs, ended := newReplays(t, to, archives)
		spec := replayTo(consumer, eventing.ReplayProgress{Position: position, Queued: 7})
		runs.Start(name, spec)
		<-ended
		if p := runs.Start(name, spec); !p.Ended || !errors.Is(p.Err, want) || len(to.ids()) > 0 || p.Replay.Queued != 7 {
			t.Errorf("%s: %+v", position, p)
		}
	}
	runs, ended := newReplays(t, &target{}, archives)
	spec := replayTo(consumer, eventing.ReplayProgress{})
	spec.Replay.BrokerUID = "uid-other"
	runs.Start(name, spec)
	<-ended
	if p := runs.Start(name, spec); !p.Ended || p.Err != nil {
		t.Errorf("without an archive: %+v", p)
	}
}

// evicting reports an eviction with each page.
type evicting struct{ Archives }

func (e evicting) Read(ctx context.Context, q archive.Query) (archive.Page, error) {
	page, err := e.Archives.Read(ctx, q)
	page.Evicted = true
	return page, err
}

// TestReplayEvicted reports that events were evicted, also after a restart.
func TestReplayEvicted(t *testing.T) {
	archives, _ := newArchive(t, 1, 1, 1)
	for _, test := range []struct {
		archives Archives
		stored   bool
	}{{evicting{archives}, false}, {archives, true}} {
		runs, ended := newReplays(t, &target{}, test.archives)
		spec := replayTo(consumer, eventing.ReplayProgress{Evicted: test.stored})
		runs.Start(name, spec)
		<-ended
		if p := runs.Start(name, spec); !p.Ended || !p.Replay.Evicted {
			t.Errorf("stored %t: %+v", test.stored, p)
		}
	}
}

// memoryArchive has one page of events, for tests in virtual time.
type memoryArchive int

func (m memoryArchive) Read(context.Context, archive.Query) (page archive.Page, err error) {
	for i := range int(m) {
		next, err := archive.ParsePosition(fmt.Sprintf("1-1-%d", i+1))
		if err != nil {
			return page, err
		}
		page.Events = append(page.Events, archive.Event{Accepted: accepted, Event: letter("", i).Event, Next: next})
		page.Next = next
	}
	return page, nil
}

// TestReplayRate bounds the events per second, for low rates and for ones that make batches.
func TestReplayRate(t *testing.T) {
	for _, perSecond := range []int{2, 100, 700} {
		synctest.Test(t, func(t *testing.T) {
			to := &target{}
			runs, ended := newReplays(t, to, memoryArchive(5*perSecond))
			limited := replayTo(consumer, eventing.ReplayProgress{})
			limited.Rate = perSecond
			begin := time.Now()
			runs.Start(name, limited)
			<-ended
			if len(to.at) != 5*perSecond {
				t.Errorf("%d events were queued", len(to.at))
			}
			// A batch may be ahead.
			if took := time.Since(begin); took < 4500*time.Millisecond || took > 5*time.Second {
				t.Errorf("%d per second: %d events were queued in %s", perSecond, len(to.at), took)
			}
		})
	}
}

// TestReplayWaiting waits while many events are queued for the target, and reports why.
func TestReplayWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &target{}
		free := make(chan struct{})
		to.backlog = func() uint64 {
			select {
			case <-free:
				return maxBatches - 1
			default:
				return maxBatches
			}
		}
		runs, ended := newReplays(t, to, memoryArchive(100))
		spec := replayTo(orders, eventing.ReplayProgress{})
		runs.Start(name, spec)
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time
		if p := runs.Start(name, spec); p.Waiting != "many events are queued for the subscriber" || p.Replay.Queued != 0 || p.Ended {
			t.Errorf("with a long queue: %+v", p)
		}
		close(free)
		<-ended
		if p := runs.Start(name, spec); p.Waiting != "" || p.Replay.Queued != 100 || !p.Ended {
			t.Errorf("at the end: %+v", p)
		}
	})
}
