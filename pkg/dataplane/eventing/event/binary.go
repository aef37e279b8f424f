package event

import (
	"net/http"
	"net/textproto"
)

// attributeHeaders are the canonical names of the headers of common attributes.
var attributeHeaders = map[string]string{
	ID: "Ce-Id", Source: "Ce-Source", EventType: "Ce-Type", Subject: "Ce-Subject", Time: "Ce-Time",
	DataContentType: contentType, DataSchema: "Ce-Dataschema", TTL: "Ce-Knativebrokerttl",
}

// WriteBinary sets the headers of the event in binary mode and returns its body, which is the event's data (eventing
// Minimum supported protocol). JSON data of an event that arrived without content type gets the one that the JSON
// format implies.
func (e *Event) WriteBinary(header http.Header) (body []byte) {
	// One array holds the values of all headers.
	values := make([]string, len(e.Attributes)+2)
	set := func(key, value string) {
		values[0] = value
		header[key] = values[:1:1]
		values = values[1:]
	}
	set(specVersionHeader, e.version())
	if _, typed := e.Get(DataContentType); !typed && e.Structured && e.Data != nil {
		set(contentType, "application/json")
	}
	for i := range e.Attributes {
		a := &e.Attributes[i]
		key, common := attributeHeaders[a.Name]
		switch {
		case e.V03 && e.Structured && a.Name == DataContentEncoding:
			// It is about the data in JSON.
		case !common:
			set(textproto.CanonicalMIMEHeaderKey("ce-"+a.Name), escape(a.Value))
		case key == contentType:
			set(key, a.Value)
		default:
			set(key, escape(a.Value))
		}
	}
	return e.Data
}
