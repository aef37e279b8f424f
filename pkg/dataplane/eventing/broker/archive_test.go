package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// archiving is a broker with archives on a real event log.
type archiving struct {
	*Broker
	archives *archive.Store
}

func newArchiving(t *testing.T, log *eventlog.Log, budget *flow.Budget, send func(e *event.Event) sender.Result) archiving {
	t.Helper()
	archives := archive.NewStore(archive.Options{
		Log: log, MaxRetention: time.Hour, MaxBytes: 1 << 20, Clock: clock.RealClock{}, Logger: testr.New(t),
		Gone: func(context.Context, []types.UID) (sets.Set[types.UID], error) { return nil, nil },
	})
	ctx := klog.NewContext(t.Context(), logr.Discard())
	b := New(ctx, Options{
		Log: logqueue.JetStream(log), Clock: clock.RealClock{}, Archive: archives, Budget: budget,
		Addresses:     func(key eventing.Key) []string { return []string{"http://broker/" + string(key.Kind) + "/" + key.Name} },
		Exists:        func(types.UID) bool { return true },
		HealthChanged: func(eventing.Key) {},
		Send: func(_ context.Context, e *event.Event, _ eventing.Endpoint, _ sender.Attempt) sender.Result {
			return send(e)
		},
	})
	t.Cleanup(func() { b.Stop(time.Second) })
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return archiving{b, archives}
}

