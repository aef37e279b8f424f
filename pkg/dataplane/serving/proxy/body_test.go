package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
)

// lateBody ends when its request has been answered.
type lateBody struct{ answered func() }

func (b lateBody) Read([]byte) (int, error) {
	b.answered()
	return 0, io.EOF
}

func (b lateBody) Close() error { return nil }

// unlimited observes a request without limits.
type unlimited struct{}

func (unlimited) Timeouts() serving.Timeouts     { return serving.Timeouts{} }
func (unlimited) Hold(int) bool                  { return true }
func (unlimited) ResponseStarted()               {}
func (unlimited) Streaming(bool)                 {}
func (unlimited) Rewrite(*httputil.ProxyRequest) {}
func (unlimited) Respond(http.Header)            {}
func (unlimited) Abandon() *linger.Place         { return nil }

// TestBodyOutlivesRequest checks that the transport may read the end of a body, with its trailers, after the request has been
// answered and its exchange serves another one.
func TestBodyOutlivesRequest(t *testing.T) {
	in := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
	in.ContentLength, in.Trailer = -1, http.Header{"X-T": nil}
	f := New().NewRequest(httptest.NewRecorder(), in, false)
	in.Body = lateBody{func() {
		in.Trailer.Set("X-T", "end")
		f.End()
		f.observer = nil
	}}
	f.Begin(unlimited{})
	out := &http.Request{Trailer: http.Header{"X-T": nil}}
	f.rewrite(&httputil.ProxyRequest{In: f.in, Out: &http.Request{URL: in.URL, Trailer: out.Trailer}})
	if _, err := f.body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the body ends with %v", err)
	}
	if got := out.Trailer.Get("X-T"); got != "end" {
		t.Errorf("trailer %q, want the trailer of the client", got)
	}
}
