// Package broker is the engine of Eventing: it accepts events for Brokers and Channels, matches them with Triggers and
// Subscriptions, and makes the attempts to deliver them. Package delivery decides when.
package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tail"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Options are the dependencies of a Broker. All are required unless they say otherwise.
type Options struct {
	Log logqueue.Log
	// Send makes one attempt to send an event. See sender.Sender.
	Send func(ctx context.Context, e *event.Event, to eventing.Endpoint, o sender.Attempt) sender.Result
	// Tokens obtains the tokens for endpoints with an audience. Nil makes no attempts at such endpoints.
	Tokens Tokens
	// Exists reports whether the API has an object of a UID. It is called from Start on.
	Exists func(uid types.UID) bool
	// Existing lists the UIDs of all streams and consumers that the API has by now; the records of others are deleted from the
	// log. It is called if Exists returns false, because Exists may lag behind other replicas. It is nil without replicas.
	Existing func(ctx context.Context) (sets.Set[types.UID], error)
	// Addresses returns the URLs at which a stream accepts events.
	Addresses func(eventing.Key) []string
	// HealthChanged is called when what Health returns of a consumer has changed.
	HealthChanged func(eventing.Key)
	Clock         clock.WithDelayedExecution
	// Budget bounds the bytes that events and deliveries hold; nil stands for 256 MiB of their own.
	Budget *flow.Budget
	// Trace records what happens to events. Nil records nothing.
	Trace *trace.Store
	// DeadLetters stores undeliverable events of consumers without a dead letter sink. Nil drops them.
	DeadLetters DeadLetters
	// Tails shows accepted events live. Nil shows none.
	Tails *tail.Hub
	// Archive archives the accepted events of Brokers that have an archive. Nil archives none.
	Archive *archive.Store
}

// Broker serves all Brokers and Channels. Its methods may be called concurrently, but methods that name an object one at a
// time for each object.
type Broker struct {
	collector

	options Options
	ctx     context.Context
	cancel  context.CancelFunc
	// streams has a *stream for the eventing.Key of each partition that is here, consumers a *consumer for the key of each consumer with
	// the number of the partition.
	streams, consumers sync.Map
	// streamCounts and consumerCounts are the counters of all objects that were ever served here and exist.
	streamCounts   counters[streamCounts]
	consumerCounts counters[consumerCounts]
	// addresses has the eventing.Key of each stream by its URLs.
	addresses sync.Map
	// workers make the attempts of all consumers.
	workers *delivery.Workers
	// shares bound the attempts in flight of namespaces, memories the memory of their retries.
	shares   *delivery.Shares
	memories *logqueue.Memories

	// watching is the goroutine of watch, which stopWatch ends by watchCtx.
	watching  sync.WaitGroup
	watchCtx  context.Context
	stopWatch context.CancelFunc

	// mu guards started: whether events are delivered.
	mu      sync.Mutex
	started bool
}

// New returns a broker that delivers nothing before Start, and ends with Stop. ctx carries its logger.
func New(ctx context.Context, options Options) *Broker {
	if options.Budget == nil {
		options.Budget = flow.NewBudget(256<<20, 16<<20)
	}
	b := &Broker{
		options: options, shares: delivery.NewShares(0), memories: logqueue.NewMemories(options.Budget, options.Clock),
	}
	b.collector = collector{broker: b, descriptions: describe()}
	// Deliveries go on for a while after ctx has ended, see Stop.
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b.watchCtx, b.stopWatch = context.WithCancel(b.ctx)
	b.workers = delivery.NewWorkers(b.ctx.Done())
	return b
}

// SetStream makes a stream, unless it is there. It accepts events when SetStream has returned.
func (b *Broker) SetStream(ctx context.Context, spec eventing.Stream) error {
	if found, ok := b.streams.Load(spec.Key); ok {
		if s := found.(*stream); s.spec.UID == spec.UID && !s.removed.Load() {
			return nil
		}
		if err := b.deleteStream(ctx, spec.Key); err != nil {
			return err
		}
	}
	s, err := b.open(ctx, spec)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streams.Store(spec.Key, s)
	b.AddAddress(spec.Key.Whole())
	if b.started {
		s.resume()
	}
	return nil
}

// RemoveStream deletes a stream with all its events, if it is here. It removes the counters of the stream in any case.
func (b *Broker) RemoveStream(ctx context.Context, key eventing.Key) error {
	if err := b.deleteStream(ctx, key); err != nil {
		return err
	}
	b.streamCounts.remove(key.Whole())
	return nil
}

func (b *Broker) deleteStream(ctx context.Context, key eventing.Key) error {
	found, ok := b.streams.Load(key)
	if !ok {
		return nil
	}
	s := found.(*stream)
	s.close()
	b.options.Tails.End(key.Whole())
	s.byUID.Range(func(_, c any) bool {
		b.consumers.CompareAndDelete(keyOf(c.(*consumer).config.Load()), c)
		return true
	})
	if err := b.options.Log.DeleteStream(ctx, logID(&s.spec)); err != nil {
		return fmt.Errorf("delete event log of %s: %w", key, err)
	}
	b.streams.Delete(key)
	b.RemoveAddress(key.Whole())
	return nil
}

// errStopped is returned for consumers that are set after Stop.
var errStopped = errors.New("the broker has stopped")

