package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// events is a matcher that reads the body as the event.
type events struct{}

func (events) Match(context.Context, *eventingv1.Trigger, []byte) (*eventingv1.TriggerMatchStatus, error) {
	return nil, nil
}

func (events) Unmatched(context.Context, *eventingv1.Trigger) int { return 0 }

func (events) ToJSON(header http.Header, body []byte) ([]byte, error) {
	if len(body) == 0 {
		return nil, errors.New("is not a CloudEvent")
	}
	return []byte(`"` + header.Get("Ce-Id") + string(body) + `"`), nil
}

// TestWrapEvents makes a TriggerMatch of events only, for the subresource match only.
func TestWrapEvents(t *testing.T) {
	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	c := newConfig(scheme, codecs, nil)
	c.Generic.MaxRequestBodyBytes = 100
	const wrapped = `{"apiVersion":"eventing.knative.dev/v1","kind":"TriggerMatch","spec":{"event":`
	const event, match = `{"specversion":"1.0"}`, `{"kind":"TriggerMatch","spec":{"event":{"specversion":"1.0"}}}`
	for name, test := range map[string]struct {
		resource, mediaType, id, body string
		early                         bool
		code                          int
		want                          string
	}{
		"structured":      {mediaType: "application/cloudevents+json; charset=utf-8", body: "x", code: 200, want: wrapped + `"x"}}`},
		"binary":          {mediaType: "text/plain", id: "7", body: "x", code: 200, want: wrapped + `"7x"}}`},
		"without a type":  {body: event, code: 200, want: wrapped + event + "}}"},
		"JSON":            {mediaType: "application/json", body: event, code: 200, want: wrapped + event + "}}"},
		"match":           {mediaType: "application/json", body: match, code: 200, want: match},
		"malformed":       {mediaType: "application/json", body: "{", code: 200, want: "{"},
		"YAML":            {mediaType: "application/yaml", body: "kind: TriggerMatch", code: 200, want: "kind: TriggerMatch"},
		"invalid":         {mediaType: "application/cloudevents+json", code: 400, want: "the event is not a CloudEvent"},
		"large":           {mediaType: "application/cloudevents+json", body: strings.Repeat("x", 101), code: 413, want: "limit is 100 bytes"},
		"early":           {mediaType: "application/cloudevents+json", body: "x", early: true, code: 503, want: "retry"},
		"another request": {resource: "brokers", mediaType: "application/cloudevents+json", body: "x", code: 200, want: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			c := *c
			c.matcher = newConfig(scheme, codecs, nil).matcher
			if !test.early {
				c.matcher.Set(events{})
			}
			handler := c.wrapEvents(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil || r.ContentLength != int64(len(body)) {
					t.Errorf("the length is %d: %v", r.ContentLength, err)
				}
				w.Write(body) //nolint:errcheck // the recorder does not fail
			}))
			resource := test.resource
			if resource == "" {
				resource = "triggers"
			}
			ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{
				IsResourceRequest: true, APIGroup: "eventing.knative.dev", APIVersion: "v1", Resource: resource, Subresource: "match",
			})
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(test.body))
			r.Header.Set("Content-Type", test.mediaType)
			if test.id != "" {
				r.Header.Set("Ce-Specversion", "1.0")
				r.Header.Set("Ce-Id", test.id)
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, r)
			if body := recorder.Body.String(); recorder.Code != test.code || test.code == 200 && body != test.want || !strings.Contains(body, test.want) {
				t.Errorf("got %d %s, want %d %s", recorder.Code, body, test.code, test.want)
			}
		})
	}
}
