package broker

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// deadLetterSuffix follows a consumer's UID in the name of the queue of its dead letters.
const deadLetterSuffix = "-dead"

// consumer delivers the events of a stream that match a Trigger or Subscription.
type consumer struct {
	config atomic.Pointer[eventing.Consumer]
	stream *stream
	ctx    context.Context
	cancel context.CancelFunc
	// subscriber and deadLetters deliver to the subscriber and to the dead letter sink.
	subscriber, deadLetters *delivery.Queue
	health                  health
	counts                  consumerCounts
}

// consumerCounts are the counters of a consumer's metrics.
type consumerCounts struct {
	matched, unfiltered, delivered, retried, deadLettered, dropped, looped atomic.Int64
}

func newConsumer(s *stream, config *eventing.Consumer, c clock.WithDelayedExecution) *consumer {
	n := &consumer{stream: s}
	n.config.Store(config)
	logger := klog.FromContext(s.ctx).WithValues("consumer", config.Key.String())
	n.ctx, n.cancel = context.WithCancel(klog.NewContext(s.ctx, logger))
	n.health.clock = c
	n.health.changed = func() { s.broker.options.HealthChanged(n.config.Load().Key) }
	n.deadLetters = s.deliveries.NewQueue(n.ctx, delivery.QueueConfig{
		Name: string(config.UID) + deadLetterSuffix, Attempt: n.sendDeadLetter, Ordered: func() bool { return false },
	})
	n.subscriber = s.deliveries.NewQueue(n.ctx, delivery.QueueConfig{
		Name: string(config.UID), Attempt: n.deliver, Ordered: func() bool { return n.config.Load().Ordered }, DeadLetters: n.deadLetters,
	})
	n.configured()
	return n
}

// queues returns the queues of the consumer.
func (c *consumer) queues() []*delivery.Queue { return []*delivery.Queue{c.subscriber, c.deadLetters} }

// queuesOf returns the queues of consumers.
func queuesOf(consumers []*consumer) []*delivery.Queue {
	queues := make([]*delivery.Queue, 0, 2*len(consumers))
	for _, c := range consumers {
		queues = append(queues, c.queues()...)
	}
	return queues
}

// drain stores deliveries of stopped consumers. See delivery.Drain.
func drain(ctx context.Context, consumers []*consumer) {
	var subscribers, deadLetters []*delivery.Queue
	for _, c := range consumers {
		subscribers, deadLetters = append(subscribers, c.subscriber), append(deadLetters, c.deadLetters)
	}
	// A stored dead letter ends the delivery that it reports.
	delivery.Drain(ctx, deadLetters)
	delivery.Drain(ctx, subscribers)
}

// configured must be called when the configuration changed.
func (c *consumer) configured() {
	config := c.config.Load()
	c.subscriber.SetPaused(!resolved(config))
	c.deadLetters.SetPaused(config.DeadLetter.Unresolved)
}

// resolved reports whether attempts to deliver events can be made.
func resolved(c *eventing.Consumer) bool {
	return !c.Subscriber.Unresolved && !c.Reply.Unresolved && (c.Subscriber.URL != "" || c.Reply.URL != "")
}

var errUnfiltered = errors.New("an event was not matched: its attributes and the filters are too large to evaluate; use fewer LIKE " +
	"operators, functions and filters")

// unfiltered counts an accepted event that the consumer does not get because its filters exceed their budget.
func (c *consumer) unfiltered() {
	c.counts.unfiltered.Add(1)
	c.health.observe(errUnfiltered, true)
}

// start begins to read the queues, of which some have records.
func (c *consumer) start(queues map[string]uint64) {
	for _, q := range c.queues() {
		q.Start(queues[q.Name()] > 0)
	}
}

// deliver makes one attempt to send an event to the subscriber (eventing Event Delivery).
func (c *consumer) deliver(ctx context.Context, d *delivery.Delivery) delivery.Outcome {
	config := c.config.Load()
	if !resolved(config) {
		return delivery.Outcome{Event: delivery.Failed, Skipped: true}
	}
	to, replies := config.Subscriber, true
	if to.URL == "" {
		to, replies = config.Reply, false
	}
	e := d.Event
	if config.Stream.Kind == eventing.Channel && !c.own(to) {
		e = withoutTTL(e)
	}
	result := c.send(ctx, config, e, to, replies)
	if ctx.Err() != nil {
		return delivery.Outcome{Event: delivery.Aborted}
	}
	undeliverable := e
	if result.Err == nil && result.Reply != nil {
		if config.Stream.Kind == eventing.Broker {
			result = c.acceptReply(ctx, d.Event, result)
		} else if config.Reply.URL != "" {
			undeliverable, to = c.reply(config, inTrace(result.Reply, d.Event), d.Event), config.Reply
			result = c.send(ctx, config, undeliverable, to, false)
		}
		if ctx.Err() != nil {
			return delivery.Outcome{Event: delivery.Aborted}
		}
	}
	if result.Err == nil {
		// A response that is not an event is reported like an event that could not be delivered.
		c.health.observe(result.ReplyErr, true)
		c.counts.delivered.Add(1)
		return delivery.Outcome{Event: delivery.Succeeded}
	}
	retry := result.Retryable && d.Attempts < config.Delivery.Retry
	c.health.observe(result.Err, !retry)
	o := congestion(result, config.Delivery)
	// A configured number of retries includes their times.
	o.Unanswered = o.Unanswered && retry && config.Delivery.MaxBackoff > 0
	switch {
	case retry:
		c.counts.retried.Add(1)
		o.Event = delivery.Failed
		o.Backoff = retryDelay(config.Delivery, d.Attempts, o.RetryAfter)
	case config.DeadLetter == (eventing.Endpoint{}):
		c.counts.dropped.Add(1)
		klog.FromContext(ctx).V(2).Info("Dropped undeliverable event", "reason", result.Err.Error())
		o.Event = delivery.Discarded
	default:
		o.Event = delivery.Undeliverable
		o.DeadLetter = deadLetter(undeliverable, to, result)
	}
	return o
}

