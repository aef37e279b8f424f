package broker

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// leaveTimeout bounds how long the log may take to store what stopped lanes leave.
const leaveTimeout = 5 * time.Second

// leave has stopped consumers, of which nothing is under way, leave what waits in memory to whoever comes next, so that
// nothing is repeated that was done before.
func leave(ctx context.Context, consumers []*consumer) {
	// Storing goes on after the context of deliveries has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	// What waits for the dead letter sink is a part of a segment of the main lane.
	for _, of := range []func(*consumer) *lane{
		func(c *consumer) *lane { return c.dead },
		func(c *consumer) *lane { return c.main },
	} {
		var writing sync.WaitGroup
		for _, c := range consumers {
			l := of(c)
			if parts := l.parts(); len(parts) > 0 {
				writing.Go(func() { l.leave(ctx, parts) })
			}
		}
		writing.Wait()
	}
}

// parts returns what waits in memory from segments of which something is done: the log hands them over again as a whole.
// Others are as they were in the log. Where there is an order, it is kept instead.
func (l *lane) parts() []*parcel {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone || l.ordered() {
		return nil
	}
	var parts []*parcel
	for _, d := range append(l.ready.items[l.ready.head:len(l.ready.items):len(l.ready.items)], l.waiting...) {
		from := d.from
		if d.leased {
			from = l.leased[d.id]
		}
		if from != nil && !from.whole() {
			parts = append(parts, d)
		}
	}
	return parts
}

// leave writes deliveries to the own queue by themselves, and lets go of the segments that they came in.
func (l *lane) leave(ctx context.Context, parts []*parcel) {
	records := make([]eventlog.Record, 0, len(parts))
	for _, d := range parts {
		next := *d
		next.id = newID()
		records = append(records, eventlog.Record{Queue: l.queue, Data: next.record(next.header())})
	}
	if err := l.log.Append(ctx, records...); err != nil {
		klog.FromContext(ctx).Error(err, "Some events will be delivered again that were before", "queue", l.queue)
		return
	}
	for _, d := range parts {
		l.mu.Lock()
		l.done(d)
		l.mu.Unlock()
	}
}
