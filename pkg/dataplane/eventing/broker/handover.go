package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// releaseGrace is the time for which attempts in flight may continue when another replica becomes the owner of a stream.
	releaseGrace = 3 * time.Second
	// watchInterval is the time between reads of the logs of all streams without a reason.
	watchInterval = 30 * time.Second
)

// open returns a stream that is not served yet.
func (b *Broker) open(ctx context.Context, spec eventing.Stream) (*stream, error) {
	log, err := b.options.Log.Stream(ctx, eventlog.StreamConfig{
		ID: logID(&spec), Description: spec.Key.String(), Tenant: spec.Key.Namespace, Memory: spec.Memory,
	})
	if err != nil {
		return nil, fmt.Errorf("create event log of %s: %w", spec.Key, err)
	}
	queues, err := log.Queues(ctx)
	if err != nil {
		return nil, fmt.Errorf("read event log of %s: %w", spec.Key, err)
	}
	return newStream(b, spec, log, queues), nil
}

// AcquireStream serves a stream that another replica had, together with its consumers: what the log has is delivered once all
// of them are there, as after Start, so that replies reach each of them too. It returns false where the stream could not be
// made, and otherwise true with why some of the consumers could not.
func (b *Broker) AcquireStream(ctx context.Context, spec eventing.Stream, consumers []eventing.Consumer) (bool, error) {
	if found := b.stream(spec.Key); found == nil || found.spec.UID != spec.UID {
		if err := b.deleteStream(ctx, spec.Key); err != nil {
			return false, err
		}
		s, err := b.open(ctx, spec)
		if err != nil {
			return false, err
		}
		b.streams.Store(spec.Key, s)
		b.AddAddress(spec.Key.Whole())
	}
	var errs []error
	for i := range consumers {
		errs = append(errs, b.SetConsumer(ctx, consumers[i]))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.stream(spec.Key); s != nil && b.started && !s.resumed {
		s.resume()
	}
	return true, errors.Join(errs...)
}

// ReleaseStream ends the deliveries of a stream that another replica owns now, if the stream is here. Undelivered events stay
// in the log. Nothing is deleted.
func (b *Broker) ReleaseStream(key eventing.Key) {
	s := b.stream(key)
	if s == nil {
		return
	}
	s.removed.Store(true)
	b.options.Tails.End(key.Whole())
	s.deliveries.Halt()
	consumers := s.allConsumers()
	for _, c := range consumers {
		b.consumers.CompareAndDelete(keyOf(c.config.Load()), c)
	}
	// Segments that are read meanwhile return with the others: segments of closed log consumers would be redelivered later.
	queues := queuesOf(consumers)
	for _, q := range queues {
		q.Halt(false)
	}
	release := func() {
		b.options.Log.ReleaseStream(logID(&s.spec))
		s.cancel()
	}
	timer := b.options.Clock.AfterFunc(releaseGrace, release)
	for _, q := range queues {
		q.WaitInFlight()
	}
	if timer.Stop() {
		delivery.WaitForCopies(s.ctx, queues)
		drain(s.ctx, consumers)
	}
	release()
	s.deliveries.Stop()
	for _, q := range queues {
		q.Reader.Stop()
		q.Wait()
	}
	s.deliveries.Wait()
	b.streams.CompareAndDelete(key, s)
}

// Refresh looks for records in the log of a stream that this Broker was not notified of, if the stream is here: another replica left
// them, or the result of their append was unknown. It delivers them, and deletes the records of consumers that are gone.
func (b *Broker) Refresh(ctx context.Context, key eventing.Key) error {
	s := b.stream(key)
	if s == nil {
		return nil
	}
	queues, err := s.log.Queues(ctx)
	if err != nil {
		return fmt.Errorf("read event log of %s: %w", key, err)
	}
	if !b.notify(s, queues) {
		return nil
	}
	return b.pruneQueues(ctx, map[*stream]map[string]uint64{s: queues})
}

// notify reads queues that have records, and reports whether deliveries have started.
func (b *Broker) notify(s *stream, queues map[string]uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !s.resumed {
		return false
	}
	s.expect(queues)
	for _, r := range []*logqueue.Reader{s.deliveries.Shared, s.deliveries.Retries} {
		if queues[r.Queue] > 0 {
			r.Notify(s.ctx)
		}
	}
	for _, q := range queuesOf(s.allConsumers()) {
		if queues[q.Name()] > 0 {
			q.Start(true)
		}
	}
	return true
}

// watch refreshes all streams periodically until Stop. Each refresh is one request to the log.
func (b *Broker) watch() {
	ctx := b.watchCtx
	for backoff.Sleep(ctx, b.options.Clock, watchInterval) {
		b.streams.Range(func(key, _ any) bool {
			if err := b.Refresh(ctx, key.(eventing.Key)); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Info("Failed to look for events in the log", "stream", key.(eventing.Key).String(), "reason", err.Error())
			}
			return ctx.Err() == nil
		})
	}
}

// Restored is Refresh for a stream that something was restored to, by the ID of its log.
func (b *Broker) Restored(ctx context.Context, id string) (err error) {
	b.streams.Range(func(key, s any) bool {
		if logID(&s.(*stream).spec) != id {
			return true
		}
		err = b.Refresh(ctx, key.(eventing.Key))
		return false
	})
	return err
}

// AddAddress notes that a stream accepts events at its addresses, here or at another replica; RemoveAddress is the reverse.
// Streams that are here need neither.
func (b *Broker) AddAddress(key eventing.Key) {
	for _, address := range b.options.Addresses(key) {
		b.addresses.Store(address, key)
	}
}

// StreamAt returns the stream that accepts events at an address, here or at another replica.
func (b *Broker) StreamAt(address string) (key eventing.Key, found bool) {
	stored, found := b.addresses.Load(address)
	if found {
		key = stored.(eventing.Key)
	}
	return key, found
}

// RemoveAddress is the end of AddAddress.
func (b *Broker) RemoveAddress(key eventing.Key) {
	for _, address := range b.options.Addresses(key) {
		b.addresses.Delete(address)
	}
}
