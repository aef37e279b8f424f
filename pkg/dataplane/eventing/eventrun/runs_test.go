package eventrun

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var (
	name     = types.NamespacedName{Namespace: "shop", Name: "trigger-bill"}
	consumer = eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "bill"}
	orders   = eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}
)

const consumerUID, ordersUID types.UID = "uid-bill", "uid-orders"

// letter returns a dead letter of a consumer. Events with an even number have the type "even".
func letter(uid types.UID, n int) *deadletter.Letter {
	kind := "odd"
	if n%2 == 0 {
		kind = "even"
	}
	return &deadletter.Letter{
		Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: string(uid)}, ConsumerUID: uid, Stream: eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"},
		Event: &event.Event{
			Attributes: []event.Attribute{{Name: event.ID, Value: fmt.Sprint(n)}, {Name: event.Source, Value: "/s"}, {Name: event.EventType, Value: kind}},
			Headers:    []event.Header{{Name: "traceparent", Value: fmt.Sprintf("00-%032d-0000000000000001-01", n+1)}},
			Data:       bytes.Repeat([]byte("x"), 100),
		},
	}
}

// newStore returns a dead letter store on a real event log.
func newStore(t *testing.T) *deadletter.Store {
	t.Helper()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return deadletter.NewStore(deadletter.Options{
		Log: log, Retention: time.Hour, MaxBytes: 64 << 20, MaxTotalBytes: 1 << 30, Clock: clock.RealClock{}, Logger: testr.New(t),
		Gone:    func(context.Context, []types.UID) (sets.Set[types.UID], error) { return nil, nil },
		InUse:   func(string) bool { return true },
		Evicted: func(string, map[types.UID]uint64) {},
	})
}

