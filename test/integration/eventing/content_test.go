package eventing

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// arriving is an event that a test sends, and the expected arrival for each of its IDs.
type arriving struct {
	name string
	message
	want map[string]seen
}

// arrivals are events in all modes, with data and extension attributes of all kinds.
func arrivals() []arriving {
	// Everything that parsing and encoding JSON would change.
	const json = " {\"b\" : 1.00, \"a\":[1e3 ,\"\\u003c<é\"],\n\"b\": 12345678901234567890}\n"
	raw := "\x00\xff\xfe\r\n" + strings.Repeat("\x80", 1000)
	attributes := func(id string, more map[string]string) map[string]string {
		all := map[string]string{"specversion": "1.0", "id": id, "type": "order", "source": "/test"}
		maps.Copy(all, more)
		return all
	}
	extensions := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "text": `Zürich "€" 100%`, "comexamplea1": "x"}
	headers := map[string]string{"Ce-Traceparent": extensions["traceparent"], "Ce-Text": "Z%C3%BCrich%20%22%E2%82%AC%22%20100%25", "Ce-Comexamplea1": "x"}
	optional := map[string]string{"subject": "a/b", "time": "2024-05-01T12:00:00.123456789+02:00", "dataschema": "http://schema.example.com/a?b"}

	inBinary := func(id, contentType, data string) arriving {
		header := map[string]string{"Content-Type": contentType}
		maps.Copy(header, headers)
		return arriving{"binary mode, " + id, binary(id, data, header), map[string]seen{
			id: {attributes: attributes(id, extensions), contentType: contentType, data: data},
		}}
	}
	member := func(id, data string) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":%q,"type":"order","source":"/test"%s}`, id, data)
	}
	inStructured := func(id, members string, want seen) arriving {
		want.structured = true
		if want.attributes == nil {
			want.attributes = attributes(id, nil)
		}
		return arriving{"structured mode, " + id, encoded(structuredType, member(id, members)), map[string]seen{id: want}}
	}
	all := []arriving{
		inBinary("json", "application/json", json),
		inBinary("json-suffix", "application/vnd.example+json; charset=utf-8", json),
		inBinary("xml", "application/xml", "<a b='é'/>\n"),
		inBinary("text", "text/plain; charset=utf-8", "é \"\\\r\n"),
		inBinary("bytes", "application/octet-stream", raw),
		inBinary("no-json", "application/json", "{"),
		inBinary("large", "text/plain", strings.Repeat("0123456789abcdef", 1<<16/16)),
		inStructured("json-data", `,"datacontenttype":"application/json","data":`+json, seen{contentType: "application/json", data: strings.TrimSpace(json)}),
		inStructured("string-data", `,"datacontenttype":"text/plain","data":"a\u00e9\n\"<a/>"`, seen{contentType: "text/plain", data: "aé\n\"<a/>"}),
		inStructured("base64-data", `,"datacontenttype":"image/png","data_base64":"AP8B/w=="`, seen{contentType: "image/png", data: "\x00\xff\x01\xff"}),
		inStructured("extensions", `,"number":-42,"truth":true,"text":"é \"","datacontenttype":"application/json","data":null`,
			seen{attributes: attributes("extensions", map[string]string{"number": "-42", "truth": "true", "text": `é "`}), contentType: "application/json", data: "null"}),
		{"batched mode", encoded(batchType, "["+member("batch-1", `,"datacontenttype":"application/json","data":{ }`)+" , "+
			member("batch-2", `,"datacontenttype":"text/plain","data":"x","ext":"1"`)+"]"), map[string]seen{
			"batch-1": {structured: true, attributes: attributes("batch-1", nil), contentType: "application/json", data: "{ }"},
			"batch-2": {structured: true, attributes: attributes("batch-2", map[string]string{"ext": "1"}), contentType: "text/plain", data: "x"},
		}},
	}
	all = append(all, version03()...)
	with := binary("optional", "{}", map[string]string{"Content-Type": "application/json"})
	for name, value := range optional {
		with.header["Ce-"+name] = value
	}
	return append(all, arriving{"optional attributes", with, map[string]seen{
		"optional": {attributes: attributes("optional", optional), contentType: "application/json", data: "{}"},
	}})
}

