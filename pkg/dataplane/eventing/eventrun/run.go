package eventrun

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
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
	spec     eventing.Run
	source   source
	selected *filter.Filter
	progress *progress
	// begin is closed when events may be queued. changed is called when the events are counted, and at the end.
	begin   <-chan struct{}
	changed func()
}

// do counts the events, and queues them once begin is closed. It returns when all are queued, or ctx is canceled.
func (r *run) do(ctx context.Context) {
	remaining := int64(0)
	if !r.each(ctx, func(*item) bool { remaining++; return true }) {
		return
	}
	r.progress.change(func(p *eventing.RunProgress) { p.Counted, p.Remaining = true, remaining })
	r.changed()
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
		if queued%backlogPart == 0 && !r.awaitBacklog(ctx) {
			return false
		}
		queued++
		return limiter.Wait(ctx) == nil && r.queue(ctx, i)
	}) {
		return
	}
	r.progress.change(func(p *eventing.RunProgress) { p.Ended, p.Waiting = true, "" })
	r.changed()
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
	namespace := r.spec.Consumer.Namespace
	reserved := int64(0)
	defer func() { r.Budget.Release(namespace, reserved) }()
	if !r.retry(ctx, func() error {
		if !r.Budget.Reserve(namespace, pageBytes) {
			return errMemory
		}
		reserved = pageBytes
		return nil
	}) {
		return 0, false
	}
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
			r.Logger.V(2).Info("Waiting to deliver stored events", "consumer", r.spec.Consumer.String(), "reason", err.Error())
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

// awaitBacklog waits until the queue of the consumer is short. It returns false when ctx is canceled.
func (r *run) awaitBacklog(ctx context.Context) bool {
	for waited := false; ; waited = true {
		var backlog uint64
		if !r.retry(ctx, func() (err error) {
			backlog, err = r.Target.Backlog(ctx, r.spec.Consumer, r.spec.ConsumerUID)
			return err
		}) {
			return false
		}
		if backlog < maxBacklog {
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

// queue queues an event, and then removes it from its source. A run that is stopped in between does the latter too. It returns false when ctx is
// canceled.
func (r *run) queue(ctx context.Context, i *item) bool {
	if ctx.Err() != nil {
		return false
	}
	marked := []*event.Event{i.event.With(event.Attribute{Name: event.Run, Value: string(r.spec.ID)})}
	commit := func(do func(ctx context.Context) error) error {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
		defer cancel()
		return do(limited)
	}
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
	failed, queued := false, false
	r.retry(ctx, func() error {
		err := commit(func(ctx context.Context) error {
			return r.Target.Redeliver(ctx, r.spec.Consumer, r.spec.ConsumerUID, marked)
		})
		failed, queued = errors.Is(err, eventing.ErrTooLarge), err == nil
		if failed {
			r.Logger.Info("Kept stored event that is too large to be delivered again", "consumer", r.spec.Consumer.String(), "reason", err.Error())
			return nil
		}
		return err
	})
	if !queued && !failed {
		return false
	}
	removed := r.retry(ctx, func() error {
		return commit(func(ctx context.Context) error { return r.source.done(ctx, i, failed) })
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