func add(t *testing.T, store *deadletter.Store, letters ...*deadletter.Letter) {
	t.Helper()
	for _, l := range letters {
		if err := store.Add(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
}

// stored returns the IDs of the dead letters of a consumer.
func stored(t *testing.T, store *deadletter.Store, uid types.UID) (ids []string) {
	t.Helper()
	for next := uint64(1); next > 0; {
		letters, following, err := store.Read(t.Context(), deadletter.Query{Namespace: "shop", Consumer: uid, From: next, Count: 1000, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		for i := range letters {
			ids = append(ids, idOf(letters[i].Event))
		}
		next = following
	}
	return ids
}

func idOf(e *event.Event) string {
	id, _ := e.Get(event.ID)
	return id
}

var errKilled = errors.New("the process was killed")

// process is the target and the store of one process. It is killed before an operation that changes something, or right after it: nothing is
// changed anymore then.
type process struct {
	Store
	target *target

	mu sync.Mutex
	// mu guards the fields below. left is the number of operations until the kill, which closes killed; after is true if the last one has an effect.
	left   int
	after  bool
	dead   bool
	killed chan struct{}
}

func newProcess(store Store, to *target, operations int, after bool) *process {
	return &process{Store: store, target: to, left: operations, after: after, killed: make(chan struct{})}
}

// operate executes an operation unless the process is dead.
func (p *process) operate(do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return errKilled
	}
	if p.left == 0 {
		p.dead = true
		if p.after {
			if err := do(); err != nil {
				return err
			}
		}
		close(p.killed)
		return errKilled
	}
	p.left--
	return do()
}

func (p *process) Delete(ctx context.Context, namespace string, sequence uint64) error {
	return p.operate(func() error { return p.Store.Delete(ctx, namespace, sequence) })
}

func (p *process) Redeliver(ctx context.Context, to eventing.Key, uid types.UID, events []*event.Event) error {
	return p.operate(func() error { return p.target.Redeliver(ctx, to, uid, events) })
}

func (p *process) Replay(ctx context.Context, broker eventing.Key, uid types.UID, events []*event.Event) error {
	return p.operate(func() error { return p.target.Replay(ctx, broker, uid, events) })
}

func (p *process) Serves(eventing.Key, types.UID) bool { return true }

func (p *process) Backlog(ctx context.Context, to eventing.Key, uid types.UID) (uint64, error) {
	return p.target.Backlog(ctx, to, uid)
}

// target collects queued events.
type target struct {
	mu sync.Mutex
	// mu guards the fields below. refuse returns the error for an event, refuseAll the one for events that are queued together, backlog
	// the length of the queue; all are optional.
	events  []*event.Event
	at      []time.Time
	refuse  func(e *event.Event) error
	backlog func() uint64

	refuseAll func(events []*event.Event) error
}

func (t *target) Redeliver(_ context.Context, to eventing.Key, uid types.UID, events []*event.Event) error {
	if to != consumer || uid != consumerUID {
		return fmt.Errorf("queued for %s %s", to, uid)
	}
	return t.queue(events)
}

func (t *target) Replay(_ context.Context, to eventing.Key, uid types.UID, events []*event.Event) error {
	if to != orders || uid != ordersUID {
		return fmt.Errorf("queued for %s %s", to, uid)
	}
	return t.queue(events)
}

func (t *target) Serves(eventing.Key, types.UID) bool { return true }

func (t *target) queue(events []*event.Event) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuseAll != nil {
		if err := t.refuseAll(events); err != nil {
			return err
		}
	}
	for _, e := range events {
		if t.refuse != nil {
			if err := t.refuse(e); err != nil {
				return err
			}
		}
		t.events, t.at = append(t.events, e), append(t.at, time.Now())
	}
	return nil
}

func (t *target) Backlog(context.Context, eventing.Key, types.UID) (uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.backlog == nil {
		return 0, nil
	}
	return t.backlog(), nil
}

func (t *target) ids() (ids []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.events {
		ids = append(ids, idOf(e))
	}
	return ids
}

// newRuns returns Runs, and a channel that receives a value when the run has ended.
func newRuns(t *testing.T, to Target, store Store) (*Runs, <-chan struct{}) {
	t.Helper()
	changed := make(chan struct{}, 1)
	var runs *Runs
	budget := flow.NewBudget(256<<20, 16<<20)
	runs = New(t.Context(), Options{
		Target: to, Store: store, Budget: budget, Clock: clock.RealClock{}, Logger: logr.Discard(),
		Changed: func(of types.NamespacedName) {
			if of != name {
				t.Errorf("%s has changed", of)
			}
			runs.mu.Lock()
			defer runs.mu.Unlock()
			s := runs.all[of]
			if s == nil {
				return
			}
			if _, full := s.progress.stored(); full || s.progress.report(time.Now()).Ended {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		},
	})
	t.Cleanup(func() {
		runs.Close()
		if held := budget.Used(); held != 0 {
			t.Errorf("stopped runs hold %d bytes", held)
		}
	})
	return runs, changed
}

func runTo(last string) eventing.Run {
	return eventing.Run{ID: "run-1", Consumer: consumer, ConsumerUID: consumerUID, Last: last, Begin: true}
}

func lastOf(t *testing.T, runs *Runs) string {
	t.Helper()
	last, err := runs.Last(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	return last
}

// TestKills kills the process at every operation, before and after its effect: each dead letter is queued in order with its headers and the
// attribute of the run, and a kill repeats one event at most.
func TestKills(t *testing.T) {
	const n = 7
	for operation := range 2 * n {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %t", operation, after), func(t *testing.T) {
				store, to := newStore(t), &target{}
				var want []string
				for i := range n {
					add(t, store, letter(consumerUID, i), letter("uid-other", i))
					want = append(want, fmt.Sprint(i))
				}
				killed := newProcess(store, to, operation, after)
				runs, _ := newRuns(t, killed, killed)
				last := lastOf(t, runs)
				runs.Start(name, runTo(last))
				<-killed.killed
				runs.Close()
				// A later dead letter is not part of the run.
				add(t, store, letter(consumerUID, n))

				runs, ended := newRuns(t, to, store)
				runs.Start(name, runTo(last))
				<-ended
				progress := runs.Start(name, runTo(last))
				if !progress.Ended || !progress.Counted || progress.Failed != 0 || progress.Queued != progress.Remaining {
					t.Errorf("progress %+v", progress)
				}
				got := to.ids()
				if unique := slices.Compact(slices.Clone(got)); !slices.Equal(unique, want) || len(got) > n+1 {
					t.Errorf("queued %q, want %q with one repeated at most", got, want)
				}
				if left := stored(t, store, consumerUID); !slices.Equal(left, []string{fmt.Sprint(n)}) {
					t.Errorf("dead letters %q remain", left)
				}
				if left := stored(t, store, "uid-other"); len(left) != n {
					t.Errorf("%d dead letters of another Trigger remain, want %d", len(left), n)
				}
				for _, e := range to.events {
					if run, _ := e.Get(event.Run); run != "run-1" {
						t.Errorf("event %s has the run %q", idOf(e), run)
					}
					if len(e.Headers) != 1 || !strings.HasPrefix(e.Headers[0].Value, "00-") {
						t.Errorf("event %s has the headers %v", idOf(e), e.Headers)
					}
				}
			})
		}
	}
}

// TestDestination sends the events of a run to its destination, one after another, and repeats failed attempts, at a changed address too. Events that it
// refuses remain; the queue of the consumer gets none.
func TestDestination(t *testing.T) {
	store, to := newStore(t), &target{}
	for i := range 4 {
		add(t, store, letter(consumerUID, i))
	}
	runs, ended := newRuns(t, to, store)
	var got []string
	failed, moved := make(chan struct{}), make(chan struct{})
	runs.options.Send = func(_ context.Context, e *event.Event, to eventing.Endpoint, o sender.Attempt) sender.Result {
		id := idOf(e)
		got = append(got, to.URL+id)
		if run, _ := e.Get(event.Run); run != "run-1" || o.Consumer != consumer || o.Namespace != "shop" {
			t.Errorf("event %s has the run %q, attempt %+v", id, run, o)
		}
		switch {
		case id == "2":
			return sender.Result{Code: 400, Err: errors.New("bad request")}
		case id == "1" && to.URL == "http://a/":
			close(failed)
			<-moved
			return sender.Result{Code: 503, Err: errors.New("unavailable"), Retryable: true}
		}
		return sender.Result{Code: 202}
	}
	spec := runTo(lastOf(t, runs))
	spec.Destination = &eventing.Endpoint{URL: "http://a/"}
	runs.Start(name, spec)
	<-failed
	spec.Destination = &eventing.Endpoint{URL: "http://b/"}
	runs.Start(name, spec)
	close(moved)
	<-ended
	if p := runs.Start(name, spec); !p.Ended || p.Queued != 3 || p.Failed != 1 {
		t.Errorf("progress %+v", p)
	}
	if want := []string{"http://a/0", "http://a/1", "http://b/1", "http://b/2", "http://b/3"}; !slices.Equal(got, want) {
		t.Errorf("sent %q, want %q", got, want)
	}
	if left := stored(t, store, consumerUID); !slices.Equal(left, []string{"2"}) || len(to.ids()) > 0 {
		t.Errorf("dead letters %q remain, %q are queued", left, to.ids())
	}
}

// TestStops stops a run between any two events, and starts it again: no event is repeated.
func TestStops(t *testing.T) {
	// The deletion of a dead letter in memory does not exceed commitTimeout.
	store, to := newMemory(20), &target{}
	var want []string
	for i := range store.letters {
		want = append(want, fmt.Sprint(i))
	}
	taken := make(chan struct{}, len(want))
	to.refuse = func(*event.Event) error { taken <- struct{}{}; return nil }
	runs, ended := newRuns(t, to, store)
	last := lastOf(t, runs)
	for range 6 {
		runs.Start(name, runTo(last))
		<-taken
		runs.Stop(name)
	}
	runs.Start(name, runTo(last))
	<-ended
	if got := to.ids(); !slices.Equal(got, want) {
		t.Errorf("queued %q, want %q", got, want)
	}
	if len(store.letters) > 0 {
		t.Errorf("%d dead letters remain", len(store.letters))
	}
}

// TestTwoOwners executes a run at two replicas that both consider themselves the owner: no event is lost, and each is queued twice at most.
func TestTwoOwners(t *testing.T) {
	store, to := newStore(t), &target{}
	var want []string
	for i := range 100 {
		add(t, store, letter(consumerUID, i))
		want = append(want, fmt.Sprint(i))
	}
	first, endedFirst := newRuns(t, to, store)
	second, endedSecond := newRuns(t, to, store)
	last := lastOf(t, first)
	first.Start(name, runTo(last))
	second.Start(name, runTo(last))
	<-endedFirst
	<-endedSecond
	got := to.ids()
	unique := sets.New(got...)
	if len(got) > 2*len(want) || !unique.Equal(sets.New(want...)) {
		t.Errorf("queued %q", got)
	}
	if left := stored(t, store, consumerUID); len(left) > 0 {
		t.Errorf("dead letters %q remain", left)
	}
}

// TestSelect queues the dead letters that a selector matches, keeps the others, and goes on after an event that is too large.
func TestSelect(t *testing.T) {
	store, to := newStore(t), &target{}
	for i := range 250 {
		add(t, store, letter(consumerUID, i))
	}
	to.refuse = func(e *event.Event) error {
		if idOf(e) == "100" {
			return eventing.Reject(eventing.ErrTooLarge, "too large")
		}
		return nil
	}
	runs, ended := newRuns(t, to, store)
	selecting := runTo(lastOf(t, runs))
	selecting.Filters = []eventing.Filter{{Exact: map[string]string{"type": "even"}}, {Prefix: map[string]string{"id": "1"}}}
	runs.Start(name, selecting)
	<-ended
	// Even numbers from 10 to 18 and from 100 to 198.
	if got := to.ids(); len(got) != 54 || got[0] != "10" || got[4] != "18" || got[5] != "102" || got[53] != "198" {
		t.Errorf("queued %q", got)
	}
	if progress := runs.Start(name, selecting); progress != (eventing.RunProgress{Counted: true, Remaining: 55, Queued: 54, Failed: 1, Ended: true}) {
		t.Errorf("progress %+v", progress)
	}
	if left := stored(t, store, consumerUID); len(left) != 250-54 || !slices.Contains(left, "100") {
		t.Errorf("%d dead letters remain: %q", len(left), left)
	}
}

// TestWithoutLetters ends at once in a namespace without dead letters, and in one that was deleted and created again.
func TestWithoutLetters(t *testing.T) {
	store := newStore(t)
	runs, ended := newRuns(t, &target{}, store)
	if last := lastOf(t, runs); last != "" {
		t.Errorf("the last dead letter is %q", last)
	}
	add(t, store, letter(consumerUID, 0))
	runs.Start(name, runTo("abc-1"))
	<-ended
	if left := stored(t, store, consumerUID); len(left) != 1 {
		t.Errorf("dead letters %q remain, want that of the later namespace", left)
	}
}

var since = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// memory is a dead letter store in memory, for tests in virtual time.
type memory struct {
	mu      sync.Mutex
	letters []deadletter.Letter
}

func newMemory(n int) *memory {
	m := &memory{}
	for i := range n {
		l := letter(consumerUID, i)
		l.Sequence = uint64(i + 1)
		m.letters = append(m.letters, *l)
	}
	return m
}

func (m *memory) Position(context.Context, string) (deadletter.Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.letters) == 0 {
		return deadletter.Position{Since: since, First: 2, Last: 1}, nil
	}
	return deadletter.Position{Since: since, First: m.letters[0].Sequence, Last: m.letters[len(m.letters)-1].Sequence}, nil
}

