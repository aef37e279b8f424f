package inspect

import (
	"context"
	"fmt"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// TraceOptions select events. ID or TraceID is set.
type TraceOptions struct {
	// ID and Source are the attributes of the event; an empty Source means all sources. TraceID is a W3C trace ID.
	ID, Source, TraceID string
}

// Trace returns what happened to the events of a Broker or Channel. resource is brokers or channels.
func Trace(ctx context.Context, client versioned.Interface, resource, namespace, name string, o TraceOptions) (*duckv1.EventTrace, error) {
	of := client.EventingV1().RESTClient()
	if resource == "channels" {
		of = client.MessagingV1().RESTClient()
	}
	request := of.Get().Namespace(namespace).Resource(resource).Name(name).SubResource("trace")
	for parameter, value := range map[string]string{"id": o.ID, "source": o.Source, "traceid": o.TraceID} {
		if value != "" {
			request.Param(parameter, value)
		}
	}
	trace := &duckv1.EventTrace{}
	return trace, request.Do(ctx).Into(trace)
}

// TraceTrees returns a tree for each event that did not follow from another one. Objects of the namespace of the trace are shown without
// the namespace unless wide is true, which adds attributes and dates too.
func TraceTrees(trace *duckv1.EventTrace, wide bool) (trees []*Node) {
	t := &traceTree{namespace: trace.Namespace, wide: wide, following: map[followed][]*duckv1.TracedEvent{}}
	var roots []*duckv1.TracedEvent
	for i := range trace.Events {
		event := &trace.Events[i]
		if event.Parent == nil {
			roots = append(roots, event)
			continue
		}
		from := followed{event.Parent.Number, event.Parent.Consumer}
		t.following[from] = append(t.following[from], event)
	}
	for _, root := range roots {
		trees = append(trees, t.event(root))
	}
	return trees
}

// followed identifies the delivery from which events followed.
type followed struct {
	event    int32
	consumer duckv1.TracedObject
}

// traceTree makes the tree of a trace. Objects of its namespace are shown without the namespace.
type traceTree struct {
	namespace string
	wide      bool
	following map[followed][]*duckv1.TracedEvent
}

// event returns an acceptance with all that followed.
func (t *traceTree) event(e *duckv1.TracedEvent) *Node {
	if e.Hidden {
		return &Node{Text: "Event accepted by " + t.object(e.At) + ", which may not be traced with these permissions"}
	}
	n := &Node{Text: t.acceptance(e)}
	for i := range e.Deliveries {
		d := &e.Deliveries[i]
		if d.Hidden {
			n.add("%s: matched, but may not be read with these permissions", t.object(d.Consumer))
			continue
		}
		child := n.add("%s: %s", t.object(d.Consumer), Join(": ", d.State, d.Reason))
		for j := range d.Attempts {
			child.add("%s", t.attempt(&d.Attempts[j]))
		}
		for _, event := range t.following[followed{e.Number, d.Consumer}] {
			below := t.event(event)
			below.Text = labels[event.Parent.As] + below.Text
			child.Children = append(child.Children, below)
		}
	}
	for i := range e.Unmatched {
		m := &e.Unmatched[i]
		changed := ""
		if m.Changed {
			changed = " (Triggers have changed since)"
		}
		n.add("%s: not matched: %s%s", t.object(m.Consumer), Join(" ", m.Filter, m.Reason), changed)
	}
	return n
}

// labels are the prefixes of events by the way in which they followed.
var labels = map[string]string{duckv1.TracedAsReply: "Reply: ", duckv1.TracedAsDeadLetter: "Dead letter: "}

func (t *traceTree) acceptance(e *duckv1.TracedEvent) string {
	text := "Event " + e.ID
	if e.Type != "" {
		text += ", type " + e.Type
	}
	if t.wide {
		for _, attribute := range [][2]string{{"source", e.Source}, {"subject", e.Subject}, {"trace", e.TraceID}} {
			if attribute[1] != "" {
				text += ", " + attribute[0] + " " + attribute[1]
			}
		}
	}
	text += ": accepted by " + t.object(e.At)
	if e.AcceptedAt != nil {
		text += " at " + Clock(e.AcceptedAt.Time, t.wide)
	}
	switch {
	case e.Sender != "" && e.SenderAddress != "":
		text += " from " + e.Sender + " (" + e.SenderAddress + ")"
	case e.Sender != "" || e.SenderAddress != "":
		text += " from " + e.Sender + e.SenderAddress
	}
	if e.Unrecorded {
		text += " (the record of the acceptance is missing)"
	}
	return text
}

// endpoints are the names of the endpoints of attempts.
var endpoints = map[string]string{
	duckv1.TracedToReply: "reply ", duckv1.TracedToDeadLetterSink: "dead letter sink ", duckv1.TracedToDeadLetterStore: "dead letter store ",
}

func (t *traceTree) attempt(a *duckv1.TracedAttempt) string {
	text := fmt.Sprintf("%sattempt %d at %s to %s: ", endpoints[a.To], a.Number, Clock(a.Time.Time, t.wide), a.Address)
	if a.Code != 0 {
		text += fmt.Sprintf("%d after ", a.Code)
	} else {
		text += "no response after "
	}
	text += Milliseconds(a.DurationMilliseconds)
	if a.Reply != nil && a.To == duckv1.TracedToSubscriber {
		text += ", reply " + a.Reply.ID
		if t.wide && a.Reply.Source != "" {
			text += " of source " + a.Reply.Source
		}
	}
	if a.Error != "" {
		text += ": " + a.Error
	}
	if a.NextAttempt != nil {
		text += ", next attempt at " + Clock(a.NextAttempt.Time, t.wide)
	}
	return text
}

// object returns the kind and name of an object.
func (t *traceTree) object(o duckv1.TracedObject) string {
	switch {
	case o.Name == "":
		return o.Kind + " in namespace " + o.Namespace
	case t.wide || o.Namespace != t.namespace:
		return o.Kind + " " + o.Namespace + "/" + o.Name
	}
	return o.Kind + " " + o.Name
}