// own reports whether an endpoint is a Broker or Channel of this server.
func (c *consumer) own(to eventing.Endpoint) bool {
	_, found := c.stream.broker.addresses.Load(to.URL)
	return found
}

// reply returns a reply as it is sent to the reply address of a Subscription. For a Broker or Channel of this server, it has
// the number of Brokers that it may still pass, so that loops end.
func (c *consumer) reply(config *eventing.Consumer, reply, original *event.Event) *event.Event {
	ttl, found := original.Get(event.TTL)
	if _, has := reply.Get(event.TTL); has || !found || !c.own(config.Reply) {
		return reply
	}
	return reply.With(event.Attribute{Name: event.TTL, Value: ttl, Type: event.Integer})
}

// send makes one attempt to send an event to an endpoint.
func (c *consumer) send(ctx context.Context, config *eventing.Consumer, e *event.Event, to eventing.Endpoint, replies bool) sender.Result {
	return c.stream.broker.options.Send(ctx, e, to, sender.Attempt{
		Timeout:     config.Delivery.Timeout,
		Format:      config.Delivery.Format,
		ExpectReply: replies,
		Namespace:   config.Key.Namespace,
		Consumer:    config.Key,
	})
}

// acceptReply accepts a subscriber's reply like other events of the Broker. If that fails, the whole delivery failed (eventing
// Content Based Routing).
func (c *consumer) acceptReply(ctx context.Context, original *event.Event, result sender.Result) sender.Result {
	reply := inTrace(result.Reply, original)
	left := ttlOf(original) - 1
	if has, found := reply.Get(event.TTL); found {
		if n, err := strconv.Atoi(has); err == nil {
			left = min(left, n-1)
		}
	}
	if left <= 0 {
		c.counts.looped.Add(1)
		c.stream.counts.looped.Add(1)
		return sender.Result{Code: result.Code}
	}
	reply = reply.With(event.Attribute{Name: event.TTL, Value: strconv.Itoa(left), Type: event.Integer})
	if err := c.stream.append(ctx, []*event.Event{reply}); err != nil {
		return sender.Result{Err: errors.Join(errors.New("store the reply"), err), Retryable: true}
	}
	return result
}

// inTrace returns a reply with the trace of the event that it replies to, unless it has one.
func inTrace(reply, original *event.Event) *event.Event {
	isParent := func(h event.Header) bool { return h.Name == "traceparent" }
	if _, found := reply.Get("traceparent"); found || slices.ContainsFunc(reply.Headers, isParent) {
		return reply
	}
	traced := *reply
	traced.Headers = slices.Clone(reply.Headers)
	for _, h := range original.Headers {
		if h.Name == "traceparent" || h.Name == "tracestate" {
			traced.Headers = append(traced.Headers, h)
		}
	}
	return &traced
}

// congestion returns what a failed attempt reports about the load of the endpoint. The other fields are zero.
func congestion(r sender.Result, options eventing.Delivery) delivery.Outcome {
	after := ptr.Deref(r.RetryAfter, 0)
	if options.RetryAfterMax != nil {
		after = min(after, *options.RetryAfterMax)
	}
	switch {
	case r.Code == 0 && r.Retryable:
		return delivery.Outcome{Overloaded: true, Unanswered: true}
	case r.Code == http.StatusTooManyRequests:
		return delivery.Outcome{Overloaded: true, Throttled: true, RetryAfter: after}
	case r.Code == http.StatusServiceUnavailable:
		return delivery.Outcome{Overloaded: true, RetryAfter: after}
	default:
		return delivery.Outcome{}
	}
}

// remove ends all deliveries of a consumer that does not exist anymore.
func (c *consumer) remove() {
	for _, q := range c.queues() {
		q.Halt(true)
		q.Reader.Stop()
	}
	c.cancel()
	for _, q := range c.queues() {
		q.Wait()
		q.Discard()
	}
}

// lag returns the age of the oldest undelivered event in memory, and the number of attempts in flight.
func (c *consumer) lag(now time.Time) (lag time.Duration, inFlight int) {
	for _, q := range c.queues() {
		status := q.Status()
		inFlight += status.InFlight
		if !status.Oldest.IsZero() {
			lag = max(lag, now.Sub(status.Oldest))
		}
	}
	return lag, inFlight
}
