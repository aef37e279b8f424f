package deadletter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	runtimemetrics "runtime/metrics"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	basemetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// fixture is a store on a real event log.
type fixture struct {
	*Store
	t     *testing.T
	log   *eventlog.Log
	clock *clocktesting.FakeClock

	mu sync.Mutex
	// gone are the consumers and namespaces that do not exist, lost has the reported evictions. mu guards both.
	gone sets.Set[types.UID]
	lost map[types.UID]uint64
}

func newFixture(t *testing.T, dir string, change func(*Options)) *fixture {
	t.Helper()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir, Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	f := &fixture{t: t, log: log, clock: clocktesting.NewFakeClock(time.Now()), gone: sets.New[types.UID](), lost: map[types.UID]uint64{}}
	o := Options{
		Log: log, Retention: time.Hour, MaxBytes: 1 << 20, MaxTotalBytes: 1 << 30, Clock: f.clock, Logger: testr.New(t),
		Gone: func(_ context.Context, consumers []types.UID) (sets.Set[types.UID], error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return sets.New(consumers...).Intersection(f.gone), nil
		},
		InUse: func(namespace string) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return !f.gone.Has(types.UID(namespace))
		},
		Evicted: func(_ string, consumers map[types.UID]uint64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for consumer, count := range consumers {
				f.lost[consumer] += count
			}
		},
	}
	if change != nil {
		change(&o)
	}
	f.Store = NewStore(o)
	return f
}

// add adds dead letters of a consumer with data of a size.
func (f *fixture) add(namespace, consumer string, size int, ids ...string) {
	f.t.Helper()
	for _, id := range ids {
		if err := f.Add(f.t.Context(), letter(namespace, consumer, id, size)); err != nil {
			f.t.Fatal(err)
		}
	}
}

// letter returns a dead letter of a consumer with an event of a size.
func letter(namespace, consumer, id string, size int) *Letter {
	return &Letter{
		Failure: failure, Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: namespace, Name: consumer}, ConsumerUID: types.UID(consumer),
		Stream: eventing.Key{Kind: eventing.Broker, Namespace: namespace, Name: "b"}, Event: newEvent(id, bytes.Repeat([]byte("x"), size)),
	}
}

// ids returns the IDs of the dead letters of a consumer, or of all, read in pages.
func (f *fixture) ids(namespace, consumer string) (all []string) {
	f.t.Helper()
	for next := uint64(1); next > 0; {
		letters, following, err := f.Read(f.t.Context(), Query{Namespace: namespace, Consumer: types.UID(consumer), From: next, Count: 100, Bytes: 1 << 20})
		if err != nil {
			f.t.Fatal(err)
		}
		for _, l := range letters {
			id, _ := l.Event.Get("id")
			all = append(all, id)
		}
		next = following
	}
	return all
}

func (f *fixture) sweep() {
	f.t.Helper()
	if err := f.Sweep(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

func numbers(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i))
	}
	return all
}

// TestStore reads and deletes dead letters of one consumer in their order, and of a namespace, also after a restart.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	f := newFixture(t, dir, nil)
	if all := f.ids("ns", ""); len(all) > 0 {
		t.Errorf("a new store has %q", all)
	}
	if _, err := f.Position(t.Context(), "ns"); !errors.Is(err, ErrNotFound) {
		t.Errorf("position of a namespace without dead letters: %v", err)
	}
	f.add("ns", "a", 10, "0")
	f.add("ns", "b", 10, "1")
	f.add("ns", "a", 10, "2", "3")
	f.add("other", "c", 10, "4")
	if err := f.log.Close(); err != nil {
		t.Fatal(err)
	}

	f = newFixture(t, dir, nil)
	if all := f.ids("ns", "a"); !slices.Equal(all, []string{"0", "2", "3"}) {
		t.Errorf("a has %q", all)
	}
	if all := f.ids("ns", ""); !slices.Equal(all, []string{"0", "1", "2", "3"}) {
		t.Errorf("the namespace has %q", all)
	}
	l, err := f.Get(t.Context(), "ns", 2)
	if err != nil || l.ConsumerUID != "b" || l.Consumer.Name != "b" || l.Sequence != 2 || l.Stored.IsZero() || l.Code != 503 {
		t.Errorf("got %+v: %v", l, err)
	}
	for range 2 {
		err = errors.Join(err, f.Delete(t.Context(), "ns", 2))
	}
	if _, getErr := f.Get(t.Context(), "ns", 2); !errors.Is(err, ErrNotFound) || !errors.Is(getErr, ErrNotFound) {
		t.Errorf("a second deletion: %v, get: %v", err, getErr)
	}
	if err := f.DeleteAll(t.Context(), "ns", "a", 4); err != nil {
		t.Error(err)
	}
	if all := f.ids("ns", ""); !slices.Equal(all, []string{"3"}) {
		t.Errorf("the namespace has %q", all)
	}
	if all, err := f.Namespaces(t.Context()); !slices.Equal(all, []string{"ns", "other"}) || err != nil {
		t.Errorf("namespaces %q: %v", all, err)
	}
	if err := f.DeleteAll(t.Context(), "none", "", 0); err != nil {
		t.Error(err)
	}
	if err := f.Add(t.Context(), &Letter{Consumer: eventing.Key{Namespace: "ns"}, ConsumerUID: "a", Event: newEvent("large", make([]byte, 100<<20))}); !errors.Is(err, eventlog.ErrTooLarge) {
		t.Errorf("a dead letter of 100 MiB: %v", err)
	}
}

