package streams

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

// fakeBroker records its calls.
type fakeBroker struct {
	mu    sync.Mutex
	calls []string
	// failures is the number of times that AcquireStream and Prune fail.
	failures int
}

func (b *fakeBroker) call(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, fmt.Sprintf(format, args...))
}

// drain returns the calls since the last drain.
func (b *fakeBroker) drain() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	calls := b.calls
	b.calls = nil
	slices.Sort(calls)
	return calls
}

func (b *fakeBroker) fail(times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = times
}

func (b *fakeBroker) fails() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures--
	return b.failures >= 0
}

func (b *fakeBroker) AcquireStream(_ context.Context, spec eventing.Stream, consumers []eventing.Consumer) (bool, error) {
	var names []string
	for _, c := range consumers {
		names = append(names, c.Key.Name)
	}
	slices.Sort(names)
	b.call("acquire %s with %v", spec.Key.Name, names)
	if b.fails() {
		return false, errors.New("no log")
	}
	return true, nil
}
func (b *fakeBroker) ReleaseStream(key eventing.Key) { b.call("release %s", key.Name) }
func (b *fakeBroker) RemoveStream(_ context.Context, key eventing.Key) error {
	b.call("remove %s", key.Name)
	return nil
}
func (b *fakeBroker) Refresh(_ context.Context, key eventing.Key) error {
	b.call("refresh %s", key.Name)
	return nil
}
func (b *fakeBroker) SetConsumer(_ context.Context, config eventing.Consumer) error {
	b.call("set %s", config.Key.Name)
	return nil
}
func (b *fakeBroker) RemoveConsumer(_ context.Context, key eventing.Key) error {
	b.call("remove %s", key.Name)
	return nil
}
func (b *fakeBroker) Health(eventing.Key) eventing.Health { return eventing.Health{} }
func (b *fakeBroker) Accept(_ context.Context, key eventing.Key, _ []*event.Event) error {
	b.call("accept for %s", key.Name)
	return nil
}
func (b *fakeBroker) AddAddress(eventing.Key)     {}
func (b *fakeBroker) RemoveAddress(eventing.Key)  {}
func (b *fakeBroker) Start(context.Context) error { return nil }
func (b *fakeBroker) Prune(context.Context) error {
	b.call("prune")
	if b.fails() {
		return errors.New("no log")
	}
	return nil
}
func (b *fakeBroker) Stop(time.Duration) { b.call("stop") }

// fixture is a manager of the replica a, beside the replica b.
type fixture struct {
	*testing.T
	*Manager
	view   *membership.View
	broker *fakeBroker
	gained []string

	mu         sync.Mutex
	subscribed []eventing.Consumer
	// a and b are keys of streams that these replicas own while both are members.
	a, b eventing.Key
}

func start(t *testing.T, test func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, view: membership.NewView(members("a", "b")), broker: &fakeBroker{}}
		owners := ownership.NewTable(f.view, Place)
		for i := 0; f.a.Name == "" || f.b.Name == ""; i++ {
			key := eventing.Key{Kind: eventing.Broker, Namespace: "default", Name: fmt.Sprint("s", i)}
			if owners.Owns(key) {
				f.a = key
			} else {
				f.b = key
			}
		}
		f.Manager = New(klog.NewContext(t.Context(), logr.Discard()), Options{
			Broker: f.broker, Owners: owners, Peers: peers{f.broker},
			Subscribed: func(context.Context) ([]eventing.Consumer, error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				return f.subscribed, nil
			},
			Gained: func(which func(eventing.Key) bool) {
				for _, key := range []eventing.Key{f.a, f.b} {
					if which(key) {
						f.gained = append(f.gained, key.Name)
					}
				}
			},
		})
		for _, key := range []eventing.Key{f.a, f.b} {
			f.must(f.SetStream(t.Context(), eventing.Stream{Key: key, UID: types.UID(key.Name)}))
			f.must(f.SetConsumer(t.Context(), consumer("t-"+key.Name, key)))
		}
		f.must(f.Start(t.Context()))
		defer f.Stop(0)
		f.broker.drain()
		test(f)
	})
}

func (f *fixture) subscribe(all ...eventing.Consumer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subscribed = all
}

func members(names ...string) *membership.Set {
	var all []membership.Member
	for _, name := range names {
		all = append(all, membership.Member{Name: name, Address: name})
	}
	return membership.NewSet("a", all...)
}

func consumer(name string, stream eventing.Key) eventing.Consumer {
	return eventing.Consumer{
		Key: eventing.Key{Kind: eventing.Trigger, Namespace: "default", Name: name}, UID: types.UID(name), Stream: stream, StreamUID: types.UID(stream.Name),
	}
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// expect checks the calls since the last one.
func (f *fixture) expect(want ...string) {
	f.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, f.broker.drain()); diff != "" {
		f.Errorf("calls (-want +got):\n%s", diff)
	}
}

