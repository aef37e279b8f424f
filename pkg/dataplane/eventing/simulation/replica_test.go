package simulation

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	memoryBudget, largestRequest = 64 << 20, 16 << 20
	stopTimeout                  = 5 * time.Second
)

// replica is a process of the server.
type replica struct {
	history *history
	// name is the name of the Pod, host is different after each restart.
	name, host string
	// killed is true once the process was killed: its actions have no effect then.
	killed atomic.Bool

	log     *eventlog.Log
	broker  *broker.Broker
	ingress *ingress.Handler
	sender  *sender.Sender
	budget  *flow.Budget
	// owned are the streams that the process accepts events for. The mu of history guards it.
	owned sets.Set[eventing.Key]
}

// newReplica starts a process. It fails while the event log cannot be reached.
func newReplica(h *history, name, host string) (*replica, error) {
	r := &replica{history: h, name: name, host: host, budget: flow.NewBudget(memoryBudget, largestRequest), owned: sets.New[eventing.Key]()}
	ctx := klog.NewContext(context.Background(), logr.New(logSink{history: h}))
	var err error
	r.log, err = eventlog.Open(ctx, eventlog.Options{
		URL: "nats://" + serverAddress, Replicas: h.replicas, MaxStreamBytes: 1 << 20, Logger: klog.FromContext(ctx),
		Dial: func(_, address string) (net.Conn, error) { return r.dialServer(address) },
	})
	if err != nil {
		return nil, err
	}
	r.sender = sender.New(sender.Options{Dial: r.dial})
	r.broker = broker.New(ctx, broker.Options{
		Log: logqueue.JetStream(r.log), Send: r.send, Clock: &unequal{}, Budget: r.budget,
		Exists:    func(uid types.UID) bool { return h.existing().Has(uid) },
		Existing:  func(context.Context) (sets.Set[types.UID], error) { return h.existing(), nil },
		Addresses: func(key eventing.Key) []string { return []string{"http://broker" + ingress.Path(key)} }, HealthChanged: func(eventing.Key) {},
		DeadLetters: letterStore{r},
	})
	r.ingress = ingress.New(ingress.Options{Accept: r.accept, Exists: r.broker.Exists, Budget: r.budget})
	return r, nil
}

// accept accepts events for a stream that the process owns.
func (r *replica) accept(ctx context.Context, to eventing.Key, events []*event.Event) error {
	if !r.history.owns(r, to) {
		return eventing.ErrNotOwner
	}
	return r.broker.Accept(ctx, to, events)
}

func (r *replica) dial(ctx context.Context, _, address string) (net.Conn, error) {
	if r.killed.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
	}
	return r.history.network.dial(ctx, r.host, address)
}

// dialServer connects to the NATS server. Connecting must take no time, because the client holds a lock meanwhile: time does
// not advance in a synctest bubble while a goroutine waits for a lock.
func (r *replica) dialServer(address string) (net.Conn, error) {
	if r.killed.Load() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
	}
	return r.history.network.connect(r.host, address, true)
}

// send makes an attempt and records its result.
func (r *replica) send(ctx context.Context, e *event.Event, to eventing.Endpoint, o sender.Attempt) sender.Result {
	id, _ := e.Get(event.ID)
	// Attempts that were started at the same time are made one after the other.
	<-time.After(r.history.stagger(id, to.URL))
	attempt := r.history.begin(r, id, to.URL)
	result := r.sender.Send(ctx, e, to, o)
	r.history.finish(attempt, !r.killed.Load() && ctx.Err() == nil && result.Err == nil, result.Code)
	return result
}

// letterStore is the dead letter store of a process: it accepts dead letters after some time, or is unavailable. A killed process may have stored
// what it was storing.
type letterStore struct{ *replica }

// storeURL stands for the dead letter store of a Trigger in attempts.
func storeURL(name string) string { return "http://store-" + name + ".test/" }

// Add implements broker.DeadLetters.
func (s letterStore) Add(ctx context.Context, l *deadletter.Letter) error {
	h, url := s.history, storeURL(l.Consumer.Name)
	id, _ := l.Event.Get(event.ID)
	latency := h.stagger(id, url)
	attempt := h.begin(s.replica, id, url)
	// The number of the attempt is part of stagger.
	unavailable := latency%5 == 0
	timer := time.NewTimer(100 * latency)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		h.finish(attempt, false, 0)
		return ctx.Err()
	}
	ok := !s.killed.Load() && !unavailable
	h.finish(attempt, ok, 0)
	if !ok {
		return eventlog.ErrUnavailable
	}
	return nil
}

// unequal is the clock of the synctest bubble. Its timers never fire at the same time, because the order of such timers is random.
type unequal struct {
	clock.RealClock
	timers atomic.Int64
}

// later returns a delay that is longer by some nanoseconds.
func (u *unequal) later(d time.Duration) time.Duration {
	return d + time.Duration(u.timers.Add(1)%1000)
}

// AfterFunc implements clock.WithDelayedExecution.
func (u *unequal) AfterFunc(d time.Duration, f func()) clock.Timer {
	return u.RealClock.AfterFunc(u.later(d), f)
}

// NewTimer implements clock.WithDelayedExecution.
func (u *unequal) NewTimer(d time.Duration) clock.Timer { return u.RealClock.NewTimer(u.later(d)) }

// stop stops the process gracefully.
func (r *replica) stop() {
	r.broker.Stop(stopTimeout)
	r.close()
}

// kill ends the process at once. Later actions of its goroutines have no effect.
func (r *replica) kill() {
	r.killed.Store(true)
	r.history.network.reset(r.host)
	r.history.stopping.Go(func() {
		r.broker.Stop(0)
		r.close()
	})
}

func (r *replica) close() {
	r.ingress.Close()
	if err := r.log.Close(); err != nil && !r.killed.Load() {
		r.history.note("%s: %v", r.name, err)
	}
	r.sender.Close()
}

// held returns the bytes that the ended process holds.
func (r *replica) held() int64 { return r.budget.Used() }

// logSink records the log messages about drops and about bugs. It implements logr.LogSink.
type logSink struct {
	history  *history
	consumer string
}

// Init implements logr.LogSink.
func (logSink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink.
func (logSink) Enabled(level int) bool { return level <= 2 }

// Info implements logr.LogSink.
func (l logSink) Info(_ int, message string, _ ...any) {
	if strings.HasPrefix(message, "Dropped ") {
		l.history.dropped(l.consumer)
	}
}

// Error implements logr.LogSink.
func (l logSink) Error(err error, message string, values ...any) {
	switch message {
	case "Ignored event of a delivery", "Dropped unreadable event log record", "Failed to read segment", "Failed to read metadata of message":
		l.history.fail("%s: %v %v", message, err, values)
	}
}

// WithValues implements logr.LogSink.
func (l logSink) WithValues(values ...any) logr.LogSink {
	for i := 0; i+1 < len(values); i += 2 {
		if values[i] == "consumer" {
			l.consumer, _ = values[i+1].(string)
		}
	}
	return l
}

// WithName implements logr.LogSink.
func (l logSink) WithName(string) logr.LogSink { return l }
