package event

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Events of CloudEvents 0.3 are written unchanged in the mode in which they arrived, also from the log, and by the rules of 0.3 in the other mode.
func TestVersion03(t *testing.T) {
	structured := headerOf("content-type", "application/cloudevents+json")
	for name, test := range map[string]struct {
		header http.Header
		body   string
		// json is the event in structured mode, data is its data in binary mode.
		json, data string
	}{
		"binary": {
			headerOf("ce-specversion", "0.3", "ce-id", "1", "ce-source", "/s", "ce-type", "t", "ce-schemaurl", "http://x/s",
				"ce-ext", "e", "content-type", "text/plain"), "hi",
			`{"specversion":"0.3","datacontenttype":"text/plain","ext":"e","id":"1","schemaurl":"http://x/s","source":"/s","type":"t","data":"hi"}`, "hi",
		},
		"binary, bytes": {
			headerOf("ce-specversion", "0.3", "ce-id", "1", "ce-source", "/s", "ce-type", "t", "content-type", "image/png"), "\x00\x01",
			`{"specversion":"0.3","datacontenttype":"image/png","id":"1","source":"/s","type":"t","datacontentencoding":"base64","data":"AAE="}`, "\x00\x01",
		},
		"structured": {
			structured, `{"specversion":"0.3","id":"1","source":"/s","type":"t","data":{"a": 1}}`,
			`{"specversion":"0.3","id":"1","source":"/s","type":"t","data":{"a": 1}}`, `{"a": 1}`,
		},
		"structured, base64": {
			structured, `{"specversion":"0.3","id":"1","source":"/s","type":"t","datacontenttype":"text/plain","datacontentencoding":"base64","data":"aGk="}`,
			`{"specversion":"0.3","id":"1","source":"/s","type":"t","datacontenttype":"text/plain","datacontentencoding":"base64","data":"aGk="}`, "hi",
		},
		"batched": {
			headerOf("content-type", "application/cloudevents-batch+json"), `[{"specversion":"0.3","id":"1","source":"/s","type":"t","data":"x"}]`,
			`{"specversion":"0.3","id":"1","source":"/s","type":"t","data":"x"}`, `"x"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			events, err := FromRequest(test.header, []byte(test.body))
			if err != nil {
				t.Fatal(err)
			}
			e, err := Decode(events[0].Append(nil))
			if err != nil {
				t.Fatal(err)
			}
			if version, _ := e.Get("specversion"); version != "0.3" {
				t.Errorf("its version is %q", version)
			}
			var got, want any
			written, err := e.MarshalStructured()
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(written, &got); err != nil {
				t.Fatalf("%s: %v", written, err)
			}
			if err := json.Unmarshal([]byte(test.json), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			header := http.Header{}
			if data := e.WriteBinary(header); string(data) != test.data || header.Get("ce-specversion") != "0.3" || header.Get("ce-datacontentencoding") != "" {
				t.Errorf("in binary mode it is %v %q, want data %q", header, data, test.data)
			}
			if test.header.Get("ce-id") != "" {
				if diff := cmp.Diff(test.header, header); diff != "" {
					t.Error(diff)
				}
			}
			sdk, err := e.ToSDK()
			if err != nil || sdk.SpecVersion() != "0.3" || sdk.ID() != "1" || sdk.DataSchema() != test.header.Get("ce-schemaurl") {
				t.Errorf("the SDK has %v, %v", sdk, err)
			}
			if dead := e.With(Attribute{Name: ErrorCode, Value: "500", Type: Integer}); !dead.V03 {
				t.Error("a changed copy has another version")
			}
		})
	}
}

// Events that version 0.3 does not allow are rejected.
func TestMalformed03(t *testing.T) {
	header := headerOf("content-type", "application/cloudevents+json")
	for body, want := range map[string]string{
		`{"specversion":"0.3","id":"1","source":"/s","type":"t","data_base64":"aGk="}`:                               "member 'data_base64' may not be given with specversion '0.3'",
		`{"specversion":"0.3","id":"1","source":"/s","type":"t","datacontentencoding":"gzip","data":"x"}`:            "attribute 'datacontentencoding' must be 'base64'",
		`{"specversion":"0.3","id":"1","source":"/s","type":"t","datacontentencoding":"base64","data":{"a":"aGk="}}`: "member 'data' must be a string of base64 with padding",
	} {
		if _, err := FromRequest(header, []byte(body)); err == nil || err.Error() != "is not a CloudEvent: "+want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}