// peers records the replicas that are notified of a stream.
type peers struct{ *fakeBroker }

func (p peers) RoundTrip(r *http.Request) (*http.Response, error) {
	p.call("notify %s of %s", r.URL.Host, r.URL.Path)
	recorder := httptest.NewRecorder()
	recorder.WriteHeader(http.StatusNoContent)
	return recorder.Result(), nil
}

// A replica serves the streams that it owns, and reconciles their objects again: it was no member when they were reconciled first.
func TestStart(t *testing.T) {
	start(t, func(f *fixture) {
		if diff := cmp.Diff([]string{f.a.Name}, f.gained); diff != "" {
			f.Errorf("gained (-want +got):\n%s", diff)
		}
		f.must(f.Accept(f.Context(), f.a, nil))
		if err := f.Accept(f.Context(), f.b, nil); !errors.Is(err, eventing.ErrNotOwner) {
			f.Errorf("accepts events for a stream of b: %v", err)
		}
		if err := f.Accept(f.Context(), eventing.Key{Name: "missing"}, nil); !errors.Is(err, eventing.ErrNotFound) {
			f.Errorf("accepts events for a missing stream: %v", err)
		}
		if !f.Exists(f.a) || !f.Exists(f.b) || f.Exists(eventing.Key{Name: "missing"}) {
			f.Error("some streams do not exist")
		}
		f.expect("accept for " + f.a.Name)
	})
}

// The new owner serves a stream with all its consumers, and reads its log again when the former owner has observed the change.
func TestGain(t *testing.T) {
	start(t, func(f *fixture) {
		f.gained = nil
		f.view.Set(members("a"))
		f.expect(fmt.Sprintf("acquire %s with [t-%s]", f.b.Name, f.b.Name))
		f.must(f.Accept(f.Context(), f.b, nil))
		f.expect("accept for " + f.b.Name)
		if diff := cmp.Diff([]string{f.b.Name}, f.gained); diff != "" {
			f.Errorf("gained (-want +got):\n%s", diff)
		}
		<-time.After(recheckAfter)
		f.expect("prune", "refresh "+f.b.Name)
	})
}

// A gate closes when no event is being accepted.
func TestGate(t *testing.T) {
	g := newGate()
	passed, opened, _ := g.pass(func() error { return nil })
	if passed {
		t.Error("a new gate is open")
	}
	g.set(true)
	<-opened
	inside, goOn, closed := make(chan bool), make(chan bool), make(chan bool)
	go g.pass(func() error { inside <- true; <-goOn; return nil }) //nolint:errcheck // it returns none
	<-inside
	go func() { g.set(false); close(closed) }()
	select {
	case <-closed:
		t.Error("the gate closed while an event was accepted")
	case <-time.After(50 * time.Millisecond):
	}
	goOn <- true
	<-closed
	if passed, _, _ := g.pass(func() error { return nil }); passed {
		t.Error("a closed gate is open")
	}
}

// The former owner releases a stream and notifies the new owner afterwards.
func TestLose(t *testing.T) {
	start(t, func(f *fixture) {
		f.view.Set(members("b"))
		f.expect("notify b of /handover/Broker/default/"+f.a.Name, "release "+f.a.Name)
		if err := f.Accept(f.Context(), f.a, nil); !errors.Is(err, eventing.ErrNotOwner) {
			f.Errorf("accepts events after the handover: %v", err)
		}
	})
}

// A gained stream rejects events until all subscribed consumers are known.
func TestGainWaitsForConsumers(t *testing.T) {
	for name, test := range map[string]struct {
		resolve func(f *fixture)
		want    string
	}{
		"consumer is set":     {func(f *fixture) { f.must(f.SetConsumer(f.Context(), consumer("late", f.b))) }, "[late t-%s]"},
		"consumer is deleted": {func(f *fixture) { f.subscribe(); <-time.After(3 * listRetry); synctest.Wait() }, "[t-%s]"},
	} {
		t.Run(name, func(t *testing.T) {
			start(t, func(f *fixture) {
				f.subscribe(consumer("late", f.b))
				f.view.Set(members("a"))
				began := time.Now()
				if err := f.Accept(f.Context(), f.b, nil); !errors.Is(err, eventing.ErrNotReady) || time.Since(began) != patience {
					f.Errorf("accepts events without a consumer: %v after %s", err, time.Since(began))
				}
				f.expect()
				test.resolve(f)
				f.must(f.Accept(f.Context(), f.b, nil))
				calls := f.broker.drain()
				if want := fmt.Sprintf("acquire %s with "+test.want, f.b.Name, f.b.Name); !slices.Contains(calls, want) {
					f.Errorf("calls %q, want %q", calls, want)
				}
			})
		})
	}
}

