package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// maxSkew is the difference of the clocks of replicas: a message may be stored before its events were accepted.
	maxSkew = time.Minute
	// maxDelay is the time that an accepted event takes to be stored, at most, besides maxSkew.
	maxDelay = 10 * time.Minute
	// maxMessages bounds the messages that one Read reads.
	maxMessages = 256
	// stateAttempts bounds the attempts to read the state of an archive whose first events are evicted meanwhile.
	stateAttempts = 5
)

// ErrReplaced is returned for a Position in an archive that was deleted since, and maybe created again.
var ErrReplaced = errors.New("the archive was deleted since")

// Event is an archived event.
type Event struct {
	// Accepted is the time at which the Broker accepted the event.
	Accepted time.Time
	Event    *event.Event
	// Next is the Position after the event.
	Next Position
}

// Query selects archived events of a Broker.
type Query struct {
	Broker eventing.Key
	// UID is the original UID of the Broker.
	UID types.UID
	// From and To bound the times of acceptance: from From on, before To. Each may be zero.
	From, To time.Time
	// At is the Position from which to read. The zero value is the beginning, or From.
	At Position
	// MaxEvents and MaxBytes bound the result: it has at most MaxEvents events, and ends with the one by which so many bytes were read, about.
	// Both are at least 1.
	MaxEvents, MaxBytes int
}

// Page is a part of the result of a Query.
type Page struct {
	// Events are in the order in which the Broker accepted them, more or less: events that were accepted at about the same time, by concurrent
	// requests or by two owners of the Broker, may be in another order. A page may have no events although others follow.
	Events []Event
	// Next is the Position after the page. It is the same as before if nothing was read.
	Next Position
	// More is true if others may follow by now.
	More bool
	// Evicted is true if events between the previous page and this one were deleted before they were read.
	Evicted bool
}

// Read returns archived events. An archive that does not exist has none. It fails with ErrReplaced for a Position in an earlier archive.
func (s *Store) Read(ctx context.Context, q Query) (Page, error) {
	page := Page{Next: q.At}
	stream, err := s.options.Log.Retained(idOf(q.Broker.Namespace, q.UID))
	if err != nil {
		return page, err
	}
	state, _, err := stream.State(ctx)
	if errors.Is(err, eventlog.ErrNotFound) {
		if q.At != (Position{}) {
			return page, ErrReplaced
		}
		return page, nil
	}
	if err != nil {
		return page, err
	}
	at := q.At
	if at == (Position{}) {
		at = Position{created: state.Created.UnixNano(), sequence: state.First}
		if !q.From.IsZero() {
			first, err := stream.SequenceAt(ctx, q.From.Add(-maxSkew))
			if errors.Is(err, eventlog.ErrNotFound) {
				first, err = state.Last+1, nil
			}
			if err != nil {
				return page, err
			}
			at.sequence = first
		}
	} else if at.created != state.Created.UnixNano() {
		return page, ErrReplaced
	}
	if at.sequence < state.First {
		page.Evicted = true
		at.sequence, at.index = state.First, 0
	}
	page.Next = at
	messages, next, err := stream.Read(ctx, "", at.sequence, maxMessages, q.MaxBytes)
	if err != nil {
		return page, err
	}
	// Events may have been evicted after the state was read.
	if len(messages) > 0 && messages[0].Sequence > at.sequence && q.At != (Position{}) {
		page.Evicted = true
	}
	for i := range messages {
		if q.ends(&messages[i]) {
			return page, nil
		}
		if more := s.add(&page, &q, &messages[i]); more {
			page.More = true
			return page, nil
		}
	}
	page.More = next > 0
	return page, nil
}

// ends reports whether all events from a message on were accepted after To. The time of the message itself may be later: of a moved archive.
func (q *Query) ends(m *eventlog.RetainedMessage) bool {
	if q.To.IsZero() {
		return false
	}
	for _, record := range m.Records {
		if h, _, err := parse(record); err == nil {
			return h.accepted.After(q.To.Add(maxSkew + maxDelay))
		}
	}
	return false
}

// add adds the events of a message to a page. It reports whether the page is full although others may follow.
func (s *Store) add(page *Page, q *Query, m *eventlog.RetainedMessage) (full bool) {
	skip := 0
	if page.Next.sequence == m.Sequence {
		skip = page.Next.index
	}
	page.Next.sequence, page.Next.index = m.Sequence, skip
	seen := 0
	for _, record := range m.Records {
		h, events, err := parse(record)
		if err != nil {
			s.options.Logger.Error(err, "Skipped unreadable record of an archive", "broker", q.Broker.String(), "message", m.Sequence)
			continue
		}
		for _, data := range events {
			if seen++; seen <= skip {
				continue
			}
			if len(page.Events) >= q.MaxEvents {
				return true
			}
			page.Next.index = seen
			if !q.From.IsZero() && h.accepted.Before(q.From) || !q.To.IsZero() && !h.accepted.Before(q.To) {
				continue
			}
			e, err := event.Decode(data)
			if err != nil {
				s.options.Logger.Error(err, "Skipped unreadable archived event", "broker", q.Broker.String(), "message", m.Sequence)
				continue
			}
			page.Events = append(page.Events, Event{Accepted: h.accepted, Event: e, Next: page.Next})
		}
	}
	whole := page.Next
	page.Next.sequence, page.Next.index = m.Sequence+1, 0
	if n := len(page.Events); n > 0 && page.Events[n-1].Next == whole {
		// The message need not be read again.
		page.Events[n-1].Next = page.Next
	}
	return false
}

// State describes the archive of a Broker.
type State struct {
	// First and Last are the times at which the first and the last event were accepted.
	First, Last time.Time
	// Events is the number of events: about, if some could not be archived, or two replicas archived at a time. Bytes is their size.
	Events uint64
	Bytes  int64
}

// State returns the state of the archive of a Broker by its original UID. It is zero without archived events.
func (s *Store) State(ctx context.Context, broker eventing.Key, uid types.UID) (State, error) {
	stream, err := s.options.Log.Retained(idOf(broker.Namespace, uid))
	if err != nil {
		return State{}, err
	}
	for range stateAttempts {
		var state eventlog.RetainedState
		state, _, err = stream.State(ctx)
		if errors.Is(err, eventlog.ErrNotFound) || err == nil && state.Messages == 0 {
			return State{}, nil
		}
		if err != nil {
			return State{}, err
		}
		var first, last eventlog.RetainedMessage
		if first, err = stream.Get(ctx, state.First); err == nil {
			last, err = stream.Get(ctx, state.Last)
		}
		if errors.Is(err, eventlog.ErrNotFound) {
			// Evicted since.
			continue
		}
		if err != nil {
			return State{}, err
		}
		return stateOf(&state, &first, &last)
	}
	return State{}, fmt.Errorf("read state of the archive of %s: %w", broker, err)
}

func stateOf(stream *eventlog.RetainedState, first, last *eventlog.RetainedMessage) (State, error) {
	number, err := lowest(first)
	if err != nil {
		return State{}, err
	}
	state := State{Bytes: stream.Bytes}
	end := number
	for i, m := range []*eventlog.RetainedMessage{first, last} {
		for _, record := range m.Records {
			h, events, err := parse(record)
			if err != nil {
				return State{}, err
			}
			if i == 0 && (state.First.IsZero() || h.accepted.Before(state.First)) {
				state.First = h.accepted
			}
			if h.accepted.After(state.Last) {
				state.Last = h.accepted
			}
			end = max(end, h.number+uint64(len(events)))
		}
	}
	state.Events = end - number
	return state, nil
}
