package eventrun

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// maxBacklog bounds the events of a run in the queue of its consumer: further ones wait in their source, where they take no part of the
	// event log from new events. backlogPart is the number of events after which the queue is looked at again.
	maxBacklog, backlogPart = 1000, 100
	// backlogDelay is the time between looks at a long queue.
	backlogDelay = 200 * time.Millisecond
	// firstDelay and maxDelay bound the time between attempts to queue an event, or to read the source.
	firstDelay, maxDelay = 100 * time.Millisecond, 10 * time.Second
	// commitTimeout bounds the time for which a run that was stopped continues to queue the event in progress, or to remove it from its source.
	commitTimeout = 5 * time.Second
)

// source has the stored events of a run, in their order.
type source interface {
	// read returns the events from a position on: so few that a page fits in memory. next is the position of the others, 0 without others.
	read(ctx context.Context, from uint64) (page []item, next uint64, err error)
	// holds reports whether an event that was read is still in the source. A page may be old if events follow slowly.
	holds(ctx context.Context, i *item) (bool, error)
	// done is called after an event is queued, or cannot be: read does not return it anymore after a restart, except a failed one.
	done(ctx context.Context, i *item, failed bool) error
}

// item is a stored event, and its position in the source.
type item struct {
	event    *event.Event
	position uint64
}

// pageBytes is the memory that a page of a source takes at most, besides one event, which may be larger.
const pageBytes = 1 << 20

// run is a run in progress.
type run struct {
	Options
	name types.NamespacedName
	spec eventing.Run
	// target is the consumer that gets the events, or the Broker whose consumers get them, and its UID.
	target    eventing.Key
	targetUID types.UID
	// source has the events of a redrive. begin is closed when they may be queued.
	source   source
	begin    <-chan struct{}
	selected *filter.Filter
	progress *progress
	// destination gets the events of a redrive instead of the target; it has nil if the target gets them.
	destination *atomic.Pointer[eventing.Endpoint]
}

// redrive counts the events of the source, and queues them once begin is closed. It returns when all are queued, or ctx is canceled.
func (r *run) redrive(ctx context.Context) {
	remaining := int64(0)
	if !r.each(ctx, func(*item) bool { remaining++; return true }) {
		return
	}
	r.progress.change(func(p *eventing.RunProgress) { p.Counted, p.Remaining = true, remaining })
	r.Changed(r.name)
	select {
	case <-r.begin:
	case <-ctx.Done():
		return
	}
	limiter := rate.NewLimiter(rate.Inf, 1)
	if r.spec.Rate > 0 {
		limiter.SetLimit(rate.Limit(r.spec.Rate))
	}
	queued := 0
	if !r.each(ctx, func(i *item) bool {
		if r.destination.Load() == nil && queued%backlogPart == 0 && !r.awaitBacklog(ctx, maxBacklog) {
			return false
		}
		queued++
		return limiter.Wait(ctx) == nil && r.queue(ctx, i)
	}) {
		return
	}
	r.progress.change(func(p *eventing.RunProgress) { p.Ended, p.Waiting = true, "" })
	r.Changed(r.name)
}

// each calls a function with each selected event. It returns false when the function does, or when ctx is canceled.
func (r *run) each(ctx context.Context, do func(*item) bool) bool {
	for position := uint64(1); position > 0; {
		next, ok := r.page(ctx, position, do)
		if !ok {
			return false
		}
		position = next
	}
	return ctx.Err() == nil
}

// page calls a function with the selected events of the page from a position on, and returns the next position.
func (r *run) page(ctx context.Context, position uint64, do func(*item) bool) (next uint64, ok bool) {
	if !r.reserve(ctx) {
		return 0, false
	}
	defer r.release()
	var page []item
	if !r.retry(ctx, func() (err error) {
		page, next, err = r.source.read(ctx, position)
		return err
	}) {
		return 0, false
	}
	budget := filter.NewBudget(ctx)
	for i := range page {
		matched, _ := r.selected.Match(budget, page[i].event)
		if budget.Err() != nil || matched && !do(&page[i]) {
			return 0, false
		}
	}
	return next, true
}

// reserve waits for the memory of a page. It returns false when ctx is canceled; otherwise release must be called.
func (r *run) reserve(ctx context.Context) bool {
	reserved := false
	if r.retry(ctx, func() error {
		if reserved = r.Budget.Reserve(r.target.Namespace, pageBytes); !reserved {
			return errMemory
		}
		return nil
	}) {
		return true
	}
	if reserved {
		// ctx was canceled meanwhile.
		r.release()
	}
	return false
}

