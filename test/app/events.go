package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// eventReport is the line of JSON on standard output that reports an event.
type eventReport struct {
	// Received are the attributes of the event, specversion included.
	Received json.RawMessage `json:"received"`
	// Data is the data of the event: JSON as it is, other text as a string, and other bytes in base64.
	Data any `json:"data,omitempty"`
	// User is the verified sender of an event to a restricted Service.
	User string `json:"user,omitempty"`
}

// isEvent reports whether a request has a CloudEvent in binary or structured mode.
func isEvent(r *http.Request) bool {
	contentType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // empty if unknown
	return r.Method == http.MethodPost && (r.Header.Get("Ce-Specversion") != "" || contentType == event.ApplicationCloudEventsJSON)
}

// receive reports an event. The response has the status code in the query parameter code; without one it is 202, or 200 with an
// event if REPLY_TYPE is set.
func (a *app) receive(w http.ResponseWriter, r *http.Request) {
	received, err := cehttp.NewEventFromHTTPRequest(r)
	if err == nil {
		err = received.Validate()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := report(a.events, received, r.Header.Get("Knative-Serving-User")); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	replyType := os.Getenv("REPLY_TYPE")
	if replyType == "" || r.URL.Query().Has("code") {
		respond(w, r, http.StatusAccepted)
		return
	}
	if err := reply(r.Context(), w, received, replyType); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// report writes one line about an event of a user.
func report(out io.Writer, e *event.Event, user string) error {
	attributes := e.Clone()
	attributes.DataEncoded = nil
	received, err := json.Marshal(attributes)
	if err != nil {
		return err
	}
	line := eventReport{Received: received, User: user}
	switch data := e.Data(); {
	case len(data) == 0:
	case isJSON(e.DataMediaType()) && json.Valid(data):
		line.Data = json.RawMessage(data)
	case utf8.Valid(data):
		line.Data = string(data)
	default:
		line.Data = data
	}
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	_, err = out.Write(append(text, '\n'))
	return err
}

// isJSON reports whether data of a media type is JSON, which is the default without a type.
func isJSON(mediaType string) bool {
	return mediaType == "" || mediaType == event.ApplicationJSON || strings.HasSuffix(mediaType, "+json")
}

// reply responds to an event with another one, whose data names the first.
func reply(ctx context.Context, w http.ResponseWriter, to *event.Event, replyType string) error {
	e := event.New()
	e.SetID(rand.Text())
	e.SetType(replyType)
	e.SetSource("/test-app")
	if source := os.Getenv("REPLY_SOURCE"); source != "" {
		e.SetSource(source)
	}
	if err := e.SetData(event.ApplicationJSON, map[string]string{"replyTo": to.ID()}); err != nil {
		return err
	}
	return cehttp.WriteResponseWriter(binding.WithForceBinary(ctx), binding.ToMessage(&e), http.StatusOK, w)
}
