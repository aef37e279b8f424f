package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/trigger"
)

// matchSubresource is the subresource of a Trigger to which clients send events.
const matchSubresource = "match"

// wrapEvents returns a handler that makes a TriggerMatch of a CloudEvent that is sent to the subresource match, in JSON or binary mode, before
// handler serves it. A TriggerMatch stays as it is.
func (c *Config) wrapEvents(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if ok && info.IsResourceRequest && r.Method == http.MethodPost && info.APIGroup == eventingv1.GroupName && info.Resource == "triggers" && info.Subresource == matchSubresource {
			wrapped, err := c.wrapEvent(w, r)
			if err != nil {
				responsewriters.ErrorNegotiated(err, c.codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
				return
			}
			r = wrapped
		}
		handler.ServeHTTP(w, r)
	})
}

// wrapEvent returns the request with a TriggerMatch as its body. Errors are statuses.
func (c *Config) wrapEvent(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	mediaType := strings.ToLower(r.Header.Get("Content-Type"))
	structured, binary := strings.HasPrefix(mediaType, "application/cloudevents"), r.Header.Get("Ce-Specversion") != ""
	// kubectl create --raw sends any file without a type.
	untyped := mediaType == "" || strings.HasPrefix(mediaType, "application/json")
	if !structured && !binary && !untyped {
		return r, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, c.Generic.MaxRequestBodyBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", tooLarge.Limit))
	case apierrors.IsBadRequest(err):
		return nil, err
	case err != nil:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the event: %v", err))
	}
	event := body
	switch {
	case structured || binary:
		matcher := c.matcher.Load()
		if matcher == nil {
			return nil, trigger.ErrNoMatcher
		}
		if event, err = (*matcher).ToJSON(r.Header, body); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the event %v", err))
		}
	case !isEvent(body):
		return withBody(r, body), nil
	}
	wrapped, err := json.Marshal(map[string]any{
		"apiVersion": eventingv1.SchemeGroupVersion.String(), "kind": "TriggerMatch", "spec": map[string]json.RawMessage{"event": event},
	})
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the event is not JSON: %v", err))
	}
	return withBody(r, wrapped), nil
}

// isEvent reports whether a body is a CloudEvent in the JSON format and no object of the API.
func isEvent(body []byte) bool {
	var members struct {
		SpecVersion json.RawMessage `json:"specversion"`
		Kind        json.RawMessage `json:"kind"`
		Spec        json.RawMessage `json:"spec"`
	}
	return json.Unmarshal(body, &members) == nil && members.SpecVersion != nil && members.Kind == nil && members.Spec == nil
}

// withBody returns a request with a body in JSON.
func withBody(r *http.Request, body []byte) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("Content-Type", "application/json")
	r.Header.Del("Content-Encoding")
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return r
}
