package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// recordedCalls records the calls that it starts, as NAMESPACE BYTES, and ends.
type recordedCalls struct {
	started []string
	ended   int
	refusal error
}

func (c *recordedCalls) Start(_ context.Context, namespace string, bytes int64) (func(), error) {
	if c.refusal != nil {
		return nil, c.refusal
	}
	c.started = append(c.started, fmt.Sprintf("%s %d", namespace, bytes))
	return func() { c.ended++ }, nil
}

// TestCallLimiter covers which calls are limited, that their bodies arrive as they were sent, and their refusal.
func TestCallLimiter(t *testing.T) {
	const maxBody = 8
	for name, tt := range map[string]struct {
		info request.RequestInfo
		user user.Info
		body string
		// reads and writes are the calls that must start.
		reads, writes string
	}{
		"a write":                    {info: request.RequestInfo{Verb: "create", Namespace: "ns"}, body: "1234", writes: "ns 4"},
		"a patch":                    {info: request.RequestInfo{Verb: "patch", Namespace: "ns"}, body: "1234", writes: "ns 4"},
		"a deletion":                 {info: request.RequestInfo{Verb: "deletecollection", Namespace: "ns"}, writes: "ns 0"},
		"a body that is too large":   {info: request.RequestInfo{Verb: "update", Namespace: "ns"}, body: "0123456789", writes: "ns 9"},
		"a read":                     {info: request.RequestInfo{Verb: "get", Namespace: "ns"}, reads: "ns 0"},
		"a list of all namespaces":   {info: request.RequestInfo{Verb: "list"}, reads: "* 0"},
		"a watch":                    {info: request.RequestInfo{Verb: "watch", Namespace: "ns"}},
		"a log":                      {info: request.RequestInfo{Verb: "get", Namespace: "ns", Resource: "revisions", Subresource: "log"}},
		"a request to a Service":     {info: request.RequestInfo{Verb: "create", Namespace: "ns", Resource: "services", Subresource: "proxy"}, body: "0123456789"},
		"a write by the controllers": {info: request.RequestInfo{Verb: "create", Namespace: "ns"}, user: identity.NewControllers()},
		"a write by an administrator of the host": {
			info: request.RequestInfo{Verb: "create", Namespace: "ns"}, user: &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			reads, writes := &recordedCalls{}, &recordedCalls{}
			served := 0
			handler := (&callLimiter{reads: reads, writes: writes, codecs: serializer.NewCodecFactory(runtime.NewScheme()), maxBody: maxBody}).limit(
				http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					served++
					if got, err := io.ReadAll(r.Body); string(got) != tt.body || err != nil {
						t.Errorf("the handler reads %q, %v; want %q", got, err, tt.body)
					}
					if reads.ended+writes.ended > 0 {
						t.Error("the call ended while it was served")
					}
				}))
			info := tt.info
			info.IsResourceRequest = true
			by := tt.user
			if by == nil {
				by = developer
			}
			serve := func() *httptest.ResponseRecorder {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(tt.body))
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r.WithContext(request.WithUser(request.WithRequestInfo(r.Context(), &info), by)))
				return w
			}
			serve()
			if got := strings.Join(reads.started, ","); got != tt.reads {
				t.Errorf("reads %q, want %q", got, tt.reads)
			}
			if got := strings.Join(writes.started, ","); got != tt.writes {
				t.Errorf("writes %q, want %q", got, tt.writes)
			}
			if started := len(reads.started) + len(writes.started); served != 1 || reads.ended+writes.ended != started {
				t.Errorf("served %d times, %d calls started, %d ended", served, started, reads.ended+writes.ended)
			}
			reads.refusal, writes.refusal = errors.New("too many"), errors.New("too many")
			reads.ended, writes.ended = 0, 0
			w := serve()
			if tt.reads+tt.writes == "" {
				if w.Code != http.StatusOK || served != 2 {
					t.Errorf("code %d for a call without a limit", w.Code)
				}
				return
			}
			if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || served != 1 {
				t.Errorf("code %d, Retry-After %q, served %d times; want 429", w.Code, w.Header().Get("Retry-After"), served)
			}
		})
	}
}

// TestCallLimiterReadsFirst checks that a call waits for its turn with its whole body, and that the error of a body reaches the handler.
func TestCallLimiterReadsFirst(t *testing.T) {
	broken := errors.New("the client is gone")
	sent, body := io.Pipe()
	writes := &recordedCalls{}
	handler := (&callLimiter{writes: writes, maxBody: 1 << 10}).limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); string(got) != "begin" || !errors.Is(err, broken) {
			t.Errorf("the handler reads %q, %v; want the error of the client", got, err)
		}
	}))
	info := request.RequestInfo{IsResourceRequest: true, Verb: "create", Namespace: "ns"}
	served := make(chan struct{})
	go func() {
		defer close(served)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", sent)
		handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(request.WithRequestInfo(r.Context(), &info)))
	}()
	if _, err := body.Write([]byte("begin")); err != nil {
		t.Fatal(err)
	}
	if len(writes.started) > 0 {
		t.Error("the call started before its body arrived")
	}
	body.CloseWithError(broken)
	<-served
	if got := strings.Join(writes.started, ","); got != "ns 5" {
		t.Errorf("started %q", got)
	}
}
