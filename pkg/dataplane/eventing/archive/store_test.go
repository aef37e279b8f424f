package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// fixture is a store on a real event log.
type fixture struct {
	*Store
	t        *testing.T
	log      *eventlog.Log
	clock    *clocktesting.FakeClock
	registry basemetrics.KubeRegistry

	mu sync.Mutex
	// gone are the Brokers that do not exist. mu guards it.
	gone sets.Set[types.UID]
}

func newFixture(t *testing.T, dir string, change func(*Options)) *fixture {
	t.Helper()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir, Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	f := &fixture{t: t, log: log, clock: clocktesting.NewFakeClock(time.Now()), gone: sets.New[types.UID]()}
	o := Options{
		Log: log, MaxRetention: 24 * time.Hour, MaxBytes: 1 << 20, MaxTotalBytes: 1 << 30, Clock: f.clock, Logger: testr.New(t),
		Gone: func(_ context.Context, brokers []types.UID) (sets.Set[types.UID], error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return sets.New(brokers...).Intersection(f.gone), nil
		},
	}
	if change != nil {
		change(&o)
	}
	f.Store = NewStore(o)
	f.registry = basemetrics.NewKubeRegistry()
	f.registry.CustomMustRegister(f.Store)
	return f
}

// keyOf returns the Broker of a UID such as "ns/a".
func keyOf(broker string) (eventing.Key, types.UID) {
	namespace, name, _ := strings.Cut(broker, "/")
	return eventing.Key{Kind: eventing.Broker, Namespace: namespace, Name: name}, types.UID(namespace + "-" + name)
}

// set sets an archive of an hour with a maximum size for Brokers.
func (f *fixture) set(maxBytes int64, brokers ...string) {
	f.t.Helper()
	for _, broker := range brokers {
		key, uid := keyOf(broker)
		if err := f.Set(key, uid, &eventing.Archive{Retention: time.Hour, MaxBytes: maxBytes}); err != nil {
			f.t.Fatal(err)
		}
	}
}

func newEvent(id string, size int) *event.Event {
	return &event.Event{Attributes: []event.Attribute{
		{Name: event.ID, Value: id}, {Name: event.Source, Value: "/s"}, {Name: "type", Value: "t"}, {Name: "traceparent", Value: "00-1-2-01"},
	}, Data: incompressible(id, size)}
}

// incompressible returns bytes that depend on id and have the same size in the log.
func incompressible(id string, size int) []byte {
	data := make([]byte, size)
	rand.NewChaCha8(sha256.Sum256([]byte(id))).Read(data) //nolint:errcheck // it never fails
	return data
}

// accept archives an event of each ID that a Broker accepts one after the other.
func (f *fixture) accept(broker string, size int, ids ...string) {
	f.t.Helper()
	_, uid := keyOf(broker)
	for _, id := range ids {
		f.Begin(f.t.Context(), uid, f.clock.Now(), []*event.Event{newEvent(id, size)})()
	}
}

// events returns the archived events of a Broker, read in pages from a time on and before another.
func (f *fixture) events(broker string, from, to time.Time, most int) (all []Event) {
	f.t.Helper()
	key, uid := keyOf(broker)
	q := Query{Broker: key, UID: uid, From: from, To: to, MaxEvents: most, MaxBytes: 1 << 20}
	for more := true; more; {
		page, err := f.Read(f.t.Context(), q)
		if err != nil {
			f.t.Fatal(err)
		}
		if len(page.Events) > most {
			f.t.Errorf("a page has %d events, want at most %d", len(page.Events), most)
		}
		if page.More && page.Next == q.At {
			f.t.Fatal("a page does not advance")
		}
		all, q.At, more = append(all, page.Events...), page.Next, page.More
	}
	return all
}

func idsOf(events []Event) (ids []string) {
	for i := range events {
		id, _ := events[i].Event.Get(event.ID)
		ids = append(ids, id)
	}
	return ids
}

// ids returns the IDs of all archived events of a Broker.
func (f *fixture) ids(broker string) []string {
	f.t.Helper()
	return idsOf(f.events(broker, time.Time{}, time.Time{}, 100))
}

func (f *fixture) state(broker string) State {
	f.t.Helper()
	key, uid := keyOf(broker)
	state, err := f.State(f.t.Context(), key, uid)
	if err != nil {
		f.t.Fatal(err)
	}
	return state
}