func (m *memory) Read(_ context.Context, q deadletter.Query) (letters []deadletter.Letter, next uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.letters {
		if l.Sequence >= q.From {
			letters = append(letters, l)
		}
	}
	if len(letters) > q.Count {
		return letters[:q.Count], letters[q.Count].Sequence, nil
	}
	return letters, 0, nil
}

func (m *memory) Get(_ context.Context, _ string, sequence uint64) (deadletter.Letter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.letters {
		if l.Sequence == sequence {
			return l, nil
		}
	}
	return deadletter.Letter{}, deadletter.ErrNotFound
}

func (m *memory) Delete(_ context.Context, _ string, sequence uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.letters = slices.DeleteFunc(m.letters, func(l deadletter.Letter) bool { return l.Sequence == sequence })
	return nil
}

// TestBegin queues nothing before the number of events is stored.
func TestBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &target{}
		runs, ended := newRuns(t, to, newMemory(3))
		counting := runTo(lastOf(t, runs))
		counting.Begin = false
		runs.Start(name, counting)
		synctest.Wait()
		if p := runs.Start(name, counting); p != (eventing.RunProgress{Counted: true, Remaining: 3}) || len(to.ids()) > 0 {
			t.Errorf("progress %+v, queued %q", p, to.ids())
		}
		counting.Begin = true
		runs.Start(name, counting)
		<-ended
		if len(to.ids()) != 3 {
			t.Errorf("queued %q", to.ids())
		}
	})
}