// SetConsumer makes a consumer, or changes it. Every event that its stream accepts after SetConsumer has returned
// reaches it, if it passes its filters. The events of a consumer whose subscriber or reply is unresolved are kept until
// SetConsumer is called with an address.
func (b *Broker) SetConsumer(ctx context.Context, config eventing.Consumer) error {
	s := b.stream(config.Stream)
	if s == nil || s.spec.UID != config.StreamUID {
		return fmt.Errorf("%s is not ready to have consumers", config.Stream)
	}
	passes, err := filter.Compile(config.Attributes, config.Filters)
	if err != nil {
		return fmt.Errorf("read filters of %s: %w", config.Key, err)
	}
	key := keyOf(&config)
	if before, ok := b.consumers.Load(key); ok {
		before := before.(*consumer)
		if have := before.config.Load(); have.UID != config.UID || before.stream != s || before.ctx.Err() != nil {
			if b.ctx.Err() != nil {
				// Stop ended the consumer, which the log keeps the events of.
				return errStopped
			}
			if err := b.deleteConsumer(ctx, key); err != nil {
				return err
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := s.consumer(config.UID)
	if c == nil {
		c = newConsumer(s, &config, b.options.Clock)
		s.byUID.Store(config.UID, c)
		b.consumers.Store(key, c)
		if s.resumed {
			c.start(s.queues)
			s.unassigned.readStored(c)
		}
	} else {
		before := c.config.Swap(&config)
		c.configured()
		if before.Ordered != config.Ordered {
			c.subscriber.OrderChanged()
		}
	}
	filters := trace.Fingerprint(&config)
	s.index(func(m matchers) matchers {
		return matchers{m.Index.With(config.UID, passes, c), m.filters ^ c.filters ^ filters}
	})
	c.filters = filters
	return nil
}

// keyOf returns the key of a consumer with the number of the partition from which it gets events.
func keyOf(c *eventing.Consumer) eventing.Key { return c.Key.Part(c.Stream.Partition) }

// RemoveConsumer ends the deliveries to a consumer from one partition, which its key has, and deletes what it has not got, if the partition
// is here. It removes the counters of the consumer in any case.
func (b *Broker) RemoveConsumer(ctx context.Context, key eventing.Key) error {
	if err := b.deleteConsumer(ctx, key); err != nil {
		return err
	}
	b.consumerCounts.remove(key.Whole())
	return nil
}

func (b *Broker) deleteConsumer(ctx context.Context, key eventing.Key) error {
	found, ok := b.consumers.Load(key)
	if !ok {
		return nil
	}
	c := found.(*consumer)
	s, uid := c.stream, c.config.Load().UID
	s.index(func(m matchers) matchers { return matchers{m.Index.Without(uid), m.filters ^ c.filters} })
	c.filters = 0
	c.remove()
	s.settle()
	for _, q := range c.queues() {
		if err := s.log.DeleteQueue(ctx, q.Name()); err != nil && !s.removed.Load() {
			return fmt.Errorf("delete events of %s: %w", key, err)
		}
	}
	s.byUID.Delete(uid)
	b.consumers.Delete(key)
	return nil
}

// Health returns the last reported health of the deliveries to a consumer: of the partition that fails longest, if one does.
func (b *Broker) Health(key eventing.Key) (worst eventing.Health) {
	for n := range eventing.MaxPartitions {
		c, ok := b.consumers.Load(key.Part(n))
		if !ok {
			continue
		}
		if h := c.(*consumer).health.get(); h.Failing && (!worst.Failing || h.Since.Before(worst.Since)) {
			worst = h
		}
	}
	return worst
}

// Start begins to deliver. It is to be called once all streams and consumers that there are have been set, as far as
// that is possible. What the log has of others, that do not exist any more, is deleted.
func (b *Broker) Start(ctx context.Context) error {
	b.mu.Lock()
	if !b.started {
		b.started = true
		b.watching.Go(b.watch)
	}
	b.streams.Range(func(_, s any) bool {
		s.(*stream).resume()
		return true
	})
	b.mu.Unlock()
	return b.Prune(ctx)
}

// Stop starts no more attempts, and returns when the attempts in flight have ended, or were canceled after a timeout.
// Undelivered events stay in the log.
func (b *Broker) Stop(timeout time.Duration) {
	timer := b.options.Clock.AfterFunc(timeout, b.cancel)
	defer timer.Stop()
	defer b.cancel()
	b.stopWatch()
	b.watching.Wait()
	b.streams.Range(func(_, s any) bool {
		s.(*stream).deliveries.Shared.Stop()
		s.(*stream).deliveries.Retries.Halt()
		return true
	})
	var consumers []*consumer
	b.consumers.Range(func(_, c any) bool {
		consumers = append(consumers, c.(*consumer))
		return true
	})
	queues := queuesOf(consumers)
	for _, q := range queues {
		q.Halt(false)
	}
	for _, q := range queues {
		q.WaitInFlight()
	}
	delivery.WaitForCopies(b.ctx, queues)
	b.cancel()
	b.streams.Range(func(_, s any) bool {
		s.(*stream).deliveries.Retries.Stop()
		return true
	})
	for _, q := range queues {
		q.Reader.Stop()
		q.Wait()
	}
	drain(b.ctx, consumers)
}
