package broker

import (
	"context"
	"encoding/base64"
	"net/url"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// maxErrorData bounds the extension that tells what the subscriber answered, in characters.
const maxErrorData = 1024

// deadLetter returns the event that tells the dead letter sink of one that could not be delivered, and why.
func deadLetter(e *event.Event, to eventing.Endpoint, r sender.Result) *event.Event {
	said := r.Body
	if r.Code == 0 {
		said = []byte(r.Err.Error())
	}
	said = said[:min(len(said), base64.StdEncoding.DecodedLen(maxErrorData))]
	failure := []event.Attribute{
		{Name: event.ErrorDest, Value: withoutUserinfo(to.URL)},
		{Name: event.ErrorData, Value: base64.StdEncoding.EncodeToString(said)},
		{Name: event.ErrorCode},
	}
	if r.Code != 0 {
		failure[2] = event.Attribute{Name: event.ErrorCode, Value: strconv.Itoa(r.Code), Type: event.Integer}
	}
	return e.With(failure...)
}

// withoutUserinfo returns a URL without the password that may be in it.
func withoutUserinfo(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return address
	}
	u.User = nil
	return u.String()
}

// bury makes one attempt to send an event to the dead letter sink, which gets as many as the subscriber.
func (c *consumer) bury(ctx context.Context, d *parcel) verdict {
	config := c.config.Load()
	if config.DeadLetter.Unresolved {
		return verdict{again: true, unmade: true}
	}
	if config.DeadLetter.URL == "" {
		c.counts.dropped.Add(1)
		return verdict{}
	}
	result := c.send(ctx, config, d.event, config.DeadLetter, false)
	if ctx.Err() != nil {
		return verdict{abandoned: true}
	}
	if result.Err == nil {
		c.counts.deadLettered.Add(1)
		return verdict{}
	}
	v := judge(result, config.Delivery)
	v.failed = true
	v.away = false
	if result.Retryable && d.attempts < config.Delivery.Retry {
		v.again, v.after = true, backoff(config.Delivery, d.attempts, v.retryAfter)
		return v
	}
	c.counts.dropped.Add(1)
	klog.FromContext(ctx).Info("Dropping an event that the dead letter sink does not take", "reason", result.Err.Error())
	return v
}

// burial returns the delivery of an event to the dead letter sink. That of which it came is done when it is.
func (l *lane) burial(d *parcel, dead *event.Event) *parcel {
	from := &held{segment: whenDone(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.burying, d)
		l.done(d)
	})}
	from.left.Store(1)
	return &parcel{event: dead, id: newID(), accepted: d.accepted, from: from}
}

// whenDone is a segment that is in the log as a part of others.
type whenDone func()

// Ack implements SegmentHandle.
func (do whenDone) Ack() { do() }

// Nack implements SegmentHandle. It comes again with the others.
func (whenDone) Nack(time.Duration) {}
