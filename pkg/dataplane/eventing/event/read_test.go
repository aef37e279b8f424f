package event

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// headerOf returns the headers of pairs of names and values.
func headerOf(pairs ...string) http.Header {
	header := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		header.Add(pairs[i], pairs[i+1])
	}
	return header
}

// binaryHeader returns the headers of an event in binary mode, with more.
func binaryHeader(pairs ...string) http.Header {
	header := headerOf("ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t")
	for name, values := range headerOf(pairs...) {
		header[name] = values
	}
	return header
}

func strs(pairs ...string) []Attribute {
	var attributes []Attribute
	for i := 0; i < len(pairs); i += 2 {
		attributes = append(attributes, Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return attributes
}

// TestBinary covers eventing Minimum supported protocol-1: binary mode.
func TestBinary(t *testing.T) {
	for name, test := range map[string]struct {
		header http.Header
		body   string
		want   Event
	}{
		"all attributes": {
			header: binaryHeader("ce-subject", "a", "ce-time", "2026-01-02T03:04:05.678+01:00", "ce-dataschema", "http://x/y",
				"content-type", "application/json; charset=utf-8", "Ce-MyExt1", "7"),
			body: ` {"a" : 1.0}` + "\n",
			want: Event{
				Attributes: strs("datacontenttype", "application/json; charset=utf-8", "dataschema", "http://x/y", "id", "1",
					"myext1", "7", "source", "/s", "subject", "a", "time", "2026-01-02T03:04:05.678+01:00", "type", "t"),
				Data: []byte(` {"a" : 1.0}` + "\n"),
			},
		},
		"percent-encoded, quoted and plain values": {
			header: binaryHeader("ce-a", "Euro%20%E2%82%ac", "ce-b", `"x \"y\" %41"`, "ce-c", "100% of 5%2", "ce-d", `"`, "ce-e", "€ u"),
			want: Event{Attributes: strs("a", "Euro €", "b", `x "y" A`, "c", "100% of 5%2", "d", `"`, "e", "€ u",
				"id", "1", "source", "/s", "type", "t")},
		},
		"empty text": {
			header: binaryHeader("content-type", "text/plain"),
			want:   Event{Attributes: strs("datacontenttype", "text/plain", "id", "1", "source", "/s", "type", "t"), Data: []byte{}},
		},
		"no JSON": {
			header: binaryHeader("content-type", "application/json"),
			want:   Event{Attributes: strs("datacontenttype", "application/json", "id", "1", "source", "/s", "type", "t")},
		},
		"empty content type": {
			header: binaryHeader("content-type", ""), body: "x",
			want: Event{Attributes: strs("id", "1", "source", "/s", "type", "t"), Data: []byte("x")},
		},
		"unknown event format with attributes as headers": {
			header: binaryHeader("content-type", "application/cloudevents+avro"), body: "x",
			want: Event{Attributes: strs("datacontenttype", "application/cloudevents+avro", "id", "1", "source", "/s", "type", "t"), Data: []byte("x")},
		},
		"carried headers": {
			header: binaryHeader("X-Request-ID", "r", "knative-x", "k", "X-Other", "o", "KnativeErrorDest", "e", "Authorization", "secret"),
			want: Event{
				Attributes: strs("id", "1", "source", "/s", "type", "t"),
				Headers:    []Header{{"knative-x", "k"}, {"x-request-id", "r"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := FromRequest(test.header, []byte(test.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]*Event{&test.want}, got, sortHeaders); diff != "" {
				t.Error(diff)
			}
			reply, err := FromResponse(test.header, []byte(test.body))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got[0], reply, sortHeaders); diff != "" {
				t.Error(diff)
			}
		})
	}
}

var sortHeaders = cmp.Transformer("sort", func(headers []Header) map[string]string {
	byName := map[string]string{}
	for _, h := range headers {
		byName[h.Name] += h.Value + ";"
	}
	return byName
})

// TestCarriedLimit checks that the headers that travel with an event are bounded together, in all modes.
func TestCarriedLimit(t *testing.T) {
	half := strings.Repeat("x", MaxHeaderBytes/2)
	for name, test := range map[string]struct {
		header http.Header
		fails  bool
	}{
		"within":     {headerOf("knative-x", half), false},
		"one":        {headerOf("knative-x", half+half), true},
		"values":     {http.Header{"Tracestate": {half, half}}, true},
		"names":      {headerOf("knative-x", half, "x-request-id", half), true},
		"not passed": {headerOf("cookie", half+half, "x-b3-whatever", half), false},
	} {
		for mode, mediaType := range map[string]string{
			"structured": "application/cloudevents+json", "batched": "application/cloudevents-batch+json",
		} {
			header := test.header.Clone()
			header.Set("Content-Type", mediaType)
			body := `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`
			if mode == "batched" {
				body = "[" + body + "]"
			}
			_, err := FromRequest(header, []byte(body))
			if errors.Is(err, ErrHeaders) != test.fails || (err != nil) != test.fails {
				t.Errorf("%s, %s: %v", name, mode, err)
			}
		}
	}
}

// TestCarried covers the headers that travel with an event, in any letter case.
func TestCarried(t *testing.T) {
	header := headerOf("x-request-id", "1", "X-B3-TRACEID", "2", "x-b3-sampled", "3", "b3", "4", "TRACEPARENT", "5",
		"tracestate", "6", "tracestate", "7", "knative-foo", "8", "knativeerrorcode", "no", "ce-knative-foo", "no", "x-b3", "no", "cookie", "no")
	want := []Header{{"x-request-id", "1"}, {"x-b3-traceid", "2"}, {"x-b3-sampled", "3"}, {"b3", "4"}, {"traceparent", "5"},
		{"tracestate", "6"}, {"tracestate", "7"}, {"knative-foo", "8"}}
	got, err := carried(header)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sortHeaders); diff != "" {
		t.Error(diff)
	}
	written := headerOf("traceparent", "old")
	(&Event{Headers: got}).WriteHeaders(written)
	wantWritten := headerOf("x-request-id", "1", "X-B3-TRACEID", "2", "x-b3-sampled", "3", "b3", "4", "TRACEPARENT", "5",
		"tracestate", "6", "tracestate", "7", "knative-foo", "8")
	if diff := cmp.Diff(wantWritten, written); diff != "" {
		t.Error(diff)
	}
}

const minimal = `"specversion":"1.0","id":"1","source":"/s","type":"t"`

// TestStructured covers eventing Minimum supported protocol-1: structured mode, with data byte for byte.
func TestStructured(t *testing.T) {
	for name, test := range map[string]struct {
		body       string
		attributes []Attribute
		data       []byte
	}{
		"no data": {body: "{" + minimal + "}"},
		"types of attributes": {
			body:       "\n{" + minimal + `,"i":-7,"b":true,"n":null,"s":"é\u20ac"}`,
			attributes: []Attribute{{"i", "-7", Integer}, {"b", "true", Boolean}, {"s", "é€", String}},
		},
		"JSON keeps its bytes": {
			body: `{"data": {"z" : 1.10000000000000000000001e2, "a":"\u00e9\/<", "z":[ ]} ,` + minimal + `,"datacontenttype":"application/x+JSON;v=1"}`,
			data: []byte(`{"z" : 1.10000000000000000000001e2, "a":"\u00e9\/<", "z":[ ]}`), attributes: strs("datacontenttype", "application/x+JSON;v=1"),
		},
		"JSON is implied":   {body: `{` + minimal + `,"data":"\u0041"}`, data: []byte(`"\u0041"`)},
		"JSON null":         {body: `{` + minimal + `,"data":null}`, data: []byte(`null`)},
		"text":              {body: `{` + minimal + `,"datacontenttype":"text/xml","data":"<a>\u00e9\n</a>"}`, data: []byte("<a>é\n</a>"), attributes: strs("datacontenttype", "text/xml")},
		"empty text":        {body: `{` + minimal + `,"datacontenttype":"text/plain","data":""}`, data: []byte{}, attributes: strs("datacontenttype", "text/plain")},
		"null text":         {body: `{` + minimal + `,"datacontenttype":"text/plain","data":null}`, attributes: strs("datacontenttype", "text/plain")},
		"base64":            {body: `{` + minimal + `,"data_base64":"AP+A"}`, data: []byte{0, 0xff, 0x80}},
		"base64, null data": {body: `{` + minimal + `,"data_base64":null}`},
		"empty base64":      {body: `{` + minimal + `,"data_base64":""}`, data: []byte{}},
	} {
		t.Run(name, func(t *testing.T) {
			header := headerOf("content-type", "Application/CloudEvents+JSON; charset=utf-8", "b3", "x")
			got, err := FromRequest(header, []byte(test.body))
			if err != nil {
				t.Fatal(err)
			}
			want := &Event{
				Attributes: append(strs("id", "1", "source", "/s", "type", "t"), test.attributes...),
				Data:       test.data, Structured: true, Headers: []Header{{"b3", "x"}},
			}
			if diff := cmp.Diff(want, got[0]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestBatch covers batched mode.
func TestBatch(t *testing.T) {
	header := headerOf("content-type", "application/cloudevents-batch+json")
	got, err := FromRequest(header, []byte(`[{`+minimal+`,"data":1}, {`+minimal+`,"datacontenttype":"text/plain","data":"x"}]`))
	if err != nil {
		t.Fatal(err)
	}
	required := strs("id", "1", "source", "/s", "type", "t")
	want := []*Event{
		{Attributes: required, Data: []byte("1"), Structured: true},
		{Attributes: append(required[:3:3], strs("datacontenttype", "text/plain")...), Data: []byte("x"), Structured: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got, err := FromRequest(header, []byte("[]")); err != nil || len(got) != 0 {
		t.Errorf("empty batch: got %v, %v, want no events", got, err)
	}
	if _, err := FromResponse(header, []byte("[]")); !errors.Is(err, ErrNotEvent) {
		t.Errorf("a batch as a reply: got %v, want an error", err)
	}
}

// TestMalformed checks that errors name the fault and the allowed values.
func TestMalformed(t *testing.T) {
	structured, batch := headerOf("content-type", "application/cloudevents+json"), headerOf("content-type", "application/cloudevents-batch+json")
	without := func(name string) http.Header {
		header := binaryHeader()
		header.Del(name)
		return header
	}
	twice := binaryHeader()
	twice.Add("ce-type", "u")
	many := binaryHeader()
	for i := range maxAttributes {
		many.Set(fmt.Sprintf("ce-a%d", i), "")
	}
	for name, test := range map[string]struct {
		header http.Header
		body   string
		want   string
	}{
		"nothing":             {http.Header{}, "", "neither is there a header ce-specversion"},
		"JSON":                {headerOf("content-type", "application/json"), "{}", "neither is there a header ce-specversion"},
		"unknown format":      {headerOf("content-type", "application/CloudEvents+avro"), "{}", "the event format is not supported"},
		"no version":          {without("ce-specversion"), "", "neither is there a header ce-specversion"},
		"old version":         {binaryHeader("ce-specversion", "0.2"), "", `attribute 'specversion' must be '1.0' or '0.3', not "0.2"`},
		"no id":               {without("ce-id"), "", "attribute 'id' must be given"},
		"no source":           {without("ce-source"), "", "attribute 'source' must be given"},
		"no type":             {without("ce-type"), "", "attribute 'type' must be given"},
		"empty id":            {binaryHeader("ce-id", ""), "", `attribute 'id' must be a non-empty string`},
		"empty type":          {binaryHeader("ce-type", ""), "", `attribute 'type' must be a non-empty string`},
		"empty subject":       {binaryHeader("ce-subject", ""), "", `attribute 'subject' must be a non-empty string`},
		"empty source":        {binaryHeader("ce-source", ""), "", `attribute 'source' must be a non-empty URI reference`},
		"source":              {binaryHeader("ce-source", "://x"), "", `attribute 'source' must be a non-empty URI reference, not "://x"`},
		"time":                {binaryHeader("ce-time", "yesterday"), "", `attribute 'time' must be a timestamp by RFC 3339, not "yesterday"`},
		"dataschema":          {binaryHeader("ce-dataschema", "/relative"), "", `attribute 'dataschema' must be an absolute URI`},
		"content type":        {binaryHeader("content-type", "json"), "", `attribute 'datacontenttype' must be a media type by RFC 2046, not "json"`},
		"name":                {binaryHeader("ce-my-ext", "x"), "", `attribute name "my-Ext" must consist of lower case letters and digits`},
		"underscore":          {binaryHeader("ce-data_base64", "x"), "", `attribute name "data_base64" must consist`},
		"empty name":          {binaryHeader("ce-", "x"), "", "header 'ce-' names no attribute"},
		"data as attribute":   {binaryHeader("ce-data", "x"), "", "attribute name 'data' may not be used for an extension"},
		"given twice":         {twice, "", "header 'ce-type' may not be given twice"},
		"content type twice":  {binaryHeader("ce-datacontenttype", "a/b", "content-type", "a/b"), "", "attribute 'datacontenttype' may not be given twice"},
		"line break":          {binaryHeader("ce-ext", "a%0D%0Ab"), "", "attribute 'ext' may not contain control characters"},
		"noncharacter":        {binaryHeader("ce-ext", "%EF%BF%BF"), "", "attribute 'ext' may not contain control characters and noncharacters"},
		"no UTF-8":            {binaryHeader("ce-ext", "%FF"), "", "attribute 'ext' must be valid Unicode"},
		"too many attributes": {many, "", "it may have at most 256 attributes"},
		"too large":           {binaryHeader("ce-ext", strings.Repeat("x", maxAttributeBytes)), "", "its attributes may take up at most 65536 bytes"},

		"not JSON":              {structured, "", "it must be valid JSON: unexpected EOF"},
		"broken JSON":           {structured, `{"a"`, "it must be valid JSON"},
		"broken value":          {structured, `{` + minimal + `,"data":{]}`, "it must be valid JSON"},
		"truncated":             {structured, `{` + minimal, "it must be valid JSON: unexpected EOF"},
		"array":                 {structured, `[]`, "it must be a JSON object"},
		"more":                  {structured, `{` + minimal + `} {}`, "nothing may follow"},
		"no specversion":        {structured, `{"id":"1"}`, `attribute 'specversion' must be '1.0' or '0.3', not ""`},
		"version 0.2":           {structured, `{"specversion":"0.2"}`, `attribute 'specversion' must be '1.0' or '0.3', not "0.2"`},
		"numeric version":       {structured, `{"specversion":1.0}`, `attribute 'specversion' must be a string`},
		"two versions":          {structured, `{` + minimal + `,"specversion":"1.0"}`, `member 'specversion' may not be given twice`},
		"two ids":               {structured, `{` + minimal + `,"id":"2"}`, `attribute 'id' may not be given twice`},
		"numeric id":            {structured, `{"specversion":"1.0","id":1,"source":"/s","type":"t"}`, `attribute 'id' must be a non-empty string`},
		"null id":               {structured, `{"specversion":"1.0","id":null,"source":"/s","type":"t"}`, `attribute 'id' must be given`},
		"object":                {structured, `{` + minimal + `,"ext":{}}`, `attribute 'ext' must be a string, a boolean or an integer of 32 bits`},
		"fraction":              {structured, `{` + minimal + `,"ext":1.5}`, `attribute 'ext' must be a string, a boolean or an integer`},
		"64 bits":               {structured, `{` + minimal + `,"ext":2147483648}`, `attribute 'ext' must be a string, a boolean or an integer`},
		"capital":               {structured, `{` + minimal + `,"Ext":"x"}`, `attribute name "Ext" must consist`},
		"control character":     {structured, `{` + minimal + `,"ext":"a\nb"}`, `attribute 'ext' may not contain control characters`},
		"invalid UTF-8 in JSON": {structured, `{` + minimal + `,"ext":"` + "\xff" + `"}`, `attribute 'ext' must be valid Unicode`},
		"data twice":            {structured, `{` + minimal + `,"data":1,"data":2}`, `member 'data' may not be given twice`},
		"both data":             {structured, `{` + minimal + `,"data":1,"data_base64":"AA=="}`, `member 'data_base64' may not be given besides 'data'`},
		"bad base64":            {structured, `{` + minimal + `,"data_base64":"A"}`, `member 'data_base64' must be a string of base64`},
		"array of bytes":        {structured, `{` + minimal + `,"data_base64":[1]}`, `member 'data_base64' must be a string of base64`},
		"object as text":        {structured, `{` + minimal + `,"datacontenttype":"text/plain","data":{}}`, `member 'data' must be a string, as its content type is 'text/plain'`},
		"deep":                  {structured, `{` + minimal + `,"data":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`, "it must be valid JSON"},

		"batch of an object": {batch, `{` + minimal + `}`, "it must be a JSON array"},
		"batch of a number":  {batch, `[1]`, "event [0] of the batch: it must be a JSON object"},
		"one is bad":         {batch, `[{` + minimal + `},{"specversion":"1.0"}]`, "event [1] of the batch: attribute 'id' must be given"},
		"open batch":         {batch, `[{` + minimal + `}`, "it must be valid JSON: unexpected EOF"},
		"batch and more":     {batch, `[] []`, "nothing may follow"},
	} {
		t.Run(name, func(t *testing.T) {
			events, err := FromRequest(test.header, []byte(test.body))
			if !errors.Is(err, ErrNotEvent) || !strings.HasPrefix(err.Error(), "is not a CloudEvent: "+test.want) {
				t.Errorf("got %v, %v, want the error %q", events, err, test.want)
			}
			if got, want := errors.Is(err, ErrFormat), name == "unknown format"; got != want {
				t.Errorf("the error is one of an unknown format: %t", got)
			}
			if _, err := FromResponse(test.header, []byte(test.body)); !errors.Is(err, ErrNotEvent) {
				t.Errorf("as a reply: %v, want an error", err)
			}
		})
	}
}

// TestNoAliasing checks that events in structured mode do not share memory with the body.
func TestNoAliasing(t *testing.T) {
	body := []byte(`{` + minimal + `,"ext":"abc","data":{"a":"b"}}`)
	events, err := FromRequest(headerOf("content-type", "application/cloudevents+json"), body)
	if err != nil {
		t.Fatal(err)
	}
	clear(body)
	if ext, _ := events[0].Get("ext"); ext != "abc" || string(events[0].Data) != `{"a":"b"}` {
		t.Errorf("the event changed with its body: ext %q, data %q", ext, events[0].Data)
	}
}