func (f *fixture) sweep() {
	f.t.Helper()
	if err := f.Sweep(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// exists reports whether a Broker has an archive.
func (f *fixture) exists(broker string) bool {
	f.t.Helper()
	key, uid := keyOf(broker)
	stream, err := f.log.Retained(idOf(key.Namespace, uid))
	if err != nil {
		f.t.Fatal(err)
	}
	_, _, err = stream.State(f.t.Context())
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		f.t.Fatal(err)
	}
	return err == nil
}

func (f *fixture) expectMetrics(name string, want ...string) {
	f.t.Helper()
	help := map[string]string{
		"knative_eventing_archived_total":        "Number of accepted events that were archived.",
		"knative_eventing_archive_missed_total":  "Number of accepted events of Brokers with an archive that could not be archived.",
		"knative_eventing_archive_evicted_total": "Number of events that were deleted from archives for lack of space (reason size) or because of their age.",
	}[name]
	text := "# HELP " + name + " [ALPHA] " + help + "\n# TYPE " + name + " counter\n" + strings.Join(want, "\n") + "\n"
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(text), name); err != nil {
		f.t.Error(err)
	}
}

func numbers(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i))
	}
	return all
}

// TestArchive reads events in the order of their acceptance, with all that they carried, by time, in pages of any size, and also after a restart.
// Brokers without an archive have none.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	large := func(o *Options) { o.MaxBytes = 1 << 30 }
	f := newFixture(t, dir, large)
	f.set(0, "ns/a")
	if all := f.ids("ns/a"); len(all) > 0 || f.state("ns/a") != (State{}) {
		t.Errorf("a new archive has %q, state %+v", all, f.state("ns/a"))
	}
	began := f.clock.Now()
	f.accept("ns/a", 10, "0", "1")
	f.accept("ns/b", 10, "of another Broker")
	f.clock.Step(2 * time.Second)
	_, uid := keyOf("ns/a")
	f.Begin(t.Context(), uid, f.clock.Now(), []*event.Event{newEvent("2", 10), newEvent("3", 10), newEvent("4", 2<<20), newEvent("5", 10)})()
	f.clock.Step(time.Second)
	f.accept("ns/a", 10, "6")
	if err := f.log.Close(); err != nil {
		t.Fatal(err)
	}

	// The clock of the restarted process is behind.
	f = newFixture(t, dir, large)
	f.clock.SetTime(began)
	f.set(0, "ns/a")
	f.accept("ns/a", 10, "7")
	want := numbers("", 8)
	for _, most := range []int{1, 2, 3, 100} {
		if got := idsOf(f.events("ns/a", time.Time{}, time.Time{}, most)); !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %q", most, got)
		}
	}
	all := f.events("ns/a", began.Add(2*time.Second), began.Add(3*time.Second), 100)
	if got := idsOf(all); !slices.Equal(got, want[2:6]) {
		t.Errorf("of a second: %q", got)
	}
	if parent, _ := all[0].Event.Get("traceparent"); parent != "00-1-2-01" || !bytes.Equal(all[0].Event.Data, incompressible("2", 10)) || !all[0].Accepted.Equal(began.Add(2*time.Second)) {
		t.Errorf("read %+v", all[0])
	}
	// An event's position is where the next one begins, also in its text form.
	key, uid := keyOf("ns/a")
	for i := range all {
		at, err := ParsePosition(all[i].Next.String())
		if err != nil || at != all[i].Next {
			t.Fatalf("position %q is %+v, want %+v: %v", all[i].Next, at, all[i].Next, err)
		}
		page, err := f.Read(t.Context(), Query{Broker: key, UID: uid, At: at, MaxEvents: 1, MaxBytes: 1})
		if err != nil || !slices.Equal(idsOf(page.Events), want[i+3:i+4]) || page.Evicted {
			t.Errorf("after event %d: %q, evicted %v: %v", i+2, idsOf(page.Events), page.Evicted, err)
		}
	}
	if got := f.state("ns/a"); !got.First.Equal(began) || got.Last.Before(began) || got.Events != 8 || got.Bytes < 2<<20 {
		t.Errorf("state %+v", got)
	}
	if f.exists("ns/b") {
		t.Error("a Broker without archive has one")
	}
	f.expectMetrics("knative_eventing_archived_total", `knative_eventing_archived_total{namespace=""} 0`, `knative_eventing_archived_total{namespace="ns"} 1`)
}

