package event

import (
	"fmt"
	"strconv"

	cloudevent "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// ToSDK returns the event's attributes as an event of the CloudEvents SDK, without data. It fails if an attribute that
// CloudEvents defines is no value of its type.
func (e *Event) ToSDK() (*cloudevent.Event, error) {
	context := &cloudevent.EventContextV1{}
	for i := range e.Attributes {
		a := e.Attributes[i]
		if e.V03 && a.Name == SchemaURL {
			a.Name = DataSchema
		}
		if err := a.setSDK(context); err != nil {
			return nil, err
		}
	}
	if e.V03 {
		return &cloudevent.Event{Context: context.AsV03()}, nil
	}
	return &cloudevent.Event{Context: context}, nil
}

func (a *Attribute) setSDK(context *cloudevent.EventContextV1) error {
	invalid := func() error { return fmt.Errorf("attribute '%s' may not be %.80q", a.Name, a.Value) }
	switch a.Name {
	case ID:
		context.ID = a.Value
	case EventType:
		context.Type = a.Value
	case Source:
		source := types.ParseURIRef(a.Value)
		if source == nil {
			return invalid()
		}
		context.Source = *source
	case Subject:
		context.Subject = &a.Value
	case DataContentType:
		context.DataContentType = &a.Value
	case DataSchema:
		if context.DataSchema = types.ParseURI(a.Value); context.DataSchema == nil {
			return invalid()
		}
	case Time:
		t, err := parseTime(a.Value)
		if err != nil {
			return invalid()
		}
		context.Time = &types.Timestamp{Time: t}
	default:
		if context.Extensions == nil {
			context.Extensions = map[string]any{}
		}
		context.Extensions[a.Name] = a.value()
	}
	return nil
}

// value returns the value in its type.
func (a *Attribute) value() any {
	switch a.Type {
	case Integer:
		if n, err := strconv.ParseInt(a.Value, 10, 32); err == nil {
			return int32(n)
		}
	case Boolean:
		return a.Value == "true"
	}
	return a.Value
}