// version03 are events of CloudEvents 0.3, in all modes.
func version03() []arriving {
	attributes := func(id string, more map[string]string) map[string]string {
		all := map[string]string{"specversion": "0.3", "id": id, "type": "order", "source": "/test"}
		maps.Copy(all, more)
		return all
	}
	member := func(id, members string) string {
		return fmt.Sprintf(`{"specversion":"0.3","id":%q,"type":"order","source":"/test"%s}`, id, members)
	}
	inBinary := func(id, contentType, data string) arriving {
		header := map[string]string{"Ce-Specversion": "0.3", "Ce-Schemaurl": "http://schema.example.com/a", "Ce-Ext": "1", "Content-Type": contentType}
		return arriving{"0.3 in binary mode, " + id, binary(id, data, header), map[string]seen{
			id: {attributes: attributes(id, map[string]string{"schemaurl": "http://schema.example.com/a", "ext": "1"}), contentType: contentType, data: data},
		}}
	}
	inStructured := func(id, members string, want seen) arriving {
		want.structured, want.attributes = true, attributes(id, want.attributes)
		return arriving{"0.3 in structured mode, " + id, encoded(structuredType, member(id, members)), map[string]seen{id: want}}
	}
	return []arriving{
		inBinary("0.3-json", "application/json", `{"a": 1.0}`),
		inBinary("0.3-bytes", "application/octet-stream", "\x00\xff"),
		inStructured("0.3-structured", `,"schemaurl":"http://schema.example.com/a","datacontenttype":"application/json","data":{"a": 1.0}`,
			seen{attributes: map[string]string{"schemaurl": "http://schema.example.com/a"}, contentType: "application/json", data: `{"a": 1.0}`}),
		inStructured("0.3-base64", `,"datacontenttype":"image/png","datacontentencoding":"base64","data":"AP8B/w=="`,
			seen{contentType: "image/png", data: "\x00\xff\x01\xff"}),
		{"0.3 in batched mode", encoded(batchType, "["+member("0.3-batch", `,"datacontenttype":"application/json","data":{ }`)+
			`,{"specversion":"1.0","id":"1.0-batch","type":"order","source":"/test","datacontenttype":"text/plain","data":"x"}]`), map[string]seen{
			"0.3-batch": {structured: true, attributes: attributes("0.3-batch", nil), contentType: "application/json", data: "{ }"},
			"1.0-batch": {structured: true, attributes: attributes("1.0-batch", map[string]string{"specversion": "1.0"}), contentType: "text/plain", data: "x"},
		}},
	}
}

// TestVersion03Onwards checks that replies and dead letters keep the version of their events (eventing Event Delivery-5 and
// -8).
func TestVersion03Onwards(t *testing.T) {
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			sink := harness.NewSink(t)
			subscriber, replies, dead := sink.At("/"), sink.At("/replies"), sink.At("/dead")
			subscriber.Answer(func(d *harness.Delivery) harness.Answer {
				if d.ID == "refused" {
					return harness.Answer{Code: http.StatusBadRequest}
				}
				if d.ID == "structured" {
					return harness.Answer{Code: http.StatusOK, Header: http.Header{"Content-Type": {structuredType}},
						Body: `{"specversion":"0.3","id":"structured-reply","type":"reply","source":"/reply","datacontenttype":"text/plain","data":"x"}`}
				}
				answer := replying(http.StatusOK, d.ID+"-reply", "reply", "x")
				answer.Header.Set("Ce-Specversion", "0.3")
				return answer
			})
			address := converse(t, consumer.name, ns, subscriber.URL, replies.URL, deadTo(uri(dead.URL), retries(0, "PT0S")))
			for _, id := range []string{"binary", "structured", "refused"} {
				binary(id, "{}", map[string]string{"Ce-Specversion": "0.3", "Content-Type": "application/json"}).mustSend(t, address)
			}
			for _, id := range []string{"binary-reply", "structured-reply"} {
				if e := read(t, deliveryOf(t, replies, id)); e.attributes["specversion"] != "0.3" || e.data != "x" || e.contentType != "text/plain" {
					t.Errorf("%s arrived as %+v, want version 0.3", id, e)
				}
			}
			e := read(t, deliveryOf(t, dead, "refused"))
			if e.attributes["specversion"] != "0.3" || e.attributes["knativeerrorcode"] != "400" || e.data != "{}" {
				t.Errorf("the dead letter is %+v, want version 0.3 and the code 400", e)
			}
		})
	}
}

