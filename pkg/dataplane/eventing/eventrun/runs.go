// Package eventrun executes runs: it reads stored events from a source, and queues them for a consumer again, one after another.
//
// A source is independent of the rest: dead letters are one, and other stores of events can be. An event leaves its source, or moves the
// position in it, only after it is durable in the consumer's queue, so a crash repeats at most one event and loses none. The memory of a run is one
// page of its source.
package eventrun

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// reportInterval is the minimum time between changes of a reported progress.
const reportInterval = time.Second

// Target queues events for consumers. See broker.Broker.
type Target interface {
	Redeliver(ctx context.Context, consumer eventing.Key, uid types.UID, events []*event.Event) error
	Backlog(ctx context.Context, consumer eventing.Key, uid types.UID) (uint64, error)
}

// Options are the dependencies of Runs. All are required.
type Options struct {
	Target Target
	// Store has the dead letters.
	Store Store
	// Budget bounds the bytes of the pages that runs hold.
	Budget *flow.Budget
	// Changed is called when a run has counted its events, and when it has ended. It must not block.
	Changed func(name types.NamespacedName)
	Clock   clock.Clock
	Logger  logr.Logger
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
	// begin makes the run queue events.
	begin func()
	// done is closed when the run has stopped.
	done     chan struct{}
	progress *progress
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
	s := &started{id: spec.ID, begin: sync.OnceFunc(func() { close(begin) }), done: make(chan struct{}), progress: &progress{}}
	if spec.Begin {
		s.begin()
	}
	running := &run{
		Options: r.options, spec: spec, selected: selected, progress: s.progress, begin: begin, changed: func() { r.options.Changed(name) },
		source: &deadLetters{store: r.options.Store, namespace: spec.Consumer.Namespace, consumer: spec.ConsumerUID, last: spec.Last},
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
		running.do(ctx)
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
}

// change changes the progress.
func (p *progress) change(do func(*eventing.RunProgress)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do(&p.now)
}

// report returns the progress, which is at most reportInterval old, or current once the run has counted its events or has ended.
func (p *progress) report(now time.Time) eventing.RunProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now.Ended || p.now.Counted != p.reported.Counted || now.Sub(p.at) >= reportInterval {
		p.reported, p.at = p.now, now
	}
	return p.reported
}