// TestEvict bounds a namespace: the oldest dead letters are deleted, counted and reported. Other namespaces keep theirs.
func TestEvict(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.add("quiet", "q", 1000, numbers("q", 20)...)
	f.add("noisy", "n", 10_000, numbers("n", 300)...)
	f.add("noisy", "n", 400_000, "large")
	f.sweep()
	state, _, err := mustMessages(f, "noisy").State(t.Context())
	if err != nil || state.Bytes > 1<<20 || state.Bytes < 1<<19 {
		t.Errorf("the namespace has %d bytes: %v", state.Bytes, err)
	}
	left := f.ids("noisy", "")
	evicted := 301 - len(left)
	if !slices.Equal(left, append(numbers("n", 300), "large")[evicted:]) {
		t.Errorf("%d are left: %q", len(left), left)
	}
	if f.lost["n"] != uint64(evicted) || f.lost["q"] > 0 {
		t.Errorf("reported %v, want %d of n", f.lost, evicted)
	}
	if all := f.ids("quiet", ""); len(all) != 20 {
		t.Errorf("the other namespace has %d", len(all))
	}
	f.expectMetrics(`knative_eventing_dead_letters_evicted_total{namespace="",reason="age"} 0`, `knative_eventing_dead_letters_evicted_total{namespace="",reason="size"} 0`,
		`knative_eventing_dead_letters_evicted_total{namespace="noisy",reason="age"} 0`, fmt.Sprintf(`knative_eventing_dead_letters_evicted_total{namespace="noisy",reason="size"} %d`, evicted))
}

func mustMessages(f *fixture, namespace string) *eventlog.Retained {
	messages, err := f.messages(namespace)
	if err != nil {
		f.t.Fatal(err)
	}
	return messages
}

func (f *fixture) expectMetrics(want ...string) {
	f.t.Helper()
	registry := basemetrics.NewKubeRegistry()
	registry.CustomMustRegister(f.Store)
	text := "# HELP knative_eventing_dead_letters_evicted_total [ALPHA] Number of dead letters that were deleted from the dead letter store for lack of space (reason size) or because of their age.\n" +
		"# TYPE knative_eventing_dead_letters_evicted_total counter\n" + strings.Join(want, "\n") + "\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "knative_eventing_dead_letters_evicted_total"); err != nil {
		f.t.Error(err)
	}
}

// TestTotal bounds all namespaces together: the ones with most lose dead letters.
func TestTotal(t *testing.T) {
	f := newFixture(t, t.TempDir(), func(o *Options) { o.MaxTotalBytes = 1 << 20 })
	f.add("a", "a", 10_000, numbers("a", 10)...)
	f.add("b", "b", 10_000, numbers("b", 60)...)
	f.add("c", "c", 10_000, numbers("c", 70)...)
	f.sweep()
	a, b, c := len(f.ids("a", "")), len(f.ids("b", "")), len(f.ids("c", ""))
	if a != 10 || b < 30 || c < 30 || b == 60 || c == 70 || 10_000*(a+b+c) > 1<<20 {
		t.Errorf("%d, %d and %d dead letters are left", a, b, c)
	}
	f.sweep()
	if again := len(f.ids("b", "")); again != b {
		t.Errorf("a second sweep leaves %d of %d dead letters", again, b)
	}
}