// An accepted event is counted whatever became of its sender meanwhile: as archived, or as missed.
func TestSenderDisconnects(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.set(1<<20, "ns/a")
	f.accept("ns/a", 10, "first")
	_, uid := keyOf("ns/a")
	const events = 20
	for i := range events {
		ctx, cancel := context.WithCancel(t.Context())
		end := f.Begin(ctx, uid, f.clock.Now(), []*event.Event{newEvent(fmt.Sprint(i), 10)})
		cancel()
		end()
	}
	if ids := f.ids("ns/a"); len(ids) != events+1 {
		t.Errorf("archived %q, want %d events", ids, events+1)
	}
	f.expectMetrics("knative_eventing_archived_total", `knative_eventing_archived_total{namespace=""} 0`, fmt.Sprintf(`knative_eventing_archived_total{namespace="ns"} %d`, events+1))
}

// TestReplyOrder checks that events are archived in the order in which Begin is called, also when the archive does not exist yet: a Broker
// accepts a reply while the sender of the event waits for its answer.
func TestReplyOrder(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	for _, broker := range numbers("ns/", 20) {
		f.set(0, broker)
		_, uid := keyOf(broker)
		want := numbers("", 4)
		var ends []func()
		for _, id := range want {
			ends = append(ends, f.Begin(t.Context(), uid, f.clock.Now(), []*event.Event{newEvent(id, 10)}))
		}
		for _, end := range ends {
			end()
		}
		if ids := f.ids(broker); !slices.Equal(ids, want) {
			t.Errorf("%s has %q, want %q", broker, ids, want)
		}
	}
}

// TestLatePosition continues at the end of an archive, and fails for a position in an archive that was deleted since.
func TestLatePosition(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.set(0, "ns/a")
	f.accept("ns/a", 10, "0")
	key, uid := keyOf("ns/a")
	q := Query{Broker: key, UID: uid, MaxEvents: 10, MaxBytes: 1 << 20}
	read := func(want ...string) {
		t.Helper()
		page, err := f.Read(t.Context(), q)
		if err != nil || !slices.Equal(idsOf(page.Events), want) || page.More || page.Evicted {
			t.Errorf("read %q, more %v, evicted %v, want %q: %v", idsOf(page.Events), page.More, page.Evicted, want, err)
		}
		q.At = page.Next
	}
	read("0")
	read()
	f.accept("ns/a", 10, "1")
	read("1")
	f.clock.Step(time.Hour + time.Minute)
	f.sweep()
	read()
	f.accept("ns/a", 10, "2")
	read("2")
	if err := f.Set(key, uid, nil); err != nil {
		t.Fatal(err)
	}
	f.clock.Step(disabledDelay)
	f.sweep()
	if _, err := f.Read(t.Context(), q); !errors.Is(err, ErrReplaced) {
		t.Errorf("read of a deleted archive: %v", err)
	}
	f.set(0, "ns/a")
	f.accept("ns/a", 10, "3")
	if _, err := f.Read(t.Context(), q); !errors.Is(err, ErrReplaced) {
		t.Errorf("read of another archive: %v", err)
	}
	if got := f.ids("ns/a"); !slices.Equal(got, []string{"3"}) {
		t.Errorf("the new archive has %q", got)
	}
}

