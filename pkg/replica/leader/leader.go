// Package leader elects the replica that writes the objects without another owner, and detects writes by replicas that do not own the
// object. All replicas reconcile, so that each has a complete data plane.
package leader

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/klog/v2"
)

// ErrFollowing is the error of a write by a replica that does not own the object.
var ErrFollowing = errors.New("write by a replica that does not own the object")

type followingKey struct{}

// Following returns a context that marks work of a replica that does not own the object and must not write. Only Guard reads it:
// callers have a parameter that decides whether they write.
func Following(ctx context.Context) context.Context {
	return context.WithValue(ctx, followingKey{}, true)
}

// Guard returns a transport that refuses writes with a context of Following. Such a write is a bug of the caller, which must decide
// before it writes, so Guard logs it. Use Guard with rest.Config.Wrap.
func Guard(next http.RoundTripper) http.RoundTripper { return guard{next} }

type guard struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && r.Context().Value(followingKey{}) != nil {
		klog.FromContext(r.Context()).Error(ErrFollowing, "Refused a write; this is a bug", "method", r.Method, "path", r.URL.Path)
		if r.Body != nil {
			// RoundTrip must close the body, even after an error.
			r.Body.Close()
		}
		return nil, ErrFollowing
	}
	return g.next.RoundTrip(r)
}

// WrappedRoundTripper returns the transport behind the guard, for client-go.
func (g guard) WrappedRoundTripper() http.RoundTripper { return g.next }
