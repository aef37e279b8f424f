package eventing

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	structuredType = "application/cloudevents+json"
	batchType      = "application/cloudevents-batch+json"
)

// message is a request to an ingress as sent over the connection.
type message struct {
	// method is POST if empty.
	method string
	// host replaces the host of the address if not empty.
	host   string
	header map[string]string
	body   string
}

// binary returns a message with an event in binary mode; an empty value removes a required header.
func binary(id, body string, header map[string]string) message {
	all := map[string]string{"Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Type": "order", "Ce-Source": "/test"}
	maps.Copy(all, header)
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return message{header: all, body: body}
}

// encoded returns a message with events in a JSON format.
func encoded(contentType, body string) message {
	return message{header: map[string]string{"Content-Type": contentType}, body: body}
}

// send sends a message to an address.
func (m message) send(t testing.TB, address string) *answer {
	t.Helper()
	if m.method == "" {
		m.method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(t.Context(), m.method, address, strings.NewReader(m.body))
	if err != nil {
		t.Fatal(err)
	}
	request.Host = m.host
	for name, value := range m.header {
		request.Header.Set(name, value)
	}
	response, err := sender.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", m.method, address, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s %s: reading the answer: %v", m.method, address, err)
	}
	return &answer{code: response.StatusCode, header: response.Header, body: string(body)}
}

// mustSend is send for events that must be accepted.
func (m message) mustSend(t testing.TB, address string) {
	t.Helper()
	if a := m.send(t, address); a.code != http.StatusAccepted {
		t.Fatalf("POST %s: %d %s", address, a.code, a.body)
	}
}

// sendVerified is like send to an address that verifies senders. It repeats the message while the response is 503, which the server
// returns if it cannot verify the sender within 5 s.
func (m message) sendVerified(t testing.TB, address string) (a *answer) {
	t.Helper()
	harness.Eventually(t, "the sender is verified", func() error {
		if a = m.send(t, address); a.code == http.StatusServiceUnavailable {
			return fmt.Errorf("%d %s", a.code, a.body)
		}
		return nil
	})
	return a
}

// seen is an event as a subscriber receives it, independent of the mode.
type seen struct {
	// structured is true for structured mode.
	structured bool
	// attributes are all attributes except the content type of the data. Values of types other than string are in their
	// canonical string form.
	attributes  map[string]string
	contentType string
	data        string
}

// read returns the event of a delivery.
func read(t testing.TB, d harness.Delivery) seen {
	t.Helper()
	contentType := d.Header.Get("Content-Type")
	if contentType != structuredType && contentType != structuredType+"; charset=utf-8" {
		e := seen{attributes: map[string]string{}, contentType: contentType, data: string(d.Body)}
		for name, values := range d.Header {
			if attribute, ok := strings.CutPrefix(name, "Ce-"); ok {
				value, err := url.PathUnescape(strings.Join(values, ","))
				if err != nil {
					t.Fatalf("header %s: %v", name, err)
				}
				e.attributes[strings.ToLower(attribute)] = value
			}
		}
		return e
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(d.Body, &members); err != nil {
		t.Fatalf("an event in structured mode is no JSON: %v\n%s", err, d.Body)
	}
	e := seen{structured: true, attributes: map[string]string{}}
	for name, raw := range members {
		var value any
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.UseNumber()
		if err := decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
		text, isText := value.(string)
		switch {
		case name == "data" && isText && string(members["datacontentencoding"]) == `"base64"`, name == "data_base64":
			data, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				t.Fatalf("%s is %q: %v", name, text, err)
			}
			e.data = string(data)
		case name == "datacontentencoding":
			// It is part of the mode, like data_base64.
		case name == "data" && isText && !strings.Contains(string(members["datacontenttype"]), "json"):
			e.data = text
		case name == "data":
			e.data = string(raw)
		case name == "datacontenttype":
			e.contentType = text
		default:
			e.attributes[name] = fmt.Sprint(value)
		}
	}
	return e
}

// deliveryOf waits for the first delivery of an event to a subscriber, and returns it.
func deliveryOf(t testing.TB, subscriber *harness.Subscriber, id string) harness.Delivery {
	t.Helper()
	if err := subscriber.AwaitAll(bounded(t), []string{id}); err != nil {
		t.Fatal(err)
	}
	for _, d := range subscriber.Deliveries() {
		if d.ID == id {
			return d
		}
	}
	t.Fatalf("%s has received more events than it records", subscriber.URL)
	return harness.Delivery{}
}
