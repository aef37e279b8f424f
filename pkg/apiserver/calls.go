package apiserver

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// Calls decides when a call of a namespace is served, so that calls of other namespaces do not wait for it.
type Calls interface {
	// Start waits until a call of a namespace may be served, whose body has a number of bytes. The caller must call end once afterwards. The
	// error is the error of ctx.
	Start(ctx context.Context, namespace string, bytes int64) (end func(), err error)
}

// callLimiter limits the calls of each namespace that are served at a time. Priority and fairness limits all calls only, so that one
// namespace can take every seat. Reads and writes have separate limits: a webhook that is called during a write may
// read. The controllers, members of system:masters and calls that last, such as a watch, are exempt.
type callLimiter struct {
	// reads and writes are nil without a limit.
	reads, writes Calls
	codecs        runtime.NegotiatedSerializer
	maxBody       int64
	controllers   identity.Controllers
}

// limit returns a handler that serves calls by handler when they may start. It waits for the body first: a client that sends slowly
// must not delay others.
func (l *callLimiter) limit(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || longRunning(r, info) || l.exempt(r.Context()) {
			handler.ServeHTTP(w, r)
			return
		}
		calls := l.writes
		if isRead(info) {
			calls = l.reads
		}
		if calls == nil {
			handler.ServeHTTP(w, r)
			return
		}
		end, err := calls.Start(r.Context(), account(info), l.receive(r))
		if err != nil {
			refuse(w, r, l.codecs, info, apierrors.NewTooManyRequests("the namespace has more than its share of calls", retrySeconds))
			return
		}
		defer end()
		handler.ServeHTTP(w, r)
	})
}

// isRead reports whether a call reads objects. All other calls that do not last are writes.
func isRead(info *request.RequestInfo) bool {
	return slices.Contains([]string{"get", "list"}, info.Verb)
}

// exempt reports whether a call is not limited. The same users are exempt from priority and fairness.
func (l *callLimiter) exempt(ctx context.Context) bool {
	if l.controllers.Made(ctx) {
		return true
	}
	u, ok := request.UserFrom(ctx)
	return ok && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// receive reads the body of a request and returns its size in bytes. The request then has a body with the same bytes, and the same error.
// Of a body that is too large, which handlers refuse, it reads one byte more than the maximum.
func (l *callLimiter) receive(r *http.Request) int64 {
	if r.Body == nil || r.Body == http.NoBody {
		return 0
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, l.maxBody+1))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = failed{err}
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), r.Body}
	return int64(len(body))
}

// failed is a reader that returns an error.
type failed struct{ error }

func (f failed) Read([]byte) (int, error) { return 0, f.error }
