package senders

import (
	"context"
	"sync"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Table passes on changes of streams, and has the Door of each. May be used concurrently.
type Table struct {
	eventing.Streams
	Reviews *reviews.Reviews
	// entries has an *entry for each stream.
	entries sync.Map
}

// entry is a stream. door is nil if all senders may send events.
type entry struct{ door *Door }

// SetStream applies the senders of a stream, then passes the stream on.
func (t *Table) SetStream(ctx context.Context, spec eventing.Stream) error {
	e := &entry{}
	if spec.Senders != nil {
		e.door = NewDoor(spec.Key, spec.Senders)
	}
	t.entries.Store(spec.Key, e)
	return t.Streams.SetStream(ctx, spec)
}

// RemoveStream passes the removal on.
func (t *Table) RemoveStream(ctx context.Context, key eventing.Key) error {
	if err := t.Streams.RemoveStream(ctx, key); err != nil {
		return err
	}
	t.entries.Delete(key)
	return nil
}

// Restricted reports whether senders of events to a stream are verified. known is false for a stream that was not set.
func (t *Table) Restricted(stream eventing.Key) (restricted, known bool) {
	found, known := t.entries.Load(stream)
	return known && found.(*entry).door != nil, known
}

// Check returns the name of a sender that may send events to a stream, which is empty if all may, and a *Rejection otherwise.
// authorization are the values of that header field.
func (t *Table) Check(ctx context.Context, stream eventing.Key, authorization []string, events []*event.Event) (name string, err error) {
	found, known := t.entries.Load(stream)
	if !known {
		return "", errUnavailable
	}
	door := found.(*entry).door
	if door == nil {
		return "", nil
	}
	return door.Check(ctx, t.Reviews, authorization, events)
}
