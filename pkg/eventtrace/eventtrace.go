// Package eventtrace answers where an event is: it finds the records of all replicas, and follows replies, and deliveries to other Brokers
// and Channels.
package eventtrace

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// maxEvents bounds the events in an answer, and maxFacts about its deliveries, attempts and mismatches: an event is added, with its
	// deliveries and attempts, while there are fewer. maxAncestors bounds the events that a reply is traced back to.
	maxEvents, maxFacts, maxAncestors = 200, 5000, 20
	// clockSkew is how much earlier or later than an attempt, by the clock of another replica, its event may have been accepted.
	clockSkew = 5 * time.Second
)

// Source finds records.
type Source interface {
	// Find returns the records of a query. incomplete lists reasons why some may be missing.
	Find(ctx context.Context, q trace.Query) (records []trace.Record, incomplete []string, err error)
}

// Traces answers requests. All fields are required.
type Traces struct {
	Source Source
	// Consumers returns the current consumers of a stream.
	Consumers func(stream eventing.Key) []eventing.Consumer
	// UID returns the original UID of a stream. found is false if there is none of this name.
	UID func(stream eventing.Key) (uid types.UID, found bool)
	// StreamAt returns the Broker or Channel of this server at an address.
	StreamAt func(address string) (stream eventing.Key, found bool)
}

// Trace returns what happened to the events that options select in a stream, and to all that followed. Objects of other namespaces are
// hidden unless readable returns true.
func (t *Traces) Trace(ctx context.Context, stream eventing.Key, options *duckv1.EventTraceOptions, readable func(eventing.Key) bool) (*duckv1.EventTrace, error) {
	w := &walk{
		Traces: t, ctx: ctx, namespace: stream.Namespace, readable: readable,
		answer:  &duckv1.EventTrace{ObjectMeta: metav1.ObjectMeta{Namespace: stream.Namespace, Name: stream.Name}, Events: []duckv1.TracedEvent{}},
		visited: sets.New[acceptance](), incomplete: sets.New[string](), budget: filter.NewBudget(ctx),
	}
	uid, found := t.UID(stream)
	if !found {
		return w.answer, nil
	}
	records, err := w.find(trace.Query{
		Namespace: stream.Namespace, Stream: stream, StreamUID: uid, ID: options.ID, Source: options.Source, TraceID: options.TraceID,
	})
	if err != nil {
		return nil, err
	}
	roots := sets.New[acceptance]()
	for i := range records {
		root, err := w.ancestor(acceptanceOf(&records[i]), uid)
		if err != nil {
			return nil, err
		}
		roots.Insert(root)
	}
	sorted := roots.UnsortedList()
	slices.SortFunc(sorted, func(a, b acceptance) int { return cmp.Or(cmp.Compare(a.accepted, b.accepted), cmp.Compare(a.id, b.id)) })
	for _, root := range sorted {
		if err := w.visit(root, uid, nil); err != nil {
			return nil, err
		}
	}
	w.answer.Incomplete = sets.List(w.incomplete)
	return w.answer, nil
}

// tooMany is the reason of an answer that is not complete because of its size.
var tooMany = fmt.Sprintf("the answer has at most %d events, and about %d deliveries, attempts and mismatches", maxEvents, maxFacts)

// acceptance identifies the acceptance of an event.
type acceptance struct {
	stream     eventing.Key
	id, source string
	// accepted is in nanoseconds since 1970.
	accepted int64
}

func acceptanceOf(r *trace.Record) acceptance {
	return acceptance{r.Stream, r.ID, r.Source, r.Accepted.UnixNano()}
}

// walk is the state of one request.
type walk struct {
	*Traces
	ctx       context.Context
	namespace string
	readable  func(eventing.Key) bool
	answer    *duckv1.EventTrace
	visited   sets.Set[acceptance]
	// facts is the number of deliveries, attempts and mismatches in the answer.
	facts      int
	incomplete sets.Set[string]
	// budget bounds the evaluation of filters.
	budget *filter.Budget
}

func (w *walk) find(q trace.Query) ([]trace.Record, error) {
	records, incomplete, err := w.Source.Find(w.ctx, q)
	w.incomplete.Insert(incomplete...)
	return records, err
}