// TestEvict bounds an archive: the oldest events are deleted and counted, and a reader learns that it missed some. Other namespaces keep theirs.
func TestEvict(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.set(0, "quiet/q", "noisy/n")
	f.accept("quiet/q", 1000, numbers("q", 20)...)
	f.accept("noisy/n", 10_000, numbers("n", 10)...)
	key, uid := keyOf("noisy/n")
	q := Query{Broker: key, UID: uid, MaxEvents: 5, MaxBytes: 1 << 20}
	page, err := f.Read(t.Context(), q)
	if err != nil || len(page.Events) != 5 {
		t.Fatalf("read %q: %v", idsOf(page.Events), err)
	}
	f.accept("noisy/n", 10_000, numbers("n", 300)[10:]...)
	state := f.state("noisy/n")
	if state.Bytes > 1<<20+1<<17 || state.Bytes < 1<<19 {
		t.Errorf("the archive has %d bytes before the sweep", state.Bytes)
	}
	f.sweep()
	left := f.ids("noisy/n")
	if !slices.Equal(left, numbers("n", 300)[300-len(left):]) || uint64(len(left)) != f.state("noisy/n").Events {
		t.Errorf("%d are left, the state has %d: %q", len(left), f.state("noisy/n").Events, left)
	}
	q.At = page.Next
	page, err = f.Read(t.Context(), q)
	if err != nil || !page.Evicted || !slices.Equal(idsOf(page.Events), left[:5]) {
		t.Errorf("after the eviction: %q, evicted %v: %v", idsOf(page.Events), page.Evicted, err)
	}
	q.At = page.Next
	if page, err = f.Read(t.Context(), q); err != nil || page.Evicted || !slices.Equal(idsOf(page.Events), left[5:10]) {
		t.Errorf("after that: %q, evicted %v: %v", idsOf(page.Events), page.Evicted, err)
	}
	if all := f.ids("quiet/q"); len(all) != 20 {
		t.Errorf("the other namespace has %d", len(all))
	}
	f.expectMetrics("knative_eventing_archive_evicted_total",
		`knative_eventing_archive_evicted_total{namespace="",reason="age"} 0`, `knative_eventing_archive_evicted_total{namespace="",reason="size"} 0`,
		`knative_eventing_archive_evicted_total{namespace="noisy",reason="age"} 0`, fmt.Sprintf(`knative_eventing_archive_evicted_total{namespace="noisy",reason="size"} %d`, 300-len(left)),
		`knative_eventing_archive_evicted_total{namespace="quiet",reason="age"} 0`, `knative_eventing_archive_evicted_total{namespace="quiet",reason="size"} 0`)
}

// TestLimits bounds the archives of a Broker, of a namespace and of all, whichever is less.
func TestLimits(t *testing.T) {
	for name, test := range map[string]struct {
		// brokers has the configured size and the number of accepted events, of 10,000 bytes, by Broker.
		brokers map[string][2]int64
		total   int64
		// whole are the Brokers that keep all, most are the bytes that the others have at most.
		whole []string
		most  map[string]int64
	}{
		"Broker":                {map[string][2]int64{"ns/a": {200_000, 50}, "ns/b": {0, 30}}, 1 << 30, []string{"ns/b"}, map[string]int64{"ns/a": 200_000}},
		"more than the most":    {map[string][2]int64{"ns/a": {1 << 40, 150}}, 1 << 30, nil, map[string]int64{"ns/a": 1 << 20}},
		"namespace":             {map[string][2]int64{"ns/a": {0, 10}, "ns/b": {0, 60}, "ns/c": {0, 70}, "other/d": {0, 90}}, 1 << 30, []string{"ns/a", "other/d"}, map[string]int64{"ns/b": 500_000, "ns/c": 500_000}},
		"all":                   {map[string][2]int64{"a/a": {0, 10}, "b/b": {0, 60}, "c/c": {0, 70}}, 1 << 20, []string{"a/a"}, map[string]int64{"b/b": 500_000, "c/c": 500_000}},
		"all and one namespace": {map[string][2]int64{"a/a": {0, 30}, "b/b": {0, 40}, "b/c": {0, 50}}, 1 << 20, []string{"a/a"}, map[string]int64{"b/b": 400_000, "b/c": 400_000}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, t.TempDir(), func(o *Options) { o.MaxTotalBytes = test.total })
			for broker, b := range test.brokers {
				f.set(b[0], broker)
				f.accept(broker, 10_000, numbers("", int(b[1]))...)
			}
			f.sweep()
			for _, broker := range test.whole {
				if got := len(f.ids(broker)); int64(got) != test.brokers[broker][1] {
					t.Errorf("%s has %d events left of %d", broker, got, test.brokers[broker][1])
				}
			}
			for broker, most := range test.most {
				if bytes := f.state(broker).Bytes; bytes > most || bytes < most/3 {
					t.Errorf("%s has %d bytes, want at most %d", broker, bytes, most)
				}
			}
			before := map[string]State{}
			for broker := range test.brokers {
				before[broker] = f.state(broker)
			}
			f.sweep()
			for broker := range test.brokers {
				if again := f.state(broker); again != before[broker] {
					t.Errorf("a second sweep leaves %+v of %+v", again, before[broker])
				}
			}
		})
	}
}