// Events wait for a stream that is being acquired.
func TestAcceptWaits(t *testing.T) {
	start(t, func(f *fixture) {
		f.broker.fail(1)
		f.view.Set(members("a"))
		took := fmt.Sprintf("acquire %s with [t-%s]", f.b.Name, f.b.Name)
		f.expect(took)
		began := time.Now()
		f.must(f.Accept(f.Context(), f.b, nil))
		if waited := time.Since(began); waited != time.Second {
			f.Errorf("waited %s", waited)
		}
		f.expect("accept for "+f.b.Name, took)
		ctx, cancel := context.WithCancel(f.Context())
		f.broker.fail(100)
		f.view.Set(members("a", "b"))
		synctest.Wait()
		f.view.Set(members("a"))
		synctest.Wait()
		cancel()
		if err := f.Accept(ctx, f.b, nil); !errors.Is(err, context.Canceled) {
			f.Errorf("got %v after the end of the request", err)
		}
	})
}

// The logs of gained streams are read again after a delay. Prune is retried until it succeeds.
func TestRecheck(t *testing.T) {
	start(t, func(f *fixture) {
		f.view.Set(members("a"))
		synctest.Wait()
		f.view.Set(members("a", "b"))
		synctest.Wait()
		f.broker.drain()
		f.broker.fail(2)
		<-time.After(recheckAfter)
		f.expect("prune", "prune", "refresh "+f.b.Name)
		<-time.After(3 * recheckAfter)
		f.expect("prune", "prune")
	})
}

// The broker removes its state of deleted objects, also if another replica owns them.
func TestRemove(t *testing.T) {
	start(t, func(f *fixture) {
		f.must(f.SetConsumer(f.Context(), consumer("t-"+f.a.Name, f.b)))
		f.expect("remove t-" + f.a.Name)
		f.must(f.SetConsumer(f.Context(), consumer("t-"+f.a.Name, f.a)))
		f.expect("remove t-"+f.a.Name, "set t-"+f.a.Name)
		f.must(f.RemoveConsumer(f.Context(), consumer("t-"+f.b.Name, f.b).Key))
		f.expect("remove t-" + f.b.Name)
		for _, key := range []eventing.Key{f.a, f.b} {
			f.must(f.RemoveStream(f.Context(), key))
			f.expect("remove " + key.Name)
		}
		for _, key := range []eventing.Key{f.a, f.b} {
			if f.Exists(key) {
				f.Errorf("%s exists", key)
			}
			f.must(f.RemoveConsumer(f.Context(), consumer("t-"+key.Name, key).Key))
			if f.catalog.find(key) != nil {
				f.Errorf("%s is remembered", key)
			}
		}
	})
}

// A stream with the name of a deleted one replaces it.
func TestRecreate(t *testing.T) {
	start(t, func(f *fixture) {
		f.must(f.SetStream(f.Context(), eventing.Stream{Key: f.a, UID: "next"}))
		f.expect("acquire "+f.a.Name+" with []", "remove "+f.a.Name)
	})
}

// A replica that has left the membership releases all streams when it stops.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBroker{}
		view := membership.NewView(members("a"))
		m := New(klog.NewContext(t.Context(), logr.Discard()), Options{Broker: b, Owners: ownership.NewTable(view, Place), Peers: peers{b}})
		key := eventing.Key{Kind: eventing.Channel, Namespace: "default", Name: "c"}
		if err := errors.Join(m.SetStream(t.Context(), eventing.Stream{Key: key}), m.Start(t.Context())); err != nil {
			t.Fatal(err)
		}
		b.drain()
		view.Set(members("b"))
		m.Stop(0)
		if diff := cmp.Diff([]string{"notify b of /handover/Channel/default/c", "release c", "stop"}, b.drain()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// A notification makes this replica read the log of a stream again.
func TestHandoverHandler(t *testing.T) {
	start(t, func(f *fixture) {
		path := strings.TrimPrefix(handoverPath(f.a), "/"+HandoverElement)
		for path, want := range map[string]int{path: http.StatusNoContent, "/x": http.StatusNotFound} {
			w := httptest.NewRecorder()
			f.Handover().ServeHTTP(w, httptest.NewRequestWithContext(f.Context(), http.MethodPost, path, nil))
			if w.Code != want {
				f.Errorf("%s: %d, want %d", path, w.Code, want)
			}
		}
		f.expect("refresh " + f.a.Name)
	})
}
