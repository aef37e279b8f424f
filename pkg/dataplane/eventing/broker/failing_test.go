package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// An event that fails for many consumers is written once for each round of attempts, and not once for each of them; all
// get it when they recover, also after a restart.
func TestFailingConsumersShareRecords(t *testing.T) {
	for name, end := range map[string]func(*fixture){"no restart": func(*fixture) {}, "restart": (*fixture).restart, "crash": (*fixture).crash} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				const consumers, size = 60, 100 << 10
				for _, id := range numbers(consumers) {
					w.set(trigger(id, withDelivery(linear(1000, time.Minute))))
					w.answer(id, unreachable)
				}
				ids := numbers(6)
				for _, id := range ids {
					e := newEvent(id)
					e.Data = make([]byte, size)
					w.must(w.Accept(w.Context(), brokerKey, []*event.Event{e}))
				}
				w.after(5*time.Minute + 30*time.Second)
				if _, written := w.log.sizes(); written > 3*7*len(ids)*size {
					t.Errorf("%d bytes were written for %d events of %d bytes that were attempted six times", written, len(ids), size)
				}
				end(w)
				for _, id := range numbers(consumers) {
					if n := len(w.attempts(id)); n < 6*len(ids) {
						t.Errorf("%s got %d attempts, want six for each event", id, n)
					}
					w.answer(id, nil)
				}
				w.after(2 * time.Minute)
				for _, id := range numbers(consumers) {
					w.expect(id+" took", w.sorted(id), strings.Join(ids, " "))
				}
				w.log.expectLeft(t, "b", nil)
				if held := w.budget.Used(); held != 0 {
					t.Errorf("%d bytes are held at the end", held)
				}
			})
		})
	}
}

// Consumers without an address share the record of an event as well, and get it once they have one. Consumers that are
// removed meanwhile do not delay this.
func TestPausedConsumersShareRecords(t *testing.T) {
	run(t, func(w *fixture) {
		ids := numbers(5)
		for _, id := range numbers(20) {
			c := trigger(id)
			w.set(c)
			w.answer(id, unreachable)
		}
		w.accept(brokerKey, ids...)
		for _, id := range numbers(20) {
			w.set(trigger(id, withDelivery(linear(1000, time.Minute)), func(c *eventing.Consumer) { c.Subscriber.URL = "" }))
		}
		w.after(time.Hour)
		w.must(w.RemoveConsumer(w.Context(), trigger("0003").Key))
		for _, id := range numbers(20) {
			if id != "0003" {
				w.answer(id, nil)
				w.set(trigger(id))
			}
		}
		w.after(time.Hour)
		w.log.expectLeft(t, "b", nil)
	})
}

// failing is a broker on an embedded log in real time, with subscribers that fail until they recover.
type failingFixture struct {
	mu   sync.Mutex
	back bool
	// tried and received are the attempts and deliveries by namespace.
	tried, received map[string]int
}

func (w *failingFixture) send(_ context.Context, _ *event.Event, _ eventing.Endpoint, o sender.Attempt) sender.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried[o.Namespace]++
	if !w.back && o.Namespace == "failing" {
		return sender.Result{Err: fmt.Errorf("POST http://127.0.0.1:9/: connection refused"), Retryable: true}
	}
	w.received[o.Namespace]++
	return sender.Result{Code: 202}
}

func (w *failingFixture) counts(namespace string) (tried, received int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tried[namespace], w.received[namespace]
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: the condition does not hold in time", what)
		case <-ticker.C:
		}
	}
}

// The memory of failing deliveries is bounded regardless of the number of failing consumers, their events are on disk
// once, and other namespaces are not affected; no event is lost.
func TestMemoryOfFailingConsumers(t *testing.T) {
	const consumers, events, size = 130, 6, 1 << 20
	dir := t.TempDir()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	budget := flow.NewBudget(64<<20, 16<<20)
	w := &failingFixture{tried: map[string]int{}, received: map[string]int{}}
	b := New(klog.NewContext(t.Context(), logr.Discard()), Options{
		Log: logqueue.JetStream(log), Send: w.send, Exists: func(types.UID) bool { return true }, Clock: clock.RealClock{}, Budget: budget,
		Addresses: func(key eventing.Key) []string { return []string{key.String()} }, HealthChanged: func(eventing.Key) {},
	})
	defer b.Stop(0)
	brokers := map[string]eventing.Key{}
	for _, namespace := range []string{"failing", "other"} {
		key := eventing.Key{Kind: eventing.Broker, Namespace: namespace, Name: "b"}
		brokers[namespace] = key
		if err := b.SetStream(t.Context(), eventing.Stream{Key: key, UID: types.UID(namespace)}); err != nil {
			t.Fatal(err)
		}
	}
	set := func(namespace, name string) {
		c := trigger(name, withDelivery(linear(100_000, 200*time.Millisecond)))
		c.Key.Namespace, c.Stream, c.StreamUID = namespace, brokers[namespace], types.UID(namespace)
		if err := b.SetConsumer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range numbers(consumers) {
		set("failing", id)
	}
	set("other", "one")
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	accept := func(namespace string, e *event.Event) {
		t.Helper()
		// A sender repeats an event that was refused because memory is full. Deliveries may hold the share of the namespace for some time.
		eventually(t, "the event is accepted", func() bool {
			err := b.Accept(t.Context(), brokers[namespace], []*event.Event{e})
			if err != nil && !errors.Is(err, eventing.ErrFull) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	before := heapInUse()
	for _, id := range numbers(events) {
		e := newEvent(id)
		e.Data = make([]byte, size)
		accept("failing", e)
	}
	most := uint64(0)
	eventually(t, "all events are retried repeatedly", func() bool {
		most = max(most, heapInUse())
		tried, _ := w.counts("failing")
		return tried > 5*consumers*events
	})
	if grown := int64(most - before); most > before && grown > 200<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	for _, id := range numbers(50) {
		accept("other", newEvent(id))
	}
	eventually(t, "the other namespace has its events", func() bool { _, received := w.counts("other"); return received == 50 })
	// Replaced records are removed from the disk soon.
	eventually(t, "little is on disk", func() bool { return bytesIn(t, dir) <= 64*size })
	w.mu.Lock()
	w.back = true
	w.mu.Unlock()
	eventually(t, "all events are delivered", func() bool { _, received := w.counts("failing"); return received >= consumers*events })
	eventually(t, "nothing is held", func() bool { return budget.Used() == 0 })
}

// bytesIn returns the size of the files below a directory.
func bytesIn(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return bytes
}

// heapInUse returns the number of bytes of the objects on the heap.
func heapInUse() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse
}