// TestAge deletes and counts old events, by the retention time of the Broker and the operator's.
func TestAge(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.set(0, "ns/a")
	long, uid := keyOf("ns/long")
	if err := f.Set(long, uid, &eventing.Archive{Retention: 1000 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	f.accept("ns/a", 10, "0", "1")
	f.accept("ns/long", 10, "0")
	f.sweep()
	if all := f.ids("ns/a"); len(all) != 2 {
		t.Errorf("%q are left before the retention time", all)
	}
	f.clock.Step(2 * time.Hour)
	f.sweep()
	if a, long := f.ids("ns/a"), f.ids("ns/long"); len(a) > 0 || len(long) != 1 {
		t.Errorf("%q and %q are left after the retention time", a, long)
	}
	f.clock.Step(23 * time.Hour)
	f.sweep()
	if all := f.ids("ns/long"); len(all) > 0 {
		t.Errorf("%q are left after the maximum retention time", all)
	}
	f.expectMetrics("knative_eventing_archive_evicted_total",
		`knative_eventing_archive_evicted_total{namespace="",reason="age"} 0`, `knative_eventing_archive_evicted_total{namespace="",reason="size"} 0`,
		`knative_eventing_archive_evicted_total{namespace="ns",reason="age"} 3`, `knative_eventing_archive_evicted_total{namespace="ns",reason="size"} 0`)
}

// TestSwitch archives from the time at which an archive is set, until it is removed. The archive is deleted an hour after that, and the one of a
// deleted Broker at once. One of an unknown configuration is kept, and continued by Keep.
func TestSwitch(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	key, uid := keyOf("ns/a")
	f.accept("ns/a", 10, "before")
	if err := f.Keep(t.Context(), key, uid); err != nil {
		t.Fatal(err)
	}
	f.accept("ns/a", 10, "unknown")
	f.set(0, "ns/a", "ns/deleted")
	f.accept("ns/a", 10, "0")
	f.accept("ns/deleted", 10, "0")
	disable := func() {
		t.Helper()
		if err := f.Set(key, uid, nil); err != nil {
			t.Fatal(err)
		}
	}
	disable()
	f.accept("ns/a", 10, "off")
	f.clock.Step(disabledDelay - time.Second)
	disable()
	f.sweep()
	if all := f.ids("ns/a"); !slices.Equal(all, []string{"0"}) {
		t.Errorf("%q are left before the hour has passed", all)
	}
	f.set(0, "ns/a")
	f.accept("ns/a", 10, "1")
	f.clock.Step(time.Second)
	f.sweep()
	if all := f.ids("ns/a"); !slices.Equal(all, []string{"0", "1"}) {
		t.Errorf("%q are left of an archive that was disabled for less than an hour", all)
	}

	other := NewStore(f.options)
	if err := errors.Join(other.Sweep(t.Context()), other.Keep(t.Context(), key, uid)); err != nil {
		t.Fatal(err)
	}
	other.Begin(t.Context(), uid, f.clock.Now(), []*event.Event{newEvent("kept", 10)})()
	if all := f.ids("ns/a"); !slices.Equal(all, []string{"0", "1", "kept"}) {
		t.Errorf("%q are left of an archive whose configuration is unknown", all)
	}

	disable()
	f.clock.Step(disabledDelay)
	f.gone.Insert("ns-deleted")
	deleted, _ := keyOf("ns/deleted")
	f.Remove(deleted)
	f.sweep()
	if f.exists("ns/a") || f.exists("ns/deleted") {
		t.Errorf("the archive exists: %v, of the deleted Broker: %v", f.exists("ns/a"), f.exists("ns/deleted"))
	}
	f.sweep()
}

// TestFullDisk counts accepted events that cannot be archived because the disk is full, but no events whose sender gets no answer.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir, Logger: testr.New(t), MinFreeBytes: 1 << 60})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, t.TempDir(), func(o *Options) { o.Log = log })
	defer func() {
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}()
	f.set(0, "ns/a")
	f.accept("ns/a", 10, "0", "1")
	f.expectMetrics("knative_eventing_archive_missed_total", `knative_eventing_archive_missed_total{namespace=""} 0`, `knative_eventing_archive_missed_total{namespace="ns"} 2`)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, uid := keyOf("ns/a")
	f.Begin(canceled, uid, f.clock.Now(), []*event.Event{newEvent("no answer", 10)})()
	f.expectMetrics("knative_eventing_archive_missed_total", `knative_eventing_archive_missed_total{namespace=""} 0`, `knative_eventing_archive_missed_total{namespace="ns"} 2`)
}

// TestConcurrent archives from several goroutines, in a full archive, while it is swept. Nothing is lost but what was evicted.
func TestConcurrent(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.set(0, "ns/a")
	f.accept("ns/a", 10_000, "8-0")
	ctx, cancel := context.WithCancel(t.Context())
	var running, sweeping sync.WaitGroup
	sweeping.Go(func() {
		for ctx.Err() == nil {
			if err := f.Sweep(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for i := range 8 {
		running.Go(func() { f.accept("ns/a", 10_000, numbers(fmt.Sprint(i, "-"), 40)...) })
	}
	running.Wait()
	cancel()
	sweeping.Wait()
	f.sweep()
	left := f.ids("ns/a")
	if state := f.state("ns/a"); state.Bytes > 1<<20 || len(left) == 0 {
		t.Errorf("%d are left with %d bytes", len(left), state.Bytes)
	}
	last := map[string]int{}
	for _, id := range left {
		var worker, number int
		if _, err := fmt.Sscanf(id, "%d-%d", &worker, &number); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint(worker)
		if before, found := last[key]; found && number != before+1 {
			t.Errorf("event %d of worker %d follows %d", number, worker, before)
		}
		last[key] = number
	}
}

// crashVariable is the directory of the log of the process that TestCrash kills.
const crashVariable = "ARCHIVE_CRASH_DIR"

// TestCrash kills a process while it archives: all events whose end it reported are in the archive.
func TestCrash(t *testing.T) {
	if dir := os.Getenv(crashVariable); dir != "" {
		archiveForever(t, dir)
		return
	}
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrash$")
	command.Env = append(os.Environ(), crashVariable+"="+dir)
	output := &reported{enough: 200, done: make(chan struct{})}
	command.Stdout = output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-output.done:
	case <-t.Context().Done():
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	command.Wait() //nolint:errcheck // it was killed
	f := newFixture(t, dir, nil)
	archived := sets.New(f.ids("ns/a")...)
	ids := output.ids()
	if len(ids) < output.enough {
		t.Fatalf("%d events were archived before the crash", len(ids))
	}
	for _, id := range ids {
		if !archived.Has(id) {
			t.Errorf("event %s was archived before the crash, and is missing", id)
		}
	}
}

// archiveForever archives events concurrently, and prints their IDs.
func archiveForever(t *testing.T, dir string) {
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	s := NewStore(Options{Log: log, MaxRetention: time.Hour, MaxBytes: 1 << 30, Clock: clock.RealClock{}, Logger: logr.Discard()})
	key, uid := keyOf("ns/a")
	if err := s.Set(key, uid, &eventing.Archive{Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for worker := range 4 {
		running.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprint(worker, "-", i)
				s.Begin(t.Context(), uid, time.Now(), []*event.Event{newEvent(id, 100)})()
				fmt.Println("archived", id)
			}
		})
	}
	running.Wait()
}

// reported collects the output of the process that TestCrash kills.
type reported struct {
	enough int
	done   chan struct{}
	once   sync.Once

	mu sync.Mutex
	// mu guards text.
	text []byte
}

// Write implements io.Writer.
func (r *reported) Write(data []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, data...)
	if bytes.Count(r.text, []byte("archived")) > r.enough {
		r.once.Do(func() { close(r.done) })
	}
	return len(data), nil
}

// ids returns the IDs in the whole lines.
func (r *reported) ids() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(string(r.text)) {
		if id, ok := strings.CutPrefix(line, "archived "); ok && strings.HasSuffix(id, "\n") {
			ids = append(ids, strings.TrimSpace(id))
		}
	}
	return ids
}

// TestReadEnds reads no further than events that were accepted long after the end, and reads events that were stored late.
func TestReadEnds(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.set(0, "ns/a")
	key, uid := keyOf("ns/a")
	start := f.clock.Now()
	accept := func(id string, after time.Duration) {
		f.Begin(t.Context(), uid, start.Add(after), []*event.Event{newEvent(id, 10)})()
	}
	accept("0", 0)
	accept("later", 5*time.Minute)
	accept("1", time.Second)
	for i := range 5 {
		accept(fmt.Sprint("long after ", i), time.Hour+time.Duration(i)*time.Second)
	}
	q := Query{Broker: key, UID: uid, To: start.Add(time.Minute), MaxEvents: 100, MaxBytes: 1}
	var got []string
	pages := 0
	for more := true; more; pages++ {
		page, err := f.Read(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		got, q.At, more = append(got, idsOf(page.Events)...), page.Next, page.More
	}
	if !slices.Equal(got, []string{"0", "1"}) || pages != 4 {
		t.Errorf("read %q in %d pages of one message, want 4", got, pages)
	}
}