// findOne returns the records of one acceptance.
func (w *walk) findOne(a acceptance, uid types.UID) ([]trace.Record, error) {
	return w.find(trace.Query{
		Namespace: a.stream.Namespace, Stream: a.stream, StreamUID: uid, ID: a.id, Source: a.source, Accepted: time.Unix(0, a.accepted),
	})
}

// ancestor returns the first event of the stream that led to another by replies.
func (w *walk) ancestor(a acceptance, uid types.UID) (acceptance, error) {
	for range maxAncestors {
		records, err := w.findOne(a, uid)
		if err != nil {
			return a, err
		}
		i := slices.IndexFunc(records, func(r trace.Record) bool { return r.Acceptance != nil && r.Acceptance.Cause != trace.Cause{} })
		if i < 0 {
			break
		}
		cause := &records[i].Acceptance.Cause
		a = acceptance{a.stream, cause.ID, cause.Source, cause.Accepted.UnixNano()}
	}
	return a, nil
}

// visit adds an event and all that followed to the answer.
func (w *walk) visit(a acceptance, uid types.UID, parent *duckv1.TracedParent) error {
	if w.visited.Has(a) {
		return nil
	}
	if len(w.answer.Events) >= maxEvents || w.facts >= maxFacts {
		w.incomplete.Insert(tooMany)
		return nil
	}
	w.visited.Insert(a)
	records, err := w.findOne(a, uid)
	if err != nil {
		return err
	}
	number := int32(len(w.answer.Events) + 1)
	accepted := metav1.NewMicroTime(time.Unix(0, a.accepted))
	e := duckv1.TracedEvent{Number: number, Parent: parent, At: objectOf(a.stream), ID: a.id, Source: a.source, AcceptedAt: &accepted}
	deliveries := map[eventing.Key][]trace.Record{}
	var recorded *trace.Acceptance
	for _, r := range records {
		if r.Acceptance != nil {
			recorded = r.Acceptance
		} else {
			deliveries[r.Attempt.Consumer] = append(deliveries[r.Attempt.Consumer], r)
		}
	}
	consumers := w.Consumers(a.stream)
	if recorded != nil {
		e.TraceID, e.Sender, e.SenderAddress = recorded.TraceID, recorded.Sender, recorded.Address
		for _, attribute := range recorded.Attributes {
			switch attribute.Name {
			case event.EventType:
				e.Type = attribute.Value
			case event.Subject:
				e.Subject = attribute.Value
			}
		}
		for _, matched := range recorded.Matched {
			deliveries[matched] = append([]trace.Record{}, deliveries[matched]...)
		}
		e.Unmatched = w.unmatched(&records[0], recorded, consumers, deliveries)
		if recorded.MatchedCount > len(recorded.Matched) {
			w.incomplete.Insert(fmt.Sprintf("event %d matched %d consumers, of which %d are recorded", number, recorded.MatchedCount, len(recorded.Matched)))
		}
	} else {
		e.Unrecorded = true
	}
	w.answer.Events = append(w.answer.Events, e)
	keys := make([]eventing.Key, 0, len(deliveries))
	for key := range deliveries {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b eventing.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	w.facts += len(keys)
	for _, key := range keys {
		if !w.shows(key) {
			hidden := duckv1.TracedDelivery{Consumer: duckv1.TracedObject{Kind: string(key.Kind), Namespace: key.Namespace}, Hidden: true}
			w.answer.Events[number-1].Deliveries = append(w.answer.Events[number-1].Deliveries, hidden)
			continue
		}
		attempts, err := w.withDeadLetters(a, uid, deliveries[key])
		if err != nil {
			return err
		}
		w.facts += len(attempts)
		d := delivery(key, attempts, consumers)
		w.answer.Events[number-1].Deliveries = append(w.answer.Events[number-1].Deliveries, d)
		if err := w.follow(a, uid, number, attempts); err != nil {
			return err
		}
	}
	return nil
}

// shows reports whether the user may see a stream or a consumer.
func (w *walk) shows(key eventing.Key) bool { return key.Namespace == w.namespace || w.readable(key) }

// withDeadLetters returns the attempts of a delivery in the order of their times, including those of the dead letter of a reply, whose ID is
// another than the event's.
func (w *walk) withDeadLetters(a acceptance, uid types.UID, attempts []trace.Record) ([]trace.Record, error) {
	for _, r := range attempts {
		made := r.Attempt
		if made.Role != trace.Reply || made.Outcome != trace.DeadLettered || made.ReplyID == "" || made.ReplyID == a.id && made.ReplySource == a.source {
			continue
		}
		more, err := w.findOne(acceptance{a.stream, made.ReplyID, made.ReplySource, a.accepted}, uid)
		if err != nil {
			return nil, err
		}
		for _, dead := range more {
			if dead.Attempt != nil && dead.Attempt.Consumer == made.Consumer && dead.Attempt.Role >= trace.DeadLetter {
				attempts = append(attempts, dead)
			}
		}
		break
	}
	slices.SortStableFunc(attempts, func(a, b trace.Record) int {
		return cmp.Or(a.Attempt.Start.Compare(b.Attempt.Start), cmp.Compare(a.Attempt.Role, b.Attempt.Role))
	})
	return attempts, nil
}

// follow visits the events that followed from a delivery.
func (w *walk) follow(a acceptance, uid types.UID, number int32, attempts []trace.Record) error {
	for i := range attempts {
		made := attempts[i].Attempt
		parent := &duckv1.TracedParent{Number: number, Consumer: objectOf(made.Consumer), As: duckv1.TracedAsReply}
		if !made.ReplyAccepted.IsZero() {
			if err := w.visit(acceptance{a.stream, made.ReplyID, made.ReplySource, made.ReplyAccepted.UnixNano()}, uid, parent); err != nil {
				return err
			}
		}
		if made.Code != 0 && made.Code/100 != 2 || made.Address == "" {
			continue
		}
		to, found := w.StreamAt(made.Address)
		if !found {
			continue
		}
		switch made.Role {
		case trace.Subscriber:
			parent.As = duckv1.TracedAsDelivery
		case trace.DeadLetter:
			parent.As = duckv1.TracedAsDeadLetter
		}
		id, source := attempts[i].ID, attempts[i].Source
		if made.Role == trace.Reply && made.ReplyID != "" {
			id, source = made.ReplyID, made.ReplySource
		}
		if err := w.hop(to, id, source, made, parent); err != nil {
			return err
		}
	}
	return nil
}

// hop visits the event that another stream accepted by an attempt.
func (w *walk) hop(to eventing.Key, id, source string, made *trace.Attempt, parent *duckv1.TracedParent) error {
	if !w.shows(to) {
		if made.Code != 0 && len(w.answer.Events) < maxEvents {
			at := duckv1.TracedObject{Kind: string(to.Kind), Namespace: to.Namespace}
			w.answer.Events = append(w.answer.Events, duckv1.TracedEvent{Number: int32(len(w.answer.Events) + 1), Parent: parent, At: at, Hidden: true})
		}
		return nil
	}
	uid, found := w.UID(to)
	if !found {
		return nil
	}
	records, err := w.find(trace.Query{Namespace: to.Namespace, Stream: to, StreamUID: uid, ID: id, Source: source})
	if err != nil {
		return err
	}
	begin, end := made.Start.Add(-clockSkew), made.Start.Add(made.Duration+clockSkew)
	var nearest *trace.Record
	for i := range records {
		r := &records[i]
		if r.Accepted.Before(begin) || r.Accepted.After(end) || w.visited.Has(acceptanceOf(r)) || r.Acceptance != nil && r.Acceptance.Cause != (trace.Cause{}) {
			continue
		}
		if nearest == nil || distance(r, made) < distance(nearest, made) {
			nearest = r
		}
	}
	if nearest == nil {
		return nil
	}
	return w.visit(acceptanceOf(nearest), uid, parent)
}

// distance returns the time between an acceptance and the end of an attempt.
func distance(r *trace.Record, made *trace.Attempt) time.Duration {
	return r.Accepted.Sub(made.Start.Add(made.Duration)).Abs()
}

// unmatched explains why consumers did not get an event.
func (w *walk) unmatched(r *trace.Record, accepted *trace.Acceptance, consumers []eventing.Consumer, matched map[eventing.Key][]trace.Record) (all []duckv1.TracedMismatch) {
	if accepted.Redelivered {
		// The event was for the consumers that got it, not for others.
		return nil
	}
	exceeded, current := sets.New(accepted.Exceeded...), uint64(0)
	for i := range consumers {
		current ^= trace.Fingerprint(&consumers[i])
	}
	e := accepted.Event(r)
	for i := range consumers {
		c := &consumers[i]
		if _, found := matched[c.Key]; found || !w.shows(c.Key) {
			continue
		}
		if w.facts++; w.facts > maxFacts {
			w.incomplete.Insert(tooMany)
			break
		}
		m := duckv1.TracedMismatch{Consumer: objectOf(c.Key), Changed: current != accepted.Filters}
		switch explained := filter.Explain(w.budget, c.Attributes, c.Filters, e); {
		case exceeded.Has(c.Key):
			m.Reason = "the evaluation of its filters exceeded its budget"
		case accepted.Cut:
			m.Reason = "the attributes of the event are too large to be recorded"
		case explained.Passed && m.Changed:
			m.Reason = "its filters pass the event now; it did not exist or had other filters when the event was accepted"
		case explained.Passed && accepted.MatchedCount > len(accepted.Matched):
			// It matched, but is not among the recorded consumers.
			continue
		case explained.Passed:
			m.Reason = "it was not known when the event was accepted"
		default:
			m.Filter, m.Reason = explained.Place, explained.Reason
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b duckv1.TracedMismatch) int {
		return cmp.Or(cmp.Compare(a.Consumer.Namespace, b.Consumer.Namespace), cmp.Compare(a.Consumer.Name, b.Consumer.Name))
	})
	return all
}

// delivery returns the state of a delivery from its attempts.
func delivery(key eventing.Key, attempts []trace.Record, consumers []eventing.Consumer) duckv1.TracedDelivery {
	d := duckv1.TracedDelivery{Consumer: objectOf(key), State: duckv1.TracedPending}
	for i := range attempts {
		made := attempts[i].Attempt
		d.Attempts = append(d.Attempts, attemptOf(made))
		if d.State == duckv1.TracedDelivered || d.State == duckv1.TracedDeadLettered {
			continue
		}
		d.State, d.Reason = stateAfter(made)
	}
	if len(attempts) > 0 {
		return d
	}
	i := slices.IndexFunc(consumers, func(c eventing.Consumer) bool { return c.Key == key })
	switch {
	case i < 0:
		d.Reason = fmt.Sprintf("no attempt is recorded; the %s does not exist anymore", key.Kind)
	case consumers[i].Subscriber.Unresolved || consumers[i].Reply.Unresolved:
		d.Reason = fmt.Sprintf("no attempt is recorded; the addresses of the %s are not resolved", key.Kind)
	default:
		d.Reason = "no attempt is recorded yet"
	}
	return d
}

// stateAfter returns the state of a delivery after an attempt, with the reason.
func stateAfter(made *trace.Attempt) (state, reason string) {
	switch {
	case made.Outcome == trace.Delivered && made.Role == trace.DeadLetterStore:
		return duckv1.TracedDeadLettered, "the event is in the dead letter store"
	case made.Outcome == trace.Delivered && made.Role == trace.DeadLetter:
		return duckv1.TracedDeadLettered, ""
	case made.Outcome == trace.Delivered:
		return duckv1.TracedDelivered, ""
	case made.Outcome == trace.Answered:
		return duckv1.TracedRetrying, "the reply was not sent yet"
	case made.Outcome == trace.Dropped:
		return duckv1.TracedDropped, made.Error
	case made.Outcome == trace.DeadLettered || made.Role >= trace.DeadLetter:
		return duckv1.TracedDeadLettering, made.Error
	default:
		return duckv1.TracedRetrying, made.Error
	}
}

func attemptOf(made *trace.Attempt) duckv1.TracedAttempt {
	a := duckv1.TracedAttempt{
		Number: int32(made.Number), To: []string{duckv1.TracedToSubscriber, duckv1.TracedToReply, duckv1.TracedToDeadLetterSink, duckv1.TracedToDeadLetterStore}[min(made.Role, trace.DeadLetterStore)],
		Time: metav1.NewMicroTime(made.Start), DurationMilliseconds: made.Duration.Milliseconds(),
		Address: made.Address, Code: int32(made.Code), Error: made.Error,
	}
	if !made.Next.IsZero() {
		next := metav1.NewMicroTime(made.Next)
		a.NextAttempt = &next
	}
	if made.ReplyID != "" {
		a.Reply = &duckv1.TracedReply{ID: made.ReplyID, Source: made.ReplySource}
	}
	return a
}

func objectOf(key eventing.Key) duckv1.TracedObject {
	return duckv1.TracedObject{Kind: string(key.Kind), Namespace: key.Namespace, Name: key.Name}
}
