package broker

import (
	"context"
	"errors"
	"net/url"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// DeadLetters is the built-in dead letter store.
type DeadLetters interface {
	// Add returns nil when a dead letter is durable. See deadletter.Store.
	Add(ctx context.Context, l *deadletter.Letter) error
}

// maxFull is the number of times that an addition is repeated while the event log is full, although dead letters were evicted. maxUnavailable
// is the number while the store is unavailable otherwise, in about an hour and a half: the log must not fill with undeliverable events, for
// example because an external one does not permit the streams of the store.
const maxFull, maxUnavailable = 3, 100

// failure describes an attempt after which an event is undeliverable.
func (c *consumer) failure(d *delivery.Delivery, address string, isReply bool, r *sender.Result) deadletter.Failure {
	return deadletter.Failure{
		Address: address, Reply: isReply, Attempts: d.Attempts + 1, Code: r.Code, Error: r.Err.Error(), Response: r.Body,
		Accepted: d.Accepted(), Failed: c.stream.broker.options.Clock.Now(),
	}
}

// stores reports whether undeliverable events go to the dead letter store.
func (c *consumer) stores(config *eventing.Consumer) bool {
	return config.DeadLetter == (eventing.Endpoint{}) && !config.NoDeadLetterStore && c.stream.broker.options.DeadLetters != nil
}

// withoutUserinfo returns a URL without user name and password.
func withoutUserinfo(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return address
	}
	u.User = nil
	return u.String()
}

// sendDeadLetter makes one attempt to send an event to the dead letter sink, with as many retries as for the subscriber.
func (c *consumer) sendDeadLetter(ctx context.Context, d *delivery.Delivery) delivery.Outcome {
	config := c.config.Load()
	if !available(config, config.DeadLetter) {
		return delivery.Outcome{Event: delivery.Failed, Skipped: true}
	}
	if c.stores(config) {
		return c.storeDeadLetter(ctx, config, d)
	}
	if config.DeadLetter.URL == "" {
		c.counts.dropped.Add(1)
		c.record(d, &attempt{role: trace.DeadLetter, outcome: trace.Dropped, refused: errNoDeadLetterSink})
		return delivery.Outcome{Event: delivery.Discarded, Skipped: true}
	}
	token, err := c.token(ctx, config, config.DeadLetter)
	if err != nil {
		return c.unauthenticated(ctx, err)
	}
	e := d.Event
	if original, failure, found := deadletter.Reported(e); found {
		// The sink was added after the failure.
		e = deadletter.AsSent(original, failure)
	}
	result := c.send(ctx, config, e, config.DeadLetter, token, false)
	if ctx.Err() != nil {
		return delivery.Outcome{Event: delivery.Aborted}
	}
	made := attempt{role: trace.DeadLetter, to: config.DeadLetter, result: result}
	defer func() { c.record(d, &made) }()
	if result.Err == nil {
		c.counts.deadLettered.Add(1)
		return delivery.Outcome{Event: delivery.Succeeded}
	}
	if errors.Is(result.Err, errTokenRejected) {
		o := c.unauthenticated(ctx, result.Err)
		made.outcome, made.backoff = trace.Retried, o.Backoff
		return o
	}
	o := congestion(result, config.Delivery)
	o.Unanswered = false
	if result.Retryable && d.Attempts < config.Delivery.Retry {
		o.Event, o.Backoff = delivery.Failed, retryDelay(config.Delivery, d.Attempts, o.RetryAfter)
		made.outcome, made.backoff = trace.Retried, o.Backoff
		return o
	}
	c.counts.dropped.Add(1)
	klog.FromContext(ctx).Info("Dropped event that the dead letter sink rejected", "reason", result.Err.Error())
	o.Event, made.outcome = delivery.Discarded, trace.Dropped
	return o
}

// storeDeadLetter adds an event to the dead letter store, or keeps it in the log until that is possible.
func (c *consumer) storeDeadLetter(ctx context.Context, config *eventing.Consumer, d *delivery.Delivery) delivery.Outcome {
	options := &c.stream.broker.options
	letter := deadletter.Letter{Consumer: config.Key, ConsumerUID: config.UID, Stream: config.Stream.Whole()}
	var found bool
	if letter.Event, letter.Failure, found = deadletter.Reported(d.Event); !found {
		// The sink was removed after the failure.
		letter.Event, letter.Failure = deadletter.Sent(d.Event)
		letter.Accepted, letter.Failed = d.Accepted(), options.Clock.Now()
	}
	begin := options.Clock.Now()
	err := options.DeadLetters.Add(ctx, &letter)
	if err != nil && ctx.Err() != nil {
		return delivery.Outcome{Event: delivery.Aborted}
	}
	made := attempt{role: trace.DeadLetterStore, result: sender.Result{Latency: options.Clock.Since(begin), Err: err}}
	defer func() { c.record(d, &made) }()
	switch {
	case err == nil:
		c.counts.deadLettered.Add(1)
		return delivery.Outcome{Event: delivery.Succeeded}
	case errors.Is(err, eventlog.ErrTooLarge), errors.Is(err, eventlog.ErrFull) && d.Attempts >= maxFull, d.Attempts >= maxUnavailable:
		c.counts.dropped.Add(1)
		klog.FromContext(ctx).Info("Dropped event that the dead letter store did not accept", "reason", err.Error())
		made.outcome = trace.Dropped
		return delivery.Outcome{Event: delivery.Discarded}
	default:
		made.outcome, made.backoff = trace.Retried, backoff.Delay(d.Attempts+1, time.Second, time.Minute)
		return delivery.Outcome{Event: delivery.Failed, Backoff: made.backoff}
	}
}

var errNoDeadLetterSink = errors.New("the event was dropped: the dead letter sink was removed")
