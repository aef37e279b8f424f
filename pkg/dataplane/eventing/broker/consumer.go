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

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry/histogram"
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
	counts                  *consumerCounts
	// filters is the fingerprint of the filters in the stream's index, 0 if it is not there. It changes with the index.
	filters uint64
}

// consumerCounts are the counters of a consumer's metrics.
type consumerCounts struct {
	matched, redelivered, unfiltered, delivered, retried, deadLettered, dropped, looped atomic.Int64
	// stream is the key of the stream.
	stream atomic.Pointer[eventing.Key]
	// dispatched are the durations of attempts, by the status code of the response or 0.
	dispatched histogram.Vector[int]
}

// maxDispatchCodes bounds the status codes for which attempts are counted. Further ones are counted by their hundred.
const maxDispatchCodes = 32

// dispatch counts an attempt.
func (n *consumerCounts) dispatch(r *sender.Result) {
	n.dispatched.Of(r.Code, maxDispatchCodes, func(code int) int { return code / 100 * 100 }).Observe(r.Latency)
}

func newConsumer(s *stream, config *eventing.Consumer, c clock.WithDelayedExecution) *consumer {
	n := &consumer{stream: s, counts: s.broker.consumerCounts.of(config.Key, config.UID)}
	n.config.Store(config)
	n.counts.stream.Store(&config.Stream)
	logger := klog.FromContext(s.ctx).WithValues("consumer", config.Key.String())
	n.ctx, n.cancel = context.WithCancel(klog.NewContext(s.ctx, logger))
	n.health.clock = c
	n.health.changed = func() { s.broker.options.HealthChanged(n.config.Load().Key) }
	share := s.broker.shares.Of(config.Key.Namespace)
	n.deadLetters = s.deliveries.NewQueue(n.ctx, delivery.QueueConfig{
		Name: string(config.UID) + deadLetterSuffix, Attempt: n.sendDeadLetter, Ordered: func() bool { return false }, Share: share,
	})
	n.subscriber = s.deliveries.NewQueue(n.ctx, delivery.QueueConfig{
		Name: string(config.UID), Attempt: n.deliver, Ordered: func() bool { return n.config.Load().Ordered }, DeadLetters: n.deadLetters, Share: share,
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
	c.deadLetters.SetPaused(!available(config, config.DeadLetter))
}

// resolved reports whether attempts to deliver events can be made.
func resolved(c *eventing.Consumer) bool {
	return available(c, c.Subscriber) && available(c, c.Reply) && (c.Subscriber.URL != "" || c.Reply.URL != "")
}

// available reports whether the address of an endpoint is known, and an account that authenticates the consumer if the endpoint requires it.
func available(c *eventing.Consumer, to eventing.Endpoint) bool {
	return !to.Unresolved && (to.Audience == "" || c.Account.Name != "")
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
	to, replies, made := config.Subscriber, true, attempt{role: trace.Subscriber}
	if to.URL == "" {
		to, replies, made.role = config.Reply, false, trace.Reply
	}
	// Both tokens first: the subscriber gets no event whose reply cannot be sent.
	token, err := c.token(ctx, config, to)
	if err != nil {
		return c.unauthenticated(ctx, err)
	}
	if _, err := c.token(ctx, config, config.Reply); err != nil {
		return c.unauthenticated(ctx, err)
	}
	e := d.Event
	if config.Stream.Kind == eventing.Channel && !c.own(to) {
		e = withoutTTL(e)
	}
	result := c.send(ctx, config, e, to, token, replies)
	if ctx.Err() != nil {
		return delivery.Outcome{Event: delivery.Aborted}
	}
	made.to, made.result, made.reply = to, result, result.Reply
	undeliverable := e
	if result.Err == nil && result.Reply != nil {
		switch {
		case config.Stream.Kind == eventing.Broker:
			result, made.accepted, made.refused = c.acceptReply(ctx, d, result)
		case config.Reply.URL != "":
			made.outcome = trace.Answered
			c.record(d, &made)
			undeliverable, to = c.reply(config, inTrace(result.Reply, d.Event), d.Event), config.Reply
			// The subscriber may have taken longer than a token is valid.
			if token, err = c.token(ctx, config, to); err != nil {
				return c.unauthenticated(ctx, err)
			}
			result = c.send(ctx, config, undeliverable, to, token, false)
			made = attempt{role: trace.Reply, to: to, result: result, reply: undeliverable}
		default:
			made.refused = errNoReplyAddress
		}
		if ctx.Err() != nil {
			return delivery.Outcome{Event: delivery.Aborted}
		}
	}
	defer func() { c.record(d, &made) }()
	if result.Err == nil {
		// A response that is not an event is reported like an event that could not be delivered.
		c.health.observe(result.ReplyErr, true)
		c.counts.delivered.Add(1)
		return delivery.Outcome{Event: delivery.Succeeded}
	}
	if errors.Is(result.Err, errTokenRejected) {
		o := c.unauthenticated(ctx, result.Err)
		made.outcome, made.backoff = trace.Retried, o.Backoff
		return o
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
		made.outcome, made.backoff = trace.Retried, o.Backoff
	case c.stores(config):
		o.Event = delivery.Undeliverable
		made.outcome = trace.DeadLettered
		o.DeadLetter = deadletter.Report(undeliverable, c.failure(d, withoutSecrets(to.URL), made.role == trace.Reply, &result))
	case config.DeadLetter == (eventing.Endpoint{}):
		c.counts.dropped.Add(1)
		klog.FromContext(ctx).V(2).Info("Dropped undeliverable event", "reason", result.Err.Error())
		o.Event = delivery.Discarded
		made.outcome = trace.Dropped
	default:
		o.Event = delivery.Undeliverable
		made.outcome = trace.DeadLettered
		o.DeadLetter = deadletter.AsSent(undeliverable, c.failure(d, withoutUserinfo(to.URL), made.role == trace.Reply, &result))
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

// send makes one attempt to send an event to an endpoint, with the token for it.
func (c *consumer) send(ctx context.Context, config *eventing.Consumer, e *event.Event, to eventing.Endpoint, token string, replies bool) sender.Result {
	result := c.stream.broker.options.Send(ctx, e, to, sender.Attempt{
		Timeout:     config.Delivery.Timeout,
		Format:      config.Delivery.Format,
		ExpectReply: replies,
		Namespace:   config.Key.Namespace,
		Consumer:    config.Key,
		Token:       token,
	})
	if ctx.Err() == nil {
		c.counts.dispatch(&result)
	}
	if result.Code == http.StatusUnauthorized {
		if token != "" && c.stream.broker.options.Tokens.Rejected(tokenKey(config, to), token) {
			return sender.Result{Code: result.Code, Err: errTokenRejected}
		}
		// While authentication is being enabled, our own Brokers and Channels ask for tokens before all consumers know that.
		result.Retryable = c.own(to)
	}
	return result
}

// acceptReply accepts a subscriber's reply like other events of the Broker. If that fails, the whole delivery failed (eventing
// Content Based Routing). It returns the time of the acceptance, or why the reply was not accepted.
func (c *consumer) acceptReply(ctx context.Context, d *delivery.Delivery, result sender.Result) (_ sender.Result, at time.Time, refused error) {
	original := d.Event
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
		return sender.Result{Code: result.Code}, at, errReplyLooped
	}
	reply = reply.With(event.Attribute{Name: event.TTL, Value: strconv.Itoa(left), Type: event.Integer})
	cause := c.stream.traced(original, d.Accepted())
	from := trace.Origin{Cause: trace.Cause{ID: cause.ID, Source: cause.Source, Accepted: cause.Accepted, Consumer: c.config.Load().Key}}
	at, err := c.stream.append(ctx, []*event.Event{reply}, from)
	if err != nil {
		err = errors.Join(errors.New("store the reply"), err)
		return sender.Result{Err: err, Retryable: true}, time.Time{}, err
	}
	return result, at, nil
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

var (
	errReplyLooped    = errors.New("the reply was dropped: it passed too many Brokers")
	errNoReplyAddress = errors.New("the reply was dropped: the Subscription has no reply address")
)

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
