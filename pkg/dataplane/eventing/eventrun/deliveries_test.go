package eventrun

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// subscriber records the IDs of delivered events.
type subscriber struct {
	mu  sync.Mutex
	ids []string
	// took receives a value for each event, if there is room.
	took chan struct{}
}

func (s *subscriber) send(_ context.Context, e *event.Event, _ eventing.Endpoint, _ sender.Attempt) sender.Result {
	s.mu.Lock()
	s.ids = append(s.ids, idOf(e))
	s.mu.Unlock()
	select {
	case s.took <- struct{}{}:
	default:
	}
	return sender.Result{Code: 202}
}

func (s *subscriber) received() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ids)
}

// server is a broker, a dead letter store and runs on one event log, as in a process.
type server struct {
	log    *eventlog.Log
	store  *deadletter.Store
	broker *broker.Broker
	runs   *Runs
	// changed receives a value when a run may have ended.
	changed chan struct{}
}

func startServer(t testing.TB, dir string, to *subscriber) *server {
	t.Helper()
	ctx := klog.NewContext(t.Context(), logr.Discard())
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: dir, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{log: log, changed: make(chan struct{}, 1)}
	s.store = deadletter.NewStore(deadletter.Options{
		Log: log, Retention: time.Hour, MaxBytes: 1 << 30, MaxTotalBytes: 1 << 30, Clock: clock.RealClock{}, Logger: logr.Discard(),
		Gone:    func(context.Context, []types.UID) (sets.Set[types.UID], error) { return nil, nil },
		InUse:   func(string) bool { return true },
		Evicted: func(string, map[types.UID]uint64) {},
	})
	budget := flow.NewBudget(256<<20, 16<<20)
	s.broker = broker.New(ctx, broker.Options{
		Log: logqueue.JetStream(log), Send: to.send, Clock: clock.RealClock{}, Budget: budget, DeadLetters: s.store,
		Addresses: func(eventing.Key) []string { return nil }, Exists: func(types.UID) bool { return true }, HealthChanged: func(eventing.Key) {},
	})
	stream := eventing.Stream{Key: eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}, UID: "uid-orders"}
	if err := s.broker.SetStream(ctx, stream); err != nil {
		t.Fatal(err)
	}
	err = s.broker.SetConsumer(ctx, eventing.Consumer{
		Key: consumer, UID: consumerUID, Stream: stream.Key, StreamUID: stream.UID, Subscriber: eventing.Endpoint{URL: "http://bill/"}, Ordered: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.broker.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.runs = New(ctx, Options{
		Target: s.broker, Store: s.store, Budget: budget, Clock: clock.RealClock{}, Logger: logr.Discard(),
		Changed: func(types.NamespacedName) {
			select {
			case s.changed <- struct{}{}:
			default:
			}
		},
	})
	return s
}

func (s *server) stop(t testing.TB) {
	t.Helper()
	s.runs.Close()
	s.broker.Stop(time.Minute)
	if err := s.log.Close(); err != nil {
		t.Error(err)
	}
}

// await waits until the run has ended.
func (s *server) await(spec eventing.Run) eventing.RunProgress {
	for {
		if p := s.runs.Start(name, spec); p.Ended {
			return p
		}
		<-s.changed
	}
}

// TestDeliveries stops a server with a real event log during a run, and starts it again: the Trigger gets all events in order.
func TestDeliveries(t *testing.T) {
	const n = 60
	dir, to := t.TempDir(), &subscriber{took: make(chan struct{}, 1)}
	s := startServer(t, dir, to)
	var want []string
	for i := range n {
		if err := s.store.Add(t.Context(), letter(consumerUID, i)); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprint(i))
	}
	last, err := s.runs.Last(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	spec := runTo(last)
	for range 3 {
		s.runs.Start(name, spec)
		<-to.took
		s.stop(t)
		s = startServer(t, dir, to)
	}
	s.await(spec)
	for !slices.Contains(to.received(), want[n-1]) {
		<-to.took
	}
	// The last delivery before a stop may be repeated.
	if got := slices.Compact(to.received()); !slices.Equal(got, want) {
		t.Errorf("delivered %q, want %q", got, want)
	}
	s.stop(t)
}

// BenchmarkRun queues dead letters of 100 bytes on a real event log, with their deliveries.
func BenchmarkRun(b *testing.B) {
	s := startServer(b, b.TempDir(), &subscriber{})
	for i := range b.N {
		if err := s.store.Add(b.Context(), letter(consumerUID, i)); err != nil {
			b.Fatal(err)
		}
	}
	last, err := s.runs.Last(b.Context(), "shop")
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	if p := s.await(runTo(last)); p.Queued != int64(b.N) {
		b.Errorf("progress %+v", p)
	}
	b.StopTimer()
	s.stop(b)
}
