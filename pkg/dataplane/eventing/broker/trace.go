package broker

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// recordAccepted records that the events of the plans were accepted.
func (w *appender) recordAccepted(at time.Time, from *trace.Origin) {
	store := w.stream.broker.options.Trace
	if store == nil {
		return
	}
	for i := range w.plans {
		p := &w.plans[i]
		w.matchedKeys, w.exceededKeys = w.matchedKeys[:0], w.exceededKeys[:0]
		for _, all := range [][]*consumer{p.direct, p.later, p.ordered} {
			w.matchedKeys = appendKeys(w.matchedKeys, all)
		}
		w.exceededKeys = appendKeys(w.exceededKeys, p.exceeded)
		r := w.stream.traced(p.event, at)
		store.Add(&trace.Record{
			Stream: r.Stream, StreamUID: r.StreamUID, ID: r.ID, Source: r.Source, Accepted: r.Accepted,
			Acceptance: &trace.Acceptance{
				Attributes: p.event.Attributes, V03: p.event.V03, TraceID: trace.TraceIDOf(p.event), Sender: from.Sender, Address: from.Address, Cause: from.Cause, Redelivered: from.Redelivered,
				Matched: w.matchedKeys, Exceeded: w.exceededKeys, MatchedCount: len(p.direct) + len(p.later) + len(p.ordered), Filters: w.filters,
			},
		})
	}
}

// maxKeys bounds the consumers that a record names.
const maxKeys = 1024

// appendKeys appends the keys of consumers, up to maxKeys.
func appendKeys(keys []eventing.Key, consumers []*consumer) []eventing.Key {
	for _, c := range consumers[:min(len(consumers), maxKeys-len(keys))] {
		keys = append(keys, c.config.Load().Key)
	}
	return keys
}

// traced returns a record about an event of the stream, without what happened.
func (s *stream) traced(e *event.Event, accepted time.Time) trace.Record {
	r := trace.Record{Stream: s.spec.Key.Whole(), StreamUID: s.spec.UID, Accepted: accepted}
	r.ID, _ = e.Get(event.ID)
	r.Source, _ = e.Get(event.Source)
	return r
}

// attempt is an attempt to send an event, with what follows.
type attempt struct {
	role    trace.Role
	to      eventing.Endpoint
	result  sender.Result
	outcome trace.Outcome
	// backoff is the delay before the next attempt, if there is one.
	backoff time.Duration
	// reply is the reply in the response, or nil. accepted is the time at which the Broker accepted it; refused is why it was not used.
	reply    *event.Event
	accepted time.Time
	refused  error
}

// record records an attempt of a delivery that has ended.
func (c *consumer) record(d *delivery.Delivery, a *attempt) {
	store := c.stream.broker.options.Trace
	if store == nil {
		return
	}
	now := c.stream.broker.options.Clock.Now()
	r := c.stream.traced(d.Event, d.Accepted())
	made := trace.Attempt{
		Consumer: c.config.Load().Key, Role: a.role, Outcome: a.outcome, Number: d.Attempts + 1,
		Start: now.Add(-a.result.Latency), Duration: a.result.Latency, Address: withoutSecrets(a.to.URL), Code: a.result.Code, ReplyAccepted: a.accepted,
	}
	if a.outcome == trace.Retried {
		made.Next = now.Add(a.backoff)
	}
	if a.reply != nil {
		made.ReplyID, _ = a.reply.Get(event.ID)
		made.ReplySource, _ = a.reply.Get(event.Source)
	}
	for _, err := range []error{a.result.Err, a.result.ReplyErr, a.refused} {
		if err != nil {
			made.Error = err.Error()
			break
		}
	}
	r.Attempt = &made
	store.Add(&r)
}

// withoutSecrets returns a URL without its possibly secret parts: credentials and the query.
func withoutSecrets(address string) string {
	if !strings.ContainsAny(address, "@?") {
		return address
	}
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// Consumers returns the consumers of a stream, in no particular order.
func (b *Broker) Consumers(key eventing.Key) []eventing.Consumer {
	s := b.stream(key)
	if s == nil {
		return nil
	}
	var all []eventing.Consumer
	for _, c := range s.allConsumers() {
		all = append(all, *c.config.Load())
	}
	return slices.Clip(all)
}