// TestAge deletes and counts old dead letters.
func TestAge(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.add("ns", "a", 10, "0", "1")
	f.sweep()
	if all := f.ids("ns", ""); len(all) != 2 {
		t.Errorf("%q are left before the retention time", all)
	}
	f.clock.Step(2 * time.Hour)
	f.sweep()
	if all := f.ids("ns", ""); len(all) > 0 {
		t.Errorf("%q are left after the retention time", all)
	}
	f.expectMetrics(`knative_eventing_dead_letters_evicted_total{namespace="",reason="age"} 0`, `knative_eventing_dead_letters_evicted_total{namespace="",reason="size"} 0`,
		`knative_eventing_dead_letters_evicted_total{namespace="ns",reason="age"} 2`, `knative_eventing_dead_letters_evicted_total{namespace="ns",reason="size"} 0`)
}

// TestGone deletes the dead letters of deleted consumers, and then the stream of the namespace. The next dead letter creates it again.
func TestGone(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
	f.add("ns", "a", 10, "0", "1")
	f.add("ns", "b", 10, "2")
	before, err := f.Position(t.Context(), "ns")
	if err != nil {
		t.Fatal(err)
	}
	f.gone.Insert("a")
	f.sweep()
	if all := f.ids("ns", ""); !slices.Equal(all, []string{"2"}) {
		t.Errorf("%q are left", all)
	}
	f.gone.Insert("b")
	for range 3 {
		f.sweep()
	}
	if _, err := f.Position(t.Context(), "ns"); err != nil {
		t.Errorf("the namespace is in use: %v", err)
	}
	f.gone.Insert("ns")
	for range 3 {
		f.sweep()
	}
	if _, err := f.Position(t.Context(), "ns"); !errors.Is(err, ErrNotFound) {
		t.Errorf("the namespace is not in use: %v", err)
	}
	f.add("ns", "c", 10, "3")
	if after, err := f.Position(t.Context(), "ns"); err != nil || after.Since.Equal(before.Since) || after.Last != 1 {
		t.Errorf("position %+v after %+v: %v", after, before, err)
	}
	f.expectMetrics(`knative_eventing_dead_letters_evicted_total{namespace="",reason="age"} 0`, `knative_eventing_dead_letters_evicted_total{namespace="",reason="size"} 0`)
}

// TestConcurrent adds dead letters from several goroutines to a full namespace, while it is swept.
func TestConcurrent(t *testing.T) {
	f := newFixture(t, t.TempDir(), nil)
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
		running.Go(func() { f.add("ns", "a", 10_000, numbers(fmt.Sprint(i, "-"), 40)...) })
	}
	running.Wait()
	cancel()
	sweeping.Wait()
	f.sweep()
	state, _, err := mustMessages(f, "ns").State(t.Context())
	n, _ := f.namespace("ns")
	if err != nil || state.Bytes > 1<<20 || int64(state.Messages)+n.evicted.Load() != 320 {
		t.Errorf("%d are left with %d bytes, %d were counted: %v", state.Messages, state.Bytes, n.evicted.Load(), err)
	}
}

// TestAddMemory adds large dead letters of several namespaces at once: the memory of those in progress is bounded.
func TestAddMemory(t *testing.T) {
	const namespaces, letters, size, limit = 4, 40, 1 << 20, 120 << 20
	f := newFixture(t, t.TempDir(), func(o *Options) { o.MaxBytes = 1 << 30 })
	l := letter("", "a", "1", size)
	var adds errgroup.Group
	before := liveBytes()
	for i := range namespaces {
		of := *l
		of.Consumer.Namespace = fmt.Sprint("ns-", i)
		for range letters {
			adds.Go(func() error { return f.Add(t.Context(), &of) })
		}
	}
	ended := make(chan error)
	go func() { ended <- adds.Wait() }()
	for most := before; ; most = max(most, liveBytes()) {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			if most > before+limit {
				t.Errorf("the additions took %d MiB, want at most %d", (most-before)>>20, limit>>20)
			}
			return
		default:
		}
	}
}

// liveBytes collects garbage, and returns the bytes in use on the heap.
func liveBytes() uint64 {
	runtime.GC()
	sample := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(sample)
	return sample[0].Value.Uint64()
}
