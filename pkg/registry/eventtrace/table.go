package eventtrace

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// columns are the columns of a trace as a table, which has a row for each acceptance, attempt and mismatch.
var columns = []metav1.TableColumnDefinition{
	{Name: "Time", Type: "string", Description: "The time of the acceptance, or of the beginning of the attempt."},
	{Name: "Event", Type: "string", Description: "The number of the event in the trace, and its ID."},
	{Name: "At", Type: "string", Description: "The Broker or Channel that accepted the event, or the Trigger or Subscription."},
	{Name: "What", Type: "string", Description: "What happened: Accepted, the kind of the endpoint of an attempt, the state of a delivery without attempts, or NotMatched."},
	{Name: "Code", Type: "string", Description: "The HTTP status of the response."},
	{Name: "Duration", Type: "string", Description: "The duration of the attempt."},
	{Name: "Details", Type: "string", Description: "The sender of the event, the address and the error of the attempt, or the filter that the event did not pass."},
}

// ConvertToTable renders a trace in the order of its events.
func (*REST) ConvertToTable(_ context.Context, object runtime.Object, tableOptions runtime.Object) (*metav1.Table, error) {
	trace, ok := object.(*duckv1.EventTrace)
	if !ok {
		return nil, fmt.Errorf("the object of a trace is a %T", object)
	}
	table := &metav1.Table{}
	if options, ok := tableOptions.(*metav1.TableOptions); !ok || !options.NoHeaders {
		table.ColumnDefinitions = columns
	}
	row := func(cells ...any) {
		// Each row has only the metadata of the object.
		about := &duckv1.EventTrace{ObjectMeta: trace.ObjectMeta}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: about}})
	}
	for i := range trace.Events {
		e := &trace.Events[i]
		event := fmt.Sprintf("%d %s", e.Number, e.ID)
		if e.Hidden {
			row("", event, nameOf(e.At), "Accepted", "", "", "in another namespace")
			continue
		}
		accepted := ""
		if e.AcceptedAt != nil {
			accepted = clock(e.AcceptedAt.Time)
		}
		row(accepted, event, nameOf(e.At), "Accepted", "", "", origin(e))
		for j := range e.Deliveries {
			d := &e.Deliveries[j]
			if d.Hidden {
				row("", event, nameOf(d.Consumer), "Matched", "", "", "in another namespace")
			} else if len(d.Attempts) == 0 {
				row("", event, nameOf(d.Consumer), d.State, "", "", d.Reason)
			}
			for k := range d.Attempts {
				a := &d.Attempts[k]
				code := ""
				if a.Code != 0 {
					code = fmt.Sprint(a.Code)
				}
				row(clock(a.Time.Time), event, nameOf(d.Consumer), a.To, code, fmt.Sprintf("%dms", a.DurationMilliseconds), details(a))
			}
			if d.State == duckv1.TracedDropped {
				row("", event, nameOf(d.Consumer), d.State, "", "", d.Reason)
			}
		}
		for j := range e.Unmatched {
			m := &e.Unmatched[j]
			reason := m.Reason
			if m.Filter != "" {
				reason = m.Filter + " " + reason
			}
			if m.Changed {
				reason += " (Triggers have changed since)"
			}
			row("", event, nameOf(m.Consumer), "NotMatched", "", "", reason)
		}
	}
	for _, reason := range trace.Incomplete {
		row("", "", "", "Incomplete", "", "", reason)
	}
	return table, nil
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

func nameOf(o duckv1.TracedObject) string {
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// origin returns the sender of an event, or the delivery from which it followed.
func origin(e *duckv1.TracedEvent) string {
	switch {
	case e.Parent != nil:
		return fmt.Sprintf("%s of event %d by %s", e.Parent.As, e.Parent.Number, nameOf(e.Parent.Consumer))
	case e.Sender != "":
		return "from " + e.Sender
	case e.SenderAddress != "":
		return "from " + e.SenderAddress
	case e.Unrecorded:
		return "the record of the acceptance is missing"
	}
	return ""
}

// details returns the address and the error of an attempt.
func details(a *duckv1.TracedAttempt) string {
	text := a.Address
	if a.Reply != nil && a.To == duckv1.TracedToSubscriber {
		text += ", reply " + a.Reply.ID
	}
	if a.Error != "" {
		text += ": " + a.Error
	}
	if a.NextAttempt != nil {
		text += ", next attempt at " + clock(a.NextAttempt.Time)
	}
	return text
}
