package event

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestWriteBinary covers eventing Minimum supported protocol-1: binary mode. Values of attributes cannot inject headers.
func TestWriteBinary(t *testing.T) {
	e := &Event{
		Attributes: append(strs("id", "1", "source", "/s", "type", "t", "datacontenttype", "text/plain", "ext", "a b%\"€\u0001\r\nx-y: z"),
			Attribute{"knativebrokerttl", "254", Integer}),
		Data: []byte("x"),
	}
	header := headerOf("prefer", "reply")
	body := e.WriteBinary(header)
	want := http.Header{
		"Prefer": {"reply"}, "Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}, "Content-Type": {"text/plain"},
		"Ce-Ext": {"a%20b%25%22%E2%82%AC%01%0D%0Ax-y:%20z"}, "Ce-Knativebrokerttl": {"254"},
	}
	if diff := cmp.Diff(want, header); diff != "" {
		t.Error(diff)
	}
	if string(body) != "x" {
		t.Errorf("the body is %q, want x", body)
	}

	implied := &Event{Attributes: strs("id", "1"), Data: []byte("{}"), Structured: true}
	header = http.Header{}
	implied.WriteBinary(header)
	if got := header.Get("content-type"); got != "application/json" {
		t.Errorf("the content type of JSON that arrived without one is %q, want application/json", got)
	}
	untyped := &Event{Attributes: strs("id", "1"), Data: []byte("{}")}
	header = http.Header{}
	untyped.WriteBinary(header)
	if got, found := header["Content-Type"]; found {
		t.Errorf("the content type of data that arrived without one in binary mode is %q, want none", got)
	}
}

// TestMarshalStructured covers eventing Minimum supported protocol-1: structured mode, with data byte for byte.
func TestMarshalStructured(t *testing.T) {
	for name, test := range map[string]struct {
		contentType string
		data        []byte
		want        string
	}{
		"none":               {"text/plain", nil, ``},
		"JSON":               {"application/json", []byte(" {\"a\" : 1.00,\"b\":\"\\u003c<\"}\n"), ",\"data\": {\"a\" : 1.00,\"b\":\"\\u003c<\"}\n"},
		"JSON suffix":        {"application/vnd.x+json; charset=utf-8", []byte(`1`), `,"data":1`},
		"broken JSON":        {"application/json", []byte(`{`), `,"data_base64":"ew=="`},
		"JSON not UTF-8":     {"application/json", []byte("\"\xff\""), `,"data_base64":"Iv8i"`},
		"no JSON":            {"application/json", []byte{}, `,"data_base64":""`},
		"untyped JSON":       {"", []byte(`[1]`), `,"data":[1]`},
		"untyped":            {"", []byte(`x`), `,"data_base64":"eA=="`},
		"text":               {"text/plain", []byte("a\"\\\n<é"), `,"data":"a\"\\\n<é"`},
		"XML":                {"application/atom+xml", []byte("<a/>"), `,"data":"<a/>"`},
		"text in UTF-8":      {"text/plain; charset=UTF-8", []byte("é"), `,"data":"é"`},
		"text in Latin-1":    {"text/plain; charset=iso-8859-1", []byte("x"), `,"data_base64":"eA=="`},
		"text not UTF-8":     {"text/plain", []byte{0xff}, `,"data_base64":"/w=="`},
		"empty text":         {"text/plain", []byte{}, `,"data":""`},
		"bytes":              {"application/octet-stream", []byte("x"), `,"data_base64":"eA=="`},
		"unknown media type": {"image/png", []byte("x"), `,"data_base64":"eA=="`},
	} {
		t.Run(name, func(t *testing.T) {
			e := &Event{Attributes: append(strs("id", `a"b`), Attribute{"n", "-1", Integer}, Attribute{"b", "true", Boolean}), Data: test.data}
			want := `{"specversion":"1.0","id":"a\"b","n":-1,"b":true`
			if test.contentType != "" {
				e.Attributes = append(e.Attributes, Attribute{Name: DataContentType, Value: test.contentType})
				want += `,"datacontenttype":"` + test.contentType + `"`
			}
			got, err := e.MarshalStructured()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want+test.want+"}", string(got)); diff != "" {
				t.Error(diff)
			}
			if !json.Valid(got) {
				t.Errorf("this is not JSON: %s", got)
			}
		})
	}
}

// TestToSDK covers the types of the attributes that expressions see.
func TestToSDK(t *testing.T) {
	e := &Event{Attributes: append(
		strs("id", "1", "source", "/s", "type", "t", "subject", "u", "time", "2026-01-02t03:04:05z", "dataschema", "http://x/", "datacontenttype", "a/b", "ext", "5"),
		Attribute{"n", "5", Integer}, Attribute{"b", "true", Boolean})}
	got, err := e.ToSDK()
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	want := map[string]any{"ext": "5", "n": int32(5), "b": true}
	if diff := cmp.Diff(want, got.Extensions()); diff != "" {
		t.Error(diff)
	}
	attributes := []string{got.ID(), got.Source(), got.Type(), got.Subject(), got.Time().String(), got.DataSchema(), got.DataContentType()}
	if diff := cmp.Diff([]string{"1", "/s", "t", "u", "2026-01-02 03:04:05 +0000 UTC", "http://x/", "a/b"}, attributes); diff != "" {
		t.Error(diff)
	}
	for _, bad := range [][]Attribute{strs("source", "://"), strs("time", "x"), strs("dataschema", "://")} {
		if _, err := (&Event{Attributes: bad}).ToSDK(); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}