// TestContent checks that events arrive byte for byte and with all attributes, in their original mode or in the mode of
// delivery.format (eventing Content Based Routing-8 and -13, eventing Topology Based Routing-7 and -8; eventing Minimum
// supported protocol-1; eventing HTTP Verbs-2; eventing Broker Lifecycle-3, Channel Lifecycle-3; eventing DeliverySpec).
func TestContent(t *testing.T) {
	json, binary := duckv1.FormatJSON, duckv1.FormatBinary
	for _, consumer := range consumers {
		for _, format := range []*duckv1.FormatType{nil, &json, &binary} {
			t.Run(fmt.Sprintf("%s, format %q", consumer.name, ptr.Deref(format, "")), func(t *testing.T) {
				t.Parallel()
				subscriber := harness.NewSink(t).At("/")
				address := consumer.consume(t, namespace(), subscriber.URL, &duckv1.DeliverySpec{Format: format})
				for _, e := range arrivals() {
					e.mustSend(t, address)
					for id, want := range e.want {
						if format != nil {
							want.structured = *format == json
						}
						if consumer.name == "Trigger" {
							want.attributes["knativebrokerttl"] = "255"
						}
						d := deliveryOf(t, subscriber, id)
						got := read(t, d)
						if want.structured && strings.Contains(want.contentType, "json") {
							// White space around a member is not part of its value.
							want.data, got.data = strings.TrimSpace(want.data), strings.TrimSpace(got.data)
						}
						if diff := cmp.Diff(want, got, cmp.AllowUnexported(seen{})); diff != "" {
							t.Errorf("%s, event %s (-want +got):\n%s", e.name, id, diff)
						}
					}
				}
			})
		}
	}
}

// TestContentWithoutType checks that data without a content type, and events without data, arrive without one (eventing Content
// Based Routing-8).
func TestContentWithoutType(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", subscriber.URL)
	binary("untyped", "\x00x", nil).mustSend(t, address)
	binary("empty", "", nil).mustSend(t, address)
	for id, want := range map[string]string{"untyped": "\x00x", "empty": ""} {
		d := deliveryOf(t, subscriber, id)
		if contentType, found := d.Header["Content-Type"]; found || string(d.Body) != want {
			t.Errorf("%s arrived as %q %q, want %q without a type", id, contentType, d.Body, want)
		}
	}
}

// TestContentHeaders checks which request headers are delivered with the event, and that replies are requested (eventing
// Derived (Reply) Events-1 and -4).
func TestContentHeaders(t *testing.T) {
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			ns := namespace()
			subscriber := harness.NewSink(t).At("/")
			address := consumer.consume(t, ns, subscriber.URL, nil)
			m := binary("1", "{}", map[string]string{
				"X-Request-Id": "r", "X-B3-Traceid": "t", "Knative-Example": "k", "Tracestate": "a=b",
				"Traceparent":   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
				"Authorization": "Bearer secret", "Cookie": "secret", "X-Other": "o",
			})
			m.mustSend(t, address)
			header := deliveryOf(t, subscriber, "1").Header
			for name, want := range map[string]string{
				"X-Request-Id": "r", "X-B3-Traceid": "t", "Knative-Example": "k", "Tracestate": "a=b", "Kn-Namespace": ns, "Prefer": "reply",
				"Authorization": "", "Cookie": "", "X-Other": "",
			} {
				if got := header.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if got := header.Get("Traceparent"); !strings.HasPrefix(got, "00-0af7651916cd43dd8448eb211c80319c-") {
				t.Errorf("Traceparent is %q, want one of the event's trace", got)
			}
		})
	}
}