// TestRate bounds the events per second.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &target{}
		runs, ended := newRuns(t, to, newMemory(10))
		limited := runTo(lastOf(t, runs))
		limited.Rate = 2
		runs.Start(name, limited)
		<-ended
		if len(to.at) != 10 {
			t.Errorf("%d events were queued", len(to.at))
		}
		for i, at := range to.at {
			if since := at.Sub(to.at[0]); since != time.Duration(i)*time.Second/2 {
				t.Errorf("event %d was queued after %s", i, since)
			}
		}
	})
}

// TestDeleted leaves out a dead letter that is deleted while it waits, though it was read before.
func TestDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, store := &target{}, newMemory(4)
		runs, ended := newRuns(t, to, store)
		limited := runTo(lastOf(t, runs))
		limited.Rate = 1
		runs.Start(name, limited)
		<-time.After(1500 * time.Millisecond)
		if err := store.Delete(t.Context(), "shop", 4); err != nil {
			t.Fatal(err)
		}
		<-ended
		if got := to.ids(); !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("queued %q", got)
		}
		if p := runs.Start(name, limited); p.Queued != 4 || p.Remaining != 4 {
			t.Errorf("progress %+v", p)
		}
	})
}

// TestWaiting waits while the consumer is elsewhere, the log is full, or many events are queued, and reports why. Nothing is dropped.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &target{}
		free := make(chan struct{})
		busy := func() bool {
			select {
			case <-free:
				return false
			default:
				return true
			}
		}
		to.backlog = func() uint64 {
			if busy() {
				return maxBacklog
			}
			return 0
		}
		refused := eventing.Reject(eventing.ErrFull, "the event log is full")
		to.refuse = func(e *event.Event) error {
			if id := idOf(e); id == "3" && refused != nil {
				return refused
			}
			return nil
		}
		runs, ended := newRuns(t, to, newMemory(5))
		spec := runTo(lastOf(t, runs))
		waiting := func() eventing.RunProgress {
			<-time.After(time.Minute)
			return runs.Start(name, spec)
		}
		runs.Start(name, spec)
		if p := waiting(); p.Waiting != "many events are queued for the subscriber" || p.Queued != 0 || p.Remaining != 5 {
			t.Errorf("with a long queue: %+v", p)
		}
		close(free)
		if p := waiting(); p.Waiting != "the event log is full" || p.Queued != 3 || p.Ended {
			t.Errorf("with a full log: %+v", p)
		}
		to.mu.Lock()
		refused = nil
		to.mu.Unlock()
		<-ended
		if p := runs.Start(name, spec); p.Waiting != "" || p.Queued != 5 || !p.Ended {
			t.Errorf("at the end: %+v", p)
		}
	})
}
