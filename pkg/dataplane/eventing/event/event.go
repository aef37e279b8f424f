// Package event reads CloudEvents from HTTP in any content mode and from the event log, and writes them to both, with their data
// byte for byte.
package event

// Event is a CloudEvent. Immutable once read: With returns a changed copy.
type Event struct {
	// V03 is true if specversion is 0.3 and not 1.0.
	V03 bool
	// Attributes are all attributes besides specversion: id, source, type, the optional ones and extensions, in the order
	// of arrival.
	Attributes []Attribute
	// Data is the data in the form of its content type, not base64. It is nil if the event has no data.
	Data []byte
	// Structured is true if the event arrived in structured (or batched) mode.
	Structured bool
	// Headers are the headers of the request that travel with the event: x-request-id, x-b3-*, b3, traceparent, tracestate,
	// knative-*. Names are in lower case.
	Headers []Header
}

// Attribute is one attribute of a CloudEvent, with its value in the canonical text form of its type.
type Attribute struct {
	Name, Value string
	Type        Type
}

// Type is the type of an attribute's value, as far as JSON distinguishes them.
type Type byte

// The types of attributes (CloudEvents 1.0.2, Type System).
const (
	// String stands for all types whose JSON form is a string.
	String Type = iota
	Integer
	Boolean
)

// Header is an HTTP header field.
type Header struct {
	Name, Value string
}

// Names of attributes.
const (
	ID              = "id"
	Source          = "source"
	EventType       = "type"
	Subject         = "subject"
	Time            = "time"
	DataContentType = "datacontenttype"
	DataSchema      = "dataschema"
	// SchemaURL and DataContentEncoding are attributes of CloudEvents 0.3 only.
	SchemaURL           = "schemaurl"
	DataContentEncoding = "datacontentencoding"
	// PartitionKey is the same for events whose order matters (CloudEvents Partitioning 1.0.2).
	PartitionKey = "partitionkey"
	// TTL counts down how many brokers an event may still pass through (behaviour of brokers, loops).
	TTL = "knativebrokerttl"
	// ErrorDest, ErrorCode and ErrorData of a dead letter are the address that did not accept it, the HTTP status of the
	// last answer, and the beginning of its body in base64.
	ErrorDest = "knativeerrordest"
	ErrorCode = "knativeerrorcode"
	ErrorData = "knativeerrordata"
	// Run of an event that was delivered again is the UID of the EventRun: of the last one, after several.
	Run = "knativeeventrun"
)

// Get returns the value of an attribute.
func (e *Event) Get(name string) (value string, found bool) {
	for i := range e.Attributes {
		if e.Attributes[i].Name == name {
			return e.Attributes[i].Value, true
		}
	}
	if name == specVersion {
		return e.version(), true
	}
	return "", false
}

// version returns the specversion of the event.
func (e *Event) version() string {
	if e.V03 {
		return version03
	}
	return version10
}

// With returns a copy of the event in which attributes have other values; an empty value removes the attribute.
// Data is shared.
func (e *Event) With(attributes ...Attribute) *Event {
	changed := *e
	changed.Attributes = make([]Attribute, 0, len(e.Attributes)+len(attributes))
	for _, have := range e.Attributes {
		if !named(attributes, have.Name) {
			changed.Attributes = append(changed.Attributes, have)
		}
	}
	for _, a := range attributes {
		if a.Value != "" {
			changed.Attributes = append(changed.Attributes, a)
		}
	}
	return &changed
}

func named(attributes []Attribute, name string) bool {
	for i := range attributes {
		if attributes[i].Name == name {
			return true
		}
	}
	return false
}