func (r *run) release() { r.Budget.Release(r.target.Namespace, pageBytes) }

var errMemory = errors.New("the namespace reached its share of the memory budget")

// retry calls a function until it succeeds. It returns false when ctx is canceled.
func (r *run) retry(ctx context.Context, do func() error) bool {
	for failures := 1; ; failures++ {
		err := do()
		if err == nil {
			if failures > 1 {
				r.wait("")
			}
			return ctx.Err() == nil
		}
		if ctx.Err() != nil {
			return false
		}
		if failures == 1 {
			r.Logger.V(2).Info("Waiting to deliver stored events", "target", r.target.String(), "reason", err.Error())
		}
		r.wait(err.Error())
		if !backoff.Sleep(ctx, r.Clock, backoff.Delay(failures, firstDelay, maxDelay)) {
			return false
		}
	}
}

// wait reports why the run waits.
func (r *run) wait(reason string) {
	r.progress.change(func(p *eventing.RunProgress) { p.Waiting = reason })
}

// awaitBacklog waits until the queue of the target has less than a number of segments. It returns false when ctx is canceled.
func (r *run) awaitBacklog(ctx context.Context, segments uint64) bool {
	for waited := false; ; waited = true {
		var backlog uint64
		if !r.retry(ctx, func() (err error) {
			backlog, err = r.Target.Backlog(ctx, r.target, r.targetUID)
			return err
		}) {
			return false
		}
		if backlog < segments {
			if waited {
				r.wait("")
			}
			return true
		}
		r.wait("many events are queued for the subscriber")
		if !backoff.Sleep(ctx, r.Clock, backlogDelay) {
			return false
		}
	}
}

// mark returns an event with the attribute of the run.
func (r *run) mark(e *event.Event) *event.Event {
	return e.With(event.Attribute{Name: event.Run, Value: string(r.spec.ID)})
}

// commit executes an operation that a stopped run completes.
func commit(ctx context.Context, do func(ctx context.Context) error) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return do(limited)
}

// send queues events for the target. It returns an error that is eventing.ErrTooLarge, or the last one when ctx is canceled; it repeats all others.
func (r *run) send(ctx context.Context, events []*event.Event) (err error) {
	do := r.Target.Redeliver
	if r.target.Kind == eventing.Broker {
		do = r.Target.Replay
	}
	r.retry(ctx, func() error {
		err = commit(ctx, func(ctx context.Context) error { return do(ctx, r.target, r.targetUID, events) })
		if errors.Is(err, eventing.ErrTooLarge) {
			return nil
		}
		return err
	})
	return err
}

// errRefused is returned for an event that the destination of a run does not accept.
var errRefused = errors.New("the destination does not accept the event")

// deliver sends an event to the destination of the run. It returns an error that is errRefused, or the last one when ctx is canceled; it repeats all
// attempts after which another one may succeed.
func (r *run) deliver(ctx context.Context, e *event.Event) (err error) {
	r.retry(ctx, func() error {
		result := r.Send(ctx, e, *r.destination.Load(), sender.Attempt{Namespace: r.target.Namespace, Consumer: r.target})
		if err = result.Err; err != nil && !result.Retryable && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", errRefused, err)
			return nil
		}
		return err
	})
	return err
}

// queue queues an event, or delivers it to the destination of the run, and then removes it from its source. A run that is stopped in between does the latter too. It returns false when ctx is
// canceled.
func (r *run) queue(ctx context.Context, i *item) bool {
	if ctx.Err() != nil {
		return false
	}
	marked := []*event.Event{r.mark(i.event)}
	held := false
	if !r.retry(ctx, func() (err error) {
		held, err = r.source.holds(ctx, i)
		return err
	}) {
		return false
	}
	if !held {
		// It was deleted meanwhile.
		r.progress.change(func(p *eventing.RunProgress) { p.Queued++ })
		return true
	}
	var err error
	if r.destination.Load() != nil {
		err = r.deliver(ctx, marked[0])
	} else {
		err = r.send(ctx, marked)
	}
	failed := errors.Is(err, eventing.ErrTooLarge) || errors.Is(err, errRefused)
	switch {
	case failed:
		r.Logger.Info("Kept stored event that cannot be delivered again", "target", r.target.String(), "reason", err.Error())
	case err != nil:
		return false
	}
	removed := r.retry(ctx, func() error {
		return commit(ctx, func(ctx context.Context) error { return r.source.done(ctx, i, failed) })
	})
	r.progress.change(func(p *eventing.RunProgress) {
		if failed {
			p.Failed++
		} else {
			p.Queued++
		}
	})
	return removed
}
