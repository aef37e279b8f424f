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

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// deadQueue follows a consumer's UID in the name of the queue of its dead letters.
const deadQueue = "-dead"

// consumer delivers the events of a stream that a Trigger or Subscription gets.
type consumer struct {
	config atomic.Pointer[eventing.Consumer]
	stream *stream
	ctx    context.Context
	cancel context.CancelFunc
	// main leads to the subscriber, dead to the dead letter sink.
	main, dead *lane
	health     health
	counts     consumerCounts
}

// consumerCounts are the metrics of a consumer that count.
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
	ordered := func() bool { return n.config.Load().Ordered }
	n.main = newLane(n.ctx, s, string(config.UID), c, ordered, n.deliver)
	n.main.bury = func(p *parcel) { n.dead.offer(p) }
	n.dead = newLane(n.ctx, s, string(config.UID)+deadQueue, c, func() bool { return false }, n.bury)
	n.configured()
	return n
}

// lanes are the ways of the consumer's events.
func (c *consumer) lanes() []*lane { return []*lane{c.main, c.dead} }

// lanesOf are those of consumers.
func lanesOf(consumers []*consumer) []*lane {
	lanes := make([]*lane, 0, 2*len(consumers))
	for _, c := range consumers {
		lanes = append(lanes, c.lanes()...)
	}
	return lanes
}

// configured is called when the configuration changed.
func (c *consumer) configured() {
	config := c.config.Load()
	c.main.pause(!resolved(config))
	c.dead.pause(config.DeadLetter.Unresolved)
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

// resume takes up what is in the log for the consumer.
func (c *consumer) resume(queues map[string]uint64) {
	for _, l := range c.lanes() {
		l.resume(queues[l.queue] > 0)
	}
}

// deliver makes one attempt to send an event to the subscriber (eventing Event Delivery).
func (c *consumer) deliver(ctx context.Context, d *parcel) verdict {
	config := c.config.Load()
	if !resolved(config) {
		return verdict{again: true, unmade: true}
	}
	to, replies := config.Subscriber, true
	if to.URL == "" {
		to, replies = config.Reply, false
	}
	e := d.event
	if config.Stream.Kind == eventing.Channel && !c.own(to) {
		e = withoutTTL(e)
	}
	result := c.send(ctx, config, e, to, replies)
	if ctx.Err() != nil {
		return verdict{abandoned: true}
	}
	undeliverable := e
	if result.Err == nil && result.Reply != nil {
		if config.Stream.Kind == eventing.Broker {
			result = c.reenter(ctx, d.event, result)
		} else if config.Reply.URL != "" {
			undeliverable, to = c.reply(config, inTrace(result.Reply, d.event), d.event), config.Reply
			result = c.send(ctx, config, undeliverable, to, false)
		}
		if ctx.Err() != nil {
			return verdict{abandoned: true}
		}
	}
	retry := result.Retryable && d.attempts < config.Delivery.Retry
	if result.Err == nil {
		// An answer that is no reply is reported like an event that was given up.
		c.health.observe(result.ReplyErr, true)
		c.counts.delivered.Add(1)
		return verdict{}
	}
	c.health.observe(result.Err, !retry)
	v := judge(result, config.Delivery)
	v.failed = true
	if retry {
		c.counts.retried.Add(1)
		v.again = true
		v.after = backoff(config.Delivery, d.attempts, v.retryAfter)
		// Who chose the number of retries chose their times too.
		v.away = v.away && config.Delivery.MaxBackoff > 0
		return v
	}
	v.away = false
	if config.DeadLetter == (eventing.Endpoint{}) {
		c.counts.dropped.Add(1)
		klog.FromContext(ctx).V(2).Info("Dropping an event that cannot be delivered", "reason", result.Err.Error())
		return v
	}
	v.dead = deadLetter(undeliverable, to, result)
	return v
}

// own tells whether an endpoint is a Broker or Channel of ours.
func (c *consumer) own(to eventing.Endpoint) bool {
	_, found := c.stream.broker.addresses.Load(to.URL)
	return found
}

// reply returns a reply as it is sent to the reply address of a Subscription. To a Broker or Channel of ours it tells through
// how many Brokers it may still pass, so that loops end.
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

// reenter has the Broker take a subscriber's reply as it takes other events. If it cannot, the whole delivery failed
// (eventing Content Based Routing).
func (c *consumer) reenter(ctx context.Context, original *event.Event, result sender.Result) sender.Result {
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
		return sender.Result{Err: errors.Join(errors.New("storing the reply"), err), Retryable: true}
	}
	return result
}

// inTrace has a reply that tells of no trace belong to that of the event it replies to.
func inTrace(reply, original *event.Event) *event.Event {
	tells := func(h event.Header) bool { return h.Name == "traceparent" }
	if _, found := reply.Get("traceparent"); found || slices.ContainsFunc(reply.Headers, tells) {
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

// judge tells what a failed attempt says about the endpoint.
func judge(r sender.Result, options eventing.Delivery) verdict {
	after := ptr.Deref(r.RetryAfter, 0)
	if options.RetryAfterMax != nil {
		after = min(after, *options.RetryAfterMax)
	}
	switch {
	case r.Code == 0 && r.Retryable:
		return verdict{overloaded: true, away: true}
	case r.Code == http.StatusTooManyRequests:
		return verdict{overloaded: true, pace: true, retryAfter: after}
	case r.Code == http.StatusServiceUnavailable:
		return verdict{overloaded: true, retryAfter: after}
	default:
		return verdict{}
	}
}

// remove ends all deliveries of a consumer that does not exist any more.
func (c *consumer) remove() {
	for _, l := range c.lanes() {
		l.halt(true)
		l.listener.stop()
	}
	c.cancel()
	for _, l := range c.lanes() {
		l.wait()
		l.drop()
	}
}

// lag returns how long ago the oldest event was accepted that is not delivered, as far as it is in memory.
func (c *consumer) lag(now time.Time) (lag time.Duration, inFlight int) {
	for _, l := range c.lanes() {
		oldest, underWay := l.oldest()
		inFlight += underWay
		if !oldest.IsZero() {
			lag = max(lag, now.Sub(oldest))
		}
	}
	return lag, inFlight
}
