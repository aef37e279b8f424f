package delivery

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

const (
	// SharedQueue is the queue of accepted events for the consumers that keep up.
	SharedQueue = ""
	// RetryQueue is the queue of events for several consumers that failed or do not keep up. A record lists the consumers with
	// the same number of attempts and about the same due time.
	RetryQueue = "retry"

	// sharedSegments and sharedBytes bound the part of the shared queue in memory. Queues release these segments within about a
	// second.
	sharedSegments, sharedBytes = 4096, 64 << 20
	// retrySegments and retryBytes bound the part of the retry queue in memory.
	retrySegments, retryBytes = 4096, 16 << 20
)

// StreamConfig has the dependencies of a Stream. All are required.
type StreamConfig struct {
	Log     logqueue.Stream
	Clock   clock.WithDelayedExecution
	Workers *Workers
	Share   *Share
	Memory  *logqueue.Memory
	// Assign passes a delivery to the Queue of a consumer by Queue.Offer, keeps it for later, or discards it.
	Assign func(consumer types.UID, d *Delivery)
}

// Stream reads the records that several consumers share, and writes their retries.
type Stream struct {
	// Shared and Retries read the queues of these names.
	Shared, Retries *logqueue.Reader

	config StreamConfig
	ctx    context.Context
	// sharedHeld and retriesHeld count the segments of both queues in memory.
	sharedHeld, retriesHeld atomic.Int64
}

// NewStream returns a Stream that reads nothing before its Readers are started.
func NewStream(ctx context.Context, config StreamConfig) *Stream {
	s := &Stream{config: config, ctx: ctx}
	s.Shared = logqueue.NewReader(logqueue.ReaderConfig{
		Log: config.Log, Queue: SharedQueue, Clock: config.Clock, Handle: s.readShared,
		Idle: func() bool { return s.sharedHeld.Load() == 0 },
		Options: func() eventlog.ConsumeOptions {
			return eventlog.ConsumeOptions{MaxSegments: sharedSegments, MaxBytes: sharedBytes}
		},
	})
	s.Retries = logqueue.NewReader(logqueue.ReaderConfig{
		Log: config.Log, Queue: RetryQueue, Clock: config.Clock, Handle: s.readRetries,
		Idle: func() bool { return s.retriesHeld.Load() == 0 },
		Options: func() eventlog.ConsumeOptions {
			return eventlog.ConsumeOptions{MaxSegments: retrySegments, MaxBytes: retryBytes, Memory: config.Memory}
		},
	})
	return s
}

// Halt prevents further reading of both queues, except from open log consumers.
func (s *Stream) Halt() {
	s.Shared.Halt()
	s.Retries.Halt()
}

// Stop stops reading both queues.
func (s *Stream) Stop() {
	s.Shared.Stop()
	s.Retries.Stop()
}

// Wait waits for the Readers of a stopped Stream, whose context has ended.
func (s *Stream) Wait() {
	s.Shared.Wait()
	s.Retries.Wait()
}

// crowded reports whether other deliveries wait for the memory of shared segments.
func (s *Stream) crowded() bool { return s.Retries.Behind() || s.config.Memory.Scarce() }

// sharedHandle counts the segments in memory until they are acknowledged.
type sharedHandle struct {
	logqueue.Handle
	held *atomic.Int64
}

// Ack implements logqueue.Handle.
func (h sharedHandle) Ack() {
	h.held.Add(-1)
	h.Handle.Ack()
}

// sharedRecord is a decoded record of several consumers.
type sharedRecord struct {
	record.Header
	encoded []byte
	event   *event.Event
}

// decodeShared returns the record in data. It logs records that cannot be read.
func (s *Stream) decodeShared(data []byte) (r sharedRecord, ok bool) {
	var err error
	if r.encoded, err = r.Parse(data); err == nil {
		r.event, err = event.Decode(r.encoded)
	}
	if err != nil {
		klog.FromContext(s.ctx).Error(err, "Dropped unreadable event log record")
		return r, false
	}
	return r, true
}

// readShared assigns the deliveries in a segment of the shared queue.
func (s *Stream) readShared(f logqueue.Segment) {
	s.sharedHeld.Add(1)
	from := &segment{handle: sharedHandle{f.Handle, &s.sharedHeld}}
	// The additional delivery keeps the segment until all are counted.
	from.left.Add(1)
	for _, data := range f.Records {
		if r, ok := s.decodeShared(data); ok {
			s.assign(&r, from, machine.Shared)
		}
	}
	from.release()
}

