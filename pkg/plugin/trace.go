package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// traceOptions are the flags of the command trace.
type traceOptions struct {
	output
	id, source, traceID string
}

func newTraceCommand(e *environment) *cobra.Command {
	traced := kinds{brokers, channels}
	o := &traceOptions{}
	command := &cobra.Command{
		Use:   "trace (broker|channel) NAME (--id ID [--source SOURCE] | --trace-id ID)",
		Short: "Show where an event is",
		Long: "Shows where an event is that a Broker or Channel accepted: its sender, the Triggers or Subscriptions that got it, each attempt to deliver it, the " +
			"filter that did not match for the other Triggers, dead letters and drops, and the same for replies and events that followed.",
		Example: "  kubectl knative trace broker default --id 1001\n" +
			"  kubectl knative trace channel orders --trace-id 4bf92f3577b34da6a3ce929d0e0e4736 -o wide",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: traced.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := traced.object(args)
			if err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(command.Context(), e, kind, name)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.id, "id", "", "Attribute id of the event.")
	flags.StringVar(&o.source, "source", "", "Attribute source of the event. Empty finds events of all sources.")
	flags.StringVar(&o.traceID, "trace-id", "", "W3C trace ID of the events, in 32 hexadecimal digits.")
	command.MarkFlagsOneRequired("id", "trace-id")
	command.MarkFlagsMutuallyExclusive("id", "trace-id")
	command.MarkFlagsMutuallyExclusive("source", "trace-id")
	o.addFlag(command)
	return command
}

func (o *traceOptions) run(ctx context.Context, e *environment, kind *kind, name string) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	client, resource := s.client.EventingV1().RESTClient(), "brokers"
	if kind == channels {
		client, resource = s.client.MessagingV1().RESTClient(), "channels"
	}
	trace, err := o.get(ctx, client, s.namespace, resource, name)
	if err != nil {
		return err
	}
	if printed, err := o.structured(e.Out, trace); printed || err != nil {
		return err
	}
	if len(trace.Events) == 0 {
		for _, reason := range trace.Incomplete {
			fmt.Fprintln(e.Err, "Incomplete: "+reason)
		}
		return fmt.Errorf("%s %q has no record of this event: it was not accepted there, or the record is older than the retention of traces", kind.singular, name)
	}
	return writeTrace(e.Out, trace, o.wide())
}

func (o *traceOptions) get(ctx context.Context, client rest.Interface, namespace, resource, name string) (*duckv1.EventTrace, error) {
	request := client.Get().Namespace(namespace).Resource(resource).Name(name).SubResource("trace")
	for parameter, value := range map[string]string{"id": o.id, "source": o.source, "traceid": o.traceID} {
		if value != "" {
			request.Param(parameter, value)
		}
	}
	trace := &duckv1.EventTrace{}
	return trace, request.Do(ctx).Into(trace)
}

// writeTrace prints a tree for each event that did not follow from another one.
func writeTrace(to io.Writer, trace *duckv1.EventTrace, wide bool) error {
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
	var errs []error
	for _, root := range roots {
		errs = append(errs, t.event(root).write(to))
	}
	for _, reason := range trace.Incomplete {
		_, err := fmt.Fprintln(to, "Incomplete: "+reason)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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
func (t *traceTree) event(e *duckv1.TracedEvent) *node {
	if e.Hidden {
		return &node{text: "Event accepted by " + t.object(e.At) + ", which may not be traced with these permissions"}
	}
	n := &node{text: t.acceptance(e)}
	for i := range e.Deliveries {
		d := &e.Deliveries[i]
		if d.Hidden {
			n.add("%s: matched, but may not be read with these permissions", t.object(d.Consumer))
			continue
		}
		child := n.add("%s: %s", t.object(d.Consumer), joined(": ", d.State, d.Reason))
		for j := range d.Attempts {
			child.add("%s", t.attempt(&d.Attempts[j]))
		}
		for _, event := range t.following[followed{e.Number, d.Consumer}] {
			below := t.event(event)
			below.text = labels[event.Parent.As] + below.text
			child.children = append(child.children, below)
		}
	}
	for i := range e.Unmatched {
		m := &e.Unmatched[i]
		changed := ""
		if m.Changed {
			changed = " (Triggers have changed since)"
		}
		n.add("%s: not matched: %s%s", t.object(m.Consumer), joined(" ", m.Filter, m.Reason), changed)
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
		text += " at " + clockTime(e.AcceptedAt.Time, t.wide)
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
var endpoints = map[string]string{duckv1.TracedToReply: "reply ", duckv1.TracedToDeadLetterSink: "dead letter sink "}

func (t *traceTree) attempt(a *duckv1.TracedAttempt) string {
	text := fmt.Sprintf("%sattempt %d at %s to %s: ", endpoints[a.To], a.Number, clockTime(a.Time.Time, t.wide), a.Address)
	if a.Code != 0 {
		text += fmt.Sprintf("%d after ", a.Code)
	} else {
		text += "no response after "
	}
	text += milliseconds(a.DurationMilliseconds)
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
		text += ", next attempt at " + clockTime(a.NextAttempt.Time, t.wide)
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

// joined joins the texts that are not empty.
func joined(separator string, texts ...string) string {
	var present []string
	for _, text := range texts {
		if text != "" {
			present = append(present, text)
		}
	}
	return strings.Join(present, separator)
}
