package event

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzDecode checks that Decode never panics, and that accepted data is an event.
func FuzzDecode(f *testing.F) {
	f.Add((&Event{}).Append(nil))
	f.Add((&Event{
		Attributes: append(strs("id", "1"), Attribute{"n", "1", Integer}),
		Headers:    []Header{{"b3", "x"}}, Data: []byte("data"), Structured: true,
	}).Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Decode(data)
		if err != nil {
			return
		}
		decoded, err := Decode(e.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, decoded); diff != "" {
			t.Error(diff)
		}
	})
}

// FuzzFromRequest checks that reading never panics, and that an accepted event is the same after it was written
// and read in each mode.
func FuzzFromRequest(f *testing.F) {
	f.Add("", "1.0", "1", "/s", "t", "x", "Y%20", "text/plain", []byte("data"))
	f.Add("", "1.0", "", "://", "", "my-ext", "\"", "application/json", []byte("{}"))
	f.Add("", "0.3", "", "", "", "time", "2026-01-02T03:04:05Z", "", []byte(nil))
	f.Add("application/cloudevents+json", "", "", "", "", "b3", "x", "", []byte(`{`+minimal+`,"data":{"a": 1.0 },"n":1,"b":true,"z":null}`))
	f.Add("application/cloudevents+json", "", "", "", "", "", "", "", []byte(`{`+minimal+`,"datacontenttype":"text/xml","data":"\u00e9"}`))
	f.Add("application/cloudevents+json", "", "", "", "", "", "", "", []byte(`{`+minimal+`,"data_base64":"AA=="}`))
	f.Add("application/cloudevents-batch+json", "", "", "", "", "", "", "", []byte(`[{`+minimal+`,"data":null},{`+minimal+`}]`))
	f.Fuzz(func(t *testing.T, mode, version, id, source, kind, name, value, mediaType string, body []byte) {
		header := http.Header{"Content-Type": {mode}}
		if mode == "" {
			header = headerOf("ce-specversion", version, "ce-id", id, "ce-source", source, "ce-type", kind, "content-type", mediaType)
			header.Add("ce-"+name, value)
		}
		events, err := FromRequest(header, body)
		if err != nil {
			return
		}
		for _, e := range events {
			if e.Structured && !json.Valid(body) {
				t.Fatalf("this is not JSON: %q", body)
			}
			if _, err := e.ToSDK(); err != nil {
				t.Errorf("the SDK rejects an accepted event: %v", err)
			}
			checkStructured(t, e)
			checkBinary(t, e)
			decoded, err := Decode(e.Append(nil))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(e, decoded, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("from the log: %s", diff)
			}
		}
	})
}

var sameSet = cmpopts.SortSlices(func(a, b Attribute) bool { return a.Name < b.Name })

// checkStructured writes and reads an event in structured mode.
func checkStructured(t *testing.T, e *Event) {
	t.Helper()
	written, err := e.MarshalStructured()
	if err != nil {
		t.Fatal(err)
	}
	read, err := FromRequest(headerOf("content-type", "application/cloudevents+json"), written)
	if err != nil {
		t.Fatalf("%s %v", written, err)
	}
	want := *e
	want.Structured, want.Headers = true, nil
	// White space around JSON is not part of the value.
	got := *read[0]
	if mediaType, typed := e.Get(DataContentType); (!typed || isJSON(mediaType)) && json.Valid(e.Data) {
		want.Data = bytes.Trim(want.Data, " \t\r\n")
	}
	if diff := cmp.Diff(&want, &got, sameSet, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("after structured mode %s: %s", written, diff)
	}
	if (got.Data == nil) != (e.Data == nil) {
		t.Errorf("after structured mode, data is %#v instead of %#v", got.Data, e.Data)
	}
}

// checkBinary writes and reads an event in binary mode, which has no types of values.
func checkBinary(t *testing.T, e *Event) {
	t.Helper()
	header := http.Header{}
	body := e.WriteBinary(header)
	for name, values := range header {
		for i := range len(values[0]) {
			if c := values[0][i]; c < ' ' || c >= 0x7f {
				t.Errorf("header %s is %q", name, values[0])
			}
		}
	}
	read, err := FromRequest(header, body)
	if err != nil {
		t.Fatalf("%v %v", header, err)
	}
	want := *e
	want.Structured, want.Headers = false, nil
	if _, typed := e.Get(DataContentType); !typed && e.Structured && e.Data != nil {
		want = *want.With(Attribute{Name: DataContentType, Value: "application/json"})
	}
	if diff := cmp.Diff(&want, read[0], sameSet, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Attribute{}, "Type")); diff != "" {
		t.Errorf("after binary mode %v: %s", header, diff)
	}
}
