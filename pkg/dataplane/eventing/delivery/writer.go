package delivery

import (
	"context"
	"sync"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// writeBytes bounds the records that a writer appends at a time.
const writeBytes = 1 << 20

// write is a record of a delivery to be appended.
type write struct {
	queue    *Queue
	delivery *Delivery
	header   record.Header
	// copied is true for a copy of the delivery's record, alone if the record must have a segment of its own.
	copied, alone bool
}

// writer appends records to a subscriber queue, in batches and in order.
type writer struct {
	queue *Queue

	mu sync.Mutex
	// pending are the writes that follow, and active is true while a goroutine appends them. mu guards both.
	pending []write
	active  bool
}

// add appends a record as soon as possible, unless ctx has ended.
func (w *writer) add(ctx context.Context, next write) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending, next)
	if !w.active && ctx.Err() == nil {
		w.active = true
		w.queue.running.Go(func() { w.run(ctx) })
	}
}

// removeAll removes and returns the pending writes, none of which is being appended. Without any, it ends the goroutine.
func (w *writer) removeAll() []write {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.pending
	w.pending = nil
	if len(all) == 0 {
		w.active = false
	}
	return all
}

func (w *writer) run(ctx context.Context) {
	for writes := w.removeAll(); len(writes) > 0; writes = w.removeAll() {
		for len(writes) > 0 {
			n, bytes := 0, 0
			for n < len(writes) && (n == 0 || bytes+writes[n].delivery.size() <= writeBytes) {
				bytes += writes[n].delivery.size()
				n++
			}
			if err := w.append(ctx, writes[:n], bytes); err != nil {
				klog.FromContext(ctx).V(2).Info("Failed to append to event log queue; keeping deliveries in memory", "queue", w.queue.config.Name, "reason", err.Error())
				// A full log has room after deliveries, so these continue from memory: their current records are durable. The pause keeps
				// repeated failures from loading the processor.
				backoff.Sleep(ctx, w.queue.stream.config.Clock, rewriteDelay)
				w.queue.written(writes, err)
				break
			}
			w.queue.written(writes[:n], nil)
			writes = writes[n:]
		}
	}
}

func (w *writer) append(ctx context.Context, writes []write, bytes int) error {
	q := w.queue
	defer q.stream.config.Workers.limitWrite(bytes)()
	records := make([]eventlog.Record, 0, len(writes))
	for i := range writes {
		next := &writes[i]
		records = append(records, eventlog.Record{Queue: q.config.Name, Data: next.delivery.encode(&next.header), Alone: next.alone || q.config.Ordered()})
	}
	q.Reader.Expect()
	if err := q.stream.config.Log.Append(ctx, records...); err != nil {
		return err
	}
	q.Reader.Notify(ctx)
	return nil
}
