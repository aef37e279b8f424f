package eventrun

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/time/rate"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// archivePageItems bounds the events of a page of an archive.
	archivePageItems = 1000
	// batchItems and batchBytes bound the events that a replay queues together, besides one event, which may be larger.
	batchItems, batchBytes = 50, 256 << 10
	// maxBatches bounds the segments in the longest queue of the target, as maxBacklog does. A batch is a segment.
	maxBatches = 100
	// maxAhead is the number of events after the stored progress from which a replay waits until more progress is stored.
	maxAhead = 4000
)

// Archives has the archives of Brokers. See archive.Store.
type Archives interface {
	Read(ctx context.Context, q archive.Query) (archive.Page, error)
}

// replay is a run in progress that delivers archived events. They remain in the archive, so the controller stores the position; a crash
// repeats the events that were queued since.
type replay struct {
	*run
	limiter *rate.Limiter
	// batch bounds the events of a batch: a low rate makes small ones.
	batch int
}

func newReplay(r *run) *replay {
	replay := &replay{run: r, batch: batchItems}
	limit := rate.Inf
	if r.spec.Rate > 0 {
		// Ten batches each second.
		limit, replay.batch = rate.Limit(r.spec.Rate), min(max(r.spec.Rate/10, 1), batchItems)
	}
	replay.limiter = rate.NewLimiter(limit, replay.batch)
	return replay
}

// do queues all events. It returns when all are queued, none can be queued anymore, or ctx is canceled.
func (r *replay) do(ctx context.Context) {
	at, err := archive.ParsePosition(r.spec.Replay.Stored.Position)
	if err != nil {
		err = fmt.Errorf("%w: %w", eventing.ErrPosition, err)
	}
	for more := true; more && err == nil; {
		if at, more, err = r.page(ctx, at); ctx.Err() != nil {
			return
		}
	}
	r.progress.change(func(p *eventing.RunProgress) { p.Ended, p.Err, p.Waiting = true, err, "" })
	r.Changed(r.name)
}

// page queues the selected events of the page at a position. It returns the next position, and whether more events may follow. An error is final,
// unless ctx is canceled.
func (r *replay) page(ctx context.Context, at archive.Position) (next archive.Position, more bool, err error) {
	if !r.reserve(ctx) {
		return at, false, ctx.Err()
	}
	defer r.release()
	spec, page, replaced := r.spec.Replay, archive.Page{}, false
	query := archive.Query{Broker: spec.Broker, UID: spec.BrokerUID, From: spec.From, To: spec.To, At: at, MaxEvents: archivePageItems, MaxBytes: pageBytes}
	if !r.retry(ctx, func() (err error) {
		page, err = r.Archives.Read(ctx, query)
		if replaced = errors.Is(err, archive.ErrReplaced); replaced {
			return nil
		}
		return err
	}) {
		return at, false, ctx.Err()
	}
	if replaced {
		return at, false, eventing.ErrArchiveReplaced
	}
	if page.Evicted {
		r.progress.change(func(p *eventing.RunProgress) { p.Replay.Evicted = true })
	}
	if err := r.queueAll(ctx, page.Events); err != nil {
		return at, false, err
	}
	r.progress.change(func(p *eventing.RunProgress) { p.Replay.Position = page.Next.String() })
	return page.Next, page.More, nil
}

// queueAll queues the selected ones of some events in batches. It returns an error when ctx is canceled.
func (r *replay) queueAll(ctx context.Context, events []archive.Event) error {
	var batch []archive.Event
	size := 0
	for i := range events {
		budget := filter.NewBudget(ctx)
		matched, _ := r.selected.Match(budget, events[i].Event)
		if err := budget.Err(); err != nil {
			return err
		}
		if !matched {
			continue
		}
		batch, size = append(batch, events[i]), size+events[i].Event.Size()
		if len(batch) >= r.batch || size >= batchBytes {
			if err := r.queueBatch(ctx, batch); err != nil {
				return err
			}
			batch, size = batch[:0], 0
		}
	}
	return r.queueBatch(ctx, batch)
}

// queueBatch queues events when the target, the rate and the stored progress permit it. It returns an error when ctx is canceled.
func (r *replay) queueBatch(ctx context.Context, batch []archive.Event) error {
	if len(batch) == 0 {
		return nil
	}
	if !r.awaitStored(ctx) || !r.awaitBacklog(ctx, maxBatches) {
		return ctx.Err()
	}
	if err := r.limiter.WaitN(ctx, len(batch)); err != nil {
		return err
	}
	return r.queueTogether(ctx, batch)
}

// awaitStored waits until few events are queued after the stored progress. It returns false when ctx is canceled.
func (r *replay) awaitStored(ctx context.Context) bool {
	for {
		stored, full := r.progress.stored()
		if !full {
			return ctx.Err() == nil
		}
		r.Changed(r.name)
		select {
		case <-stored:
		case <-ctx.Done():
			return false
		}
	}
}

// queueTogether queues events, and then moves the position. It returns an error when ctx is canceled.
func (r *replay) queueTogether(ctx context.Context, batch []archive.Event) error {
	marked := make([]*event.Event, len(batch))
	for i := range batch {
		marked[i] = r.mark(batch[i].Event)
	}
	err := r.send(ctx, marked)
	tooLarge := errors.Is(err, eventing.ErrTooLarge)
	switch {
	case tooLarge && len(batch) > 1:
		for i := range batch {
			if err := r.queueTogether(ctx, batch[i:i+1]); err != nil {
				return err
			}
		}
		return nil
	case tooLarge:
		r.Logger.Info("Skipped archived event that is too large to be delivered again", "target", r.target.String())
	case err != nil:
		return err
	}
	last := &batch[len(batch)-1]
	r.progress.change(func(p *eventing.RunProgress) {
		p.Replay.Position = last.Next.String()
		if tooLarge {
			p.Replay.Failed++
			return
		}
		p.Replay.Queued += int64(len(batch))
		p.Replay.LastEvent = last.Accepted
	})
	return ctx.Err()
}