// readRetries assigns the deliveries in a segment of the retry queue. While memory is scarce, it leaves the segment in the log
// until the first delivery is due.
func (s *Stream) readRetries(f logqueue.Segment) {
	var due time.Time
	all := make([]sharedRecord, 0, len(f.Records))
	for _, data := range f.Records {
		r, ok := s.decodeShared(data)
		if !ok {
			continue
		}
		if len(all) == 0 || r.Due.Before(due) {
			due = r.Due
		}
		all = append(all, r)
	}
	if wait := due.Sub(s.config.Clock.Now()); len(all) > 0 && wait >= SharedTimeout && s.config.Memory.Scarce() {
		f.Handle.Nack(wait)
		return
	}
	s.retriesHeld.Add(1)
	from := &segment{handle: sharedHandle{f.Handle, &s.retriesHeld}}
	// The additional delivery keeps the segment until all are counted.
	from.left.Add(1)
	for i := range all {
		s.assign(&all[i], from, machine.SharedRetry)
	}
	from.release()
}

// assign creates the deliveries of a record.
func (s *Stream) assign(r *sharedRecord, from *segment, kind machine.Record) {
	from.need(int32(len(r.Targets)))
	g := newGroup(s, len(r.Targets))
	for _, target := range r.Targets {
		s.config.Assign(target, &Delivery{
			Event: r.event, encoded: r.encoded, id: record.NewID(), accepted: r.Accepted, Attempts: r.Attempts, due: r.Due, unanswered: r.Unanswered,
			state: machine.State{Record: kind}, shared: from, group: g,
		})
	}
}

// retry writes the retries of an event that share a record.
func (s *Stream) retry(retries []write) {
	defer func() {
		for i := range retries {
			retries[i].queue.running.Done()
		}
	}()
	if len(retries) == 1 {
		q := retries[0].queue
		q.writer.add(q.ctx, retries[0])
		return
	}
	last := retries[len(retries)-1]
	h := last.header
	for i := range retries {
		h.Targets = append(h.Targets, types.UID(retries[i].queue.config.Name))
	}
	s.Retries.Expect()
	done := s.config.Workers.limitWrite(last.delivery.size())
	err := s.config.Log.Append(s.ctx, eventlog.Record{Queue: RetryQueue, Data: last.delivery.encode(&h), Alone: true})
	done()
	if err != nil {
		klog.FromContext(s.ctx).V(2).Info("Failed to write retries; keeping them in memory", "reason", err.Error())
		backoff.Sleep(s.ctx, s.config.Clock, rewriteDelay)
	} else {
		s.Retries.Notify(s.ctx)
	}
	for i := range retries {
		retries[i].queue.written(retries[i:i+1], err)
	}
}

// Store appends deliveries that were offered to no Queue to the queue of a consumer, and releases their shared segments.
func (s *Stream) Store(ctx context.Context, queue string, deliveries []*Delivery) error {
	records := make([]eventlog.Record, 0, len(deliveries))
	for _, d := range deliveries {
		h := d.header(record.NewID())
		// The consumer may turn out to want events in order.
		records = append(records, eventlog.Record{Queue: queue, Data: d.encode(&h), Alone: true})
	}
	if err := s.config.Log.Append(ctx, records...); err != nil {
		return err
	}
	for _, d := range deliveries {
		d.release(machine.OfferedBehind, machine.Appended)
	}
	return nil
}

// WaitForCopies waits, at the end of the process or of the stream's ownership, until copies were read from the subscriber queues.
// Copies whose deliveries ended are acknowledged then, instead of being sent by the next process. It must be called after
// WaitInFlight, and before the Readers are stopped.
func WaitForCopies(ctx context.Context, queues []*Queue) {
	ctx, cancel := context.WithTimeout(ctx, copiesTimeout)
	defer cancel()
	for _, q := range queues {
		q.waitForCopies(ctx)
	}
}

// Drain stores, at the end of the process or of the stream's ownership, the deliveries in memory whose segments contain
// finished deliveries, so that these are not repeated. The Queues must have stopped.
func Drain(ctx context.Context, queues []*Queue) {
	// Storing continues after the context of deliveries has ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	var storing sync.WaitGroup
	for _, q := range queues {
		storing.Go(func() { q.drain(ctx) })
	}
	storing.Wait()
}

var errTransition = errors.New("event cannot occur in this state")
