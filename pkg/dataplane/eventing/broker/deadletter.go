package broker

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"strconv"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// maxErrorData bounds the extension with the body of the response, in characters.
const maxErrorData = 1024

// deadLetter returns an event that could not be delivered, with the reason, as it is sent to the dead letter sink.
func deadLetter(e *event.Event, to eventing.Endpoint, r sender.Result) *event.Event {
	body := r.Body
	if r.Code == 0 {
		body = []byte(r.Err.Error())
	}
	body = body[:min(len(body), base64.StdEncoding.DecodedLen(maxErrorData))]
	failure := []event.Attribute{
		{Name: event.ErrorDest, Value: withoutUserinfo(to.URL)},
		{Name: event.ErrorData, Value: base64.StdEncoding.EncodeToString(body)},
		{Name: event.ErrorCode},
	}
	if r.Code != 0 {
		failure[2] = event.Attribute{Name: event.ErrorCode, Value: strconv.Itoa(r.Code), Type: event.Integer}
	}
	return e.With(failure...)
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
	if config.DeadLetter.URL == "" {
		c.counts.dropped.Add(1)
		c.record(d, &attempt{role: trace.DeadLetter, outcome: trace.Dropped, refused: errNoDeadLetterSink})
		return delivery.Outcome{Event: delivery.Discarded, Skipped: true}
	}
	token, err := c.token(ctx, config, config.DeadLetter)
	if err != nil {
		return c.unauthenticated(ctx, err)
	}
	result := c.send(ctx, config, d.Event, config.DeadLetter, token, false)
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

var errNoDeadLetterSink = errors.New("the event was dropped: the dead letter sink was removed")