// setArchive sets the archive of a stream.
func (a archiving) setArchive(t *testing.T, key eventing.Key) {
	t.Helper()
	if err := a.archives.Set(key, types.UID(key.Name), &eventing.Archive{Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
}

// archived returns the IDs of the archived events of a stream.
func (a archiving) archived(t *testing.T, key eventing.Key) (ids []string) {
	t.Helper()
	began := time.Now()
	query := archive.Query{Broker: key, UID: types.UID(key.Name), MaxEvents: 1000, MaxBytes: 1 << 20}
	page, err := a.archives.Read(t.Context(), query)
	if errors.Is(err, eventlog.ErrUnavailable) && time.Since(began) >= 5*time.Second {
		// The log did not respond in time.
		page, err = a.archives.Read(t.Context(), query)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Events {
		id, _ := e.Event.Get(event.ID)
		ids = append(ids, id)
	}
	return ids
}

// TestArchive archives what a Broker accepts before the sender gets an answer: events that no Trigger matches, batches and replies, but not rejected events,
// nor events of a stream without archive. Another owner of the Broker continues the archive.
func TestArchive(t *testing.T) {
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	replied := make(chan struct{})
	send := func(e *event.Event) sender.Result {
		if id, _ := e.Get(event.ID); id == "reply" {
			close(replied)
			return sender.Result{Code: 202}
		}
		return sender.Result{Code: 200, Reply: reply("reply", "replies")}
	}
	first, second := newArchiving(t, log, nil, send), newArchiving(t, log, nil, send)
	first.setArchive(t, brokerKey)
	second.setArchive(t, brokerKey)
	for _, key := range []eventing.Key{brokerKey, channelKey} {
		if err := first.SetStream(t.Context(), eventing.Stream{Key: key, UID: types.UID(key.Name)}); err != nil {
			t.Fatal(err)
		}
	}
	accept := func(a archiving, key eventing.Key, ids ...string) error {
		var events []*event.Event
		for _, id := range ids {
			events = append(events, newEvent(id))
		}
		return a.Accept(t.Context(), key, events)
	}
	expect := func(want ...string) {
		t.Helper()
		if got := first.archived(t, brokerKey); !slices.Equal(got, want) {
			t.Errorf("archived %q, want %q", got, want)
		}
	}
	if err := errors.Join(accept(first, brokerKey, "0"), accept(first, brokerKey, "1", "2"), accept(first, channelKey, "of a Channel")); err != nil {
		t.Fatal(err)
	}
	expect("0", "1", "2")
	if err := first.Accept(t.Context(), brokerKey, []*event.Event{newEvent("looped", ttl("1"))}); !errors.Is(err, eventing.ErrLoop) {
		t.Errorf("accept of an event in a loop: %v", err)
	}
	if got := first.archived(t, channelKey); len(got) > 0 {
		t.Errorf("archived %q of a Channel", got)
	}

	if err := first.SetConsumer(t.Context(), trigger("a", ofType("t"))); err != nil {
		t.Fatal(err)
	}
	if err := first.SetConsumer(t.Context(), trigger("b", ofType("replies"))); err != nil {
		t.Fatal(err)
	}
	if err := accept(first, brokerKey, "3"); err != nil {
		t.Fatal(err)
	}
	<-replied
	// A reply is in the archive before the event that it replies to is done, but it may be delivered before.
	eventually(t, "the reply is archived", func() bool { return len(first.archived(t, brokerKey)) == 5 })
	expect("0", "1", "2", "3", "reply")

	first.ReleaseStream(brokerKey)
	if _, err := second.AcquireStream(t.Context(), eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}, nil); err != nil {
		t.Fatal(err)
	}
	if err := accept(second, brokerKey, "4"); err != nil {
		t.Fatal(err)
	}
	expect("0", "1", "2", "3", "reply", "4")
	if state, err := first.archives.State(t.Context(), brokerKey, types.UID(brokerKey.Name)); err != nil || state.Events != 6 {
		t.Errorf("state %+v, want 6 events: %v", state, err)
	}
}

// TestArchiveMemory reserves memory for the copy of an event that is archived.
func TestArchiveMemory(t *testing.T) {
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	budget := flow.NewBudget(3<<20, 3<<20)
	a := newArchiving(t, log, budget, func(*event.Event) sender.Result { return sender.Result{Code: 202} })
	if err := a.SetStream(t.Context(), eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}); err != nil {
		t.Fatal(err)
	}
	large := newEvent("large")
	large.Data = make([]byte, 2<<20)
	if err := a.Accept(t.Context(), brokerKey, []*event.Event{large}); err != nil {
		t.Fatal(err)
	}
	a.setArchive(t, brokerKey)
	if err := a.Accept(t.Context(), brokerKey, []*event.Event{large}); !errors.Is(err, eventing.ErrFull) {
		t.Errorf("an event whose copy exceeds the budget: %v", err)
	}
	if err := a.Accept(t.Context(), brokerKey, []*event.Event{newEvent("small")}); err != nil {
		t.Error(err)
	}
	if used := budget.Used(); used > 0 {
		t.Errorf("%d bytes are reserved", used)
	}
}

// BenchmarkAccept measures concurrent acceptances by a Broker on a real event log, with an archive and without.
func BenchmarkAccept(b *testing.B) {
	for _, archived := range []bool{false, true} {
		b.Run(fmt.Sprintf("archived=%t", archived), func(b *testing.B) {
			log, err := eventlog.Open(b.Context(), eventlog.Options{Dir: b.TempDir(), Logger: logr.Discard()})
			if err != nil {
				b.Fatal(err)
			}
			defer log.Close()
			archives := archive.NewStore(archive.Options{Log: log, MaxRetention: time.Hour, MaxBytes: 1 << 30, Clock: clock.RealClock{}, Logger: logr.Discard()})
			ctx := klog.NewContext(b.Context(), logr.Discard())
			engine := New(ctx, Options{
				Log: logqueue.JetStream(log), Clock: clock.RealClock{}, Archive: archives,
				Addresses:     func(key eventing.Key) []string { return []string{"http://broker/" + key.Name} },
				Exists:        func(types.UID) bool { return true },
				HealthChanged: func(eventing.Key) {},
				Send: func(context.Context, *event.Event, eventing.Endpoint, sender.Attempt) sender.Result {
					return sender.Result{Code: 202}
				},
			})
			defer engine.Stop(0)
			if err := errors.Join(engine.SetStream(ctx, eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}), engine.SetConsumer(ctx, trigger("a")), engine.Start(ctx)); err != nil {
				b.Fatal(err)
			}
			if archived {
				if err := archives.Set(brokerKey, types.UID(brokerKey.Name), &eventing.Archive{Retention: time.Hour}); err != nil {
					b.Fatal(err)
				}
			}
			b.SetParallelism(32)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := engine.Accept(ctx, brokerKey, []*event.Event{newEvent("1")}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// TestReplayIsNotArchived does not archive events that come from the archive.
func TestReplayIsNotArchived(t *testing.T) {
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Logger: testr.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	b := newArchiving(t, log, nil, func(*event.Event) sender.Result { return sender.Result{Code: 202} })
	uid := types.UID(brokerKey.Name)
	if err := b.SetStream(t.Context(), eventing.Stream{Key: brokerKey, UID: uid}); err != nil {
		t.Fatal(err)
	}
	b.setArchive(t, brokerKey)
	if err := b.Accept(t.Context(), brokerKey, []*event.Event{newEvent("1")}); err != nil {
		t.Fatal(err)
	}
	if err := b.Replay(t.Context(), brokerKey, uid, []*event.Event{newEvent("2")}); err != nil {
		t.Fatal(err)
	}
	if err := b.Accept(t.Context(), brokerKey, []*event.Event{newEvent("3")}); err != nil {
		t.Fatal(err)
	}
	if ids := b.archived(t, brokerKey); !slices.Equal(ids, []string{"1", "3"}) {
		t.Errorf("archived %q", ids)
	}
}
