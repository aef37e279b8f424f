// Package eventrun executes runs: it reads stored events, and queues them for a consumer again, or for all consumers of a Broker, in their order.
//
// A redrive reads dead letters, one after another. Each is deleted only after it is durable in the consumer's queue, or delivered to the destination of
// the run, so a crash repeats at most one and loses none. A replay reads an archive, which keeps its events: the position moves after events are durable, and the controller stores it.
// A crash repeats the events that were queued since, of which there is a bounded number. The memory of a run is one page.
package eventrun

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// reportInterval is the minimum time between changes of a reported progress.
const reportInterval = time.Second

// Target queues events for consumers. See broker.Broker.
type Target interface {
	Serves(consumer eventing.Key, uid types.UID) bool
	Replay(ctx context.Context, broker eventing.Key, uid types.UID, events []*event.Event) error
	Redeliver(ctx context.Context, consumer eventing.Key, uid types.UID, events []*event.Event) error
	Backlog(ctx context.Context, target eventing.Key, uid types.UID) (uint64, error)
}

// Options are the dependencies of Runs. All are required unless they say otherwise.
type Options struct {
	Target Target
	// Store has the dead letters. Nil executes no redrives.
	Store Store
	// Archives has the archived events. Nil executes no replays.
	Archives Archives
	// Budget bounds the bytes of the pages that runs hold.
	Budget *flow.Budget
	// Changed is called when a run has counted its events, waits until its progress is stored, or has ended. It must not block.
	Changed func(name types.NamespacedName)
	// Send makes one attempt to send an event to the destination of a run. See sender.Sender.
	Send   func(ctx context.Context, e *event.Event, to eventing.Endpoint, o sender.Attempt) sender.Result
	Clock  clock.Clock
	Logger logr.Logger
}

// Runs implements eventing.Runs. Its methods may be called concurrently, but not two at a time for the same name.
type Runs struct {
	options Options
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu sync.Mutex
	// mu guards all. It is nil after Close.
	all map[types.NamespacedName]*started
}

var _ eventing.Runs = &Runs{}

// started is a run that was started, and may have ended.
type started struct {
	id     types.UID
	cancel context.CancelFunc
	// begin makes a redrive queue events.
	begin func()
	// done is closed when the run has stopped.
	done     chan struct{}
	progress *progress
	// destination is the destination of the run, or nil.
	destination *atomic.Pointer[eventing.Endpoint]
}

// New returns Runs until Close. ctx carries values only.
func New(ctx context.Context, options Options) *Runs {
	r := &Runs{options: options, all: map[types.NamespacedName]*started{}}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return r
}

// Last implements eventing.Runs.
func (r *Runs) Last(ctx context.Context, namespace string) (string, error) {
	position, err := r.options.Store.Position(ctx, namespace)
	if errors.Is(err, deadletter.ErrNotFound) || err == nil && position.First > position.Last {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return position.Name(position.Last), nil
}

// Serves implements eventing.Runs.
func (r *Runs) Serves(consumer eventing.Key, uid types.UID) bool {
	return r.options.Target.Serves(consumer, uid)
}

// Start implements eventing.Runs.
func (r *Runs) Start(name types.NamespacedName, spec eventing.Run) eventing.RunProgress {
	r.mu.Lock()
	before := r.all[name]
	r.mu.Unlock()
	if before != nil {
		if before.id == spec.ID {
			if spec.Begin {
				before.begin()
			}
			if spec.Replay != nil {
				before.progress.store(&spec.Replay.Stored)
			}
			if spec.Destination != nil {
				before.destination.Store(spec.Destination)
			}
			return before.progress.report(r.options.Clock.Now())
		}
		r.Stop(name)
	}
	selected, err := filter.Compile(nil, spec.Filters)
	if err != nil {
		// Validation prevents it.
		return eventing.RunProgress{Waiting: "read the selector: " + err.Error()}
	}
	begin := make(chan struct{})
	s := &started{id: spec.ID, begin: sync.OnceFunc(func() { close(begin) }), done: make(chan struct{}), progress: &progress{}, destination: &atomic.Pointer[eventing.Endpoint]{}}
	s.destination.Store(spec.Destination)
	if spec.Begin {
		s.begin()
	}
	running := &run{
		Options: r.options, name: name, spec: spec, target: spec.Consumer, targetUID: spec.ConsumerUID, selected: selected, progress: s.progress, begin: begin, destination: s.destination,
	}
	do := running.redrive
	if spec.Replay == nil {
		running.source = &deadLetters{store: r.options.Store, namespace: spec.Consumer.Namespace, consumer: spec.ConsumerUID, last: spec.Last}
	} else {
		if spec.Consumer == (eventing.Key{}) {
			running.target, running.targetUID = spec.Replay.Broker, spec.Replay.BrokerUID
		}
		s.progress.resume(&spec.Replay.Stored)
		do = newReplay(running).do
	}
	ctx, cancel := context.WithCancel(r.ctx)
	s.cancel = cancel
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		cancel()
		return eventing.RunProgress{}
	}
	r.all[name] = s
	r.running.Go(func() {
		defer close(s.done)
		defer cancel()
		do(ctx)
	})
	return s.progress.report(r.options.Clock.Now())
}

// Stop implements eventing.Runs.
func (r *Runs) Stop(name types.NamespacedName) {
	r.mu.Lock()
	s := r.all[name]
	delete(r.all, name)
	r.mu.Unlock()
	if s != nil {
		s.cancel()
		<-s.done
	}
}

// Close stops all runs, and starts no others.
func (r *Runs) Close() {
	r.mu.Lock()
	r.all = nil
	r.mu.Unlock()
	r.cancel()
	r.running.Wait()
}

// progress is the progress of a run.
type progress struct {
	mu sync.Mutex
	// mu guards the fields below. reported is the last result of report, and at its time.
	now, reported eventing.RunProgress
	at            time.Time
	// done is the number of events of a replay whose progress is stored. more is closed when it has increased, if it is not nil.
	done int64
	more chan struct{}
}

// handled returns the number of events that are behind a replay.
func handled(p *eventing.ReplayProgress) int64 { return p.Queued + p.Failed }

// resume begins with the stored progress of a replay.
func (p *progress) resume(from *eventing.ReplayProgress) {
	p.now.Replay, p.done = *from, handled(from)
}

// store records the progress of a replay that is stored by now. It may be an earlier one than before.
func (p *progress) store(now *eventing.ReplayProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := handled(now); n > p.done {
		p.done = n
		if p.more != nil {
			close(p.more)
			p.more = nil
		}
	}
}

// stored reports whether a replay is so far ahead of its stored progress that it must wait, and returns a channel that is closed when more is stored.
func (p *progress) stored() (more <-chan struct{}, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.full() {
		return nil, false
	}
	if p.more == nil {
		p.more = make(chan struct{})
	}
	return p.more, true
}

// full reports whether a replay must wait. mu is held.
func (p *progress) full() bool { return handled(&p.now.Replay)-p.done >= maxAhead }

// change changes the progress.
func (p *progress) change(do func(*eventing.RunProgress)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do(&p.now)
}

// report returns the progress, which is at most reportInterval old, or current once the run has counted its events, waits until its progress is
// stored, or has ended.
func (p *progress) report(now time.Time) eventing.RunProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.Ended || p.now.Counted != p.reported.Counted || p.full() || now.Sub(p.at) >= reportInterval {
		p.reported, p.at = p.now, now
	}
	return p.reported
}
