package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"
)

// post sends an event to an application, and returns its response and output.
func post(t *testing.T, target, contentType, body string, header map[string]string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	var printed strings.Builder
	a := newApp()
	a.events = &printed
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w.Result(), printed.String()
}

var order = map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/shop", "Ce-Type": "order", "Ce-Team": "a"}

func TestEventsAreReported(t *testing.T) {
	const attributes = `"specversion":"1.0","id":"1","source":"/shop","type":"order","team":"a"`
	for name, tc := range map[string]struct {
		target, contentType, body string
		header                    map[string]string
		code                      int
		want                      string
	}{
		"binary":                    {"/", "application/json", `{"n": 1}`, order, 202, `{"received": {` + attributes + `,"datacontenttype":"application/json"}, "data": {"n":1}}`},
		"on any path":               {"/orders/new", "text/plain", "hello", order, 202, `{"received": {` + attributes + `,"datacontenttype":"text/plain"}, "data": "hello"}`},
		"bytes":                     {"/", "image/png", "\xff\x00", order, 202, `{"received": {` + attributes + `,"datacontenttype":"image/png"}, "data": "/wA="}`},
		"bad JSON":                  {"/", "application/json", "{", order, 202, `{"received": {` + attributes + `,"datacontenttype":"application/json"}, "data": "{"}`},
		"no data":                   {"/", "", "", order, 202, `{"received": {` + attributes + `}}`},
		"of a user":                 {"/", "", "", map[string]string{"Ce-Specversion": "1.0", "Ce-Id": "1", "Ce-Source": "/shop", "Ce-Type": "order", "Ce-Team": "a", "Knative-Serving-User": "jane"}, 202, `{"received": {` + attributes + `}, "user": "jane"}`},
		"structured":                {"/", "application/cloudevents+json", `{` + attributes + `,"data":{"n":1}}`, nil, 202, `{"received": {` + attributes + `}, "data": {"n":1}}`},
		"its answer":                {"/?code=503", "", "", order, 503, `{"received": {` + attributes + `}}`},
		"without id":                {"/", "", "", map[string]string{"Ce-Specversion": "1.0", "Ce-Source": "/", "Ce-Type": "a"}, 400, ""},
		"no event":                  {"/count", "application/json", "{}", nil, 200, ""},
		"a batch is no event to it": {"/", "application/cloudevents-batch+json", "[]", nil, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			response, printed := post(t, tc.target, tc.contentType, tc.body, tc.header)
			defer response.Body.Close()
			if response.StatusCode != tc.code {
				t.Errorf("status %d, want %d", response.StatusCode, tc.code)
			}
			if tc.want == "" || printed == "" {
				if printed != tc.want {
					t.Errorf("printed %q, want %q", printed, tc.want)
				}
				return
			}
			if strings.Index(printed, "\n") != len(printed)-1 {
				t.Errorf("printed %q, want one line", printed)
			}
			var got, want any
			if err := json.Unmarshal([]byte(printed), &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("line (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEventsAreRepliedTo(t *testing.T) {
	t.Setenv("REPLY_TYPE", "answer")
	t.Setenv("REPLY_SOURCE", "/replies")
	response, printed := post(t, "/", "text/plain", "hello", order)
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.Header.Get("Ce-Type") != "answer" || printed == "" {
		t.Errorf("status %d, headers %v, printed %q, want 200, an event in binary mode, and a line", response.StatusCode, response.Header, printed)
	}
	e, err := cehttp.NewEventFromHTTPResponse(response)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
	if e.Source() != "/replies" || string(e.Data()) != `{"replyTo":"1"}` {
		t.Errorf("the reply is %s", e)
	}
	custom, _ := post(t, "/", "text/plain", "hello", order)
	defer custom.Body.Close()
	if id := custom.Header.Get("Ce-Id"); id == "" || id == e.ID() {
		t.Errorf("two replies have the ids %q and %q", e.ID(), id)
	}
	refused, _ := post(t, "/?code=500", "", "", order)
	defer refused.Body.Close()
	if body, err := io.ReadAll(refused.Body); err != nil || refused.StatusCode != http.StatusInternalServerError || len(body) > 0 {
		t.Errorf("status %d, body %q, %v, want 500 without an event", refused.StatusCode, body, err)
	}
}
