// Package leader keeps the replicas of this server that do not lead from writing. All replicas reconcile, so that the
// data plane of each is told everything; what they write is left to the one that leads.
package leader

import (
	"context"
	"errors"
	"net/http"
)

// ErrFollowing is why a write was not made: the replica does not lead. It is no failure: the one that leads writes.
var ErrFollowing = errors.New("another replica writes")

type followingKey struct{}

// Following returns a context by which nothing is written through a Guard.
func Following(ctx context.Context) context.Context {
	return context.WithValue(ctx, followingKey{}, true)
}

// IsFollowing tells whether ctx is one of Following.
func IsFollowing(ctx context.Context) bool { return ctx.Value(followingKey{}) != nil }

// OnlyFollowing tells whether an error says nothing but that writes are left to another replica. One that joins
// ErrFollowing with a failure of another kind does say more.
func OnlyFollowing(err error) bool { return Only(err, ErrFollowing) }

// Only tells whether an error is target, wrapped or joined with itself, and nothing else.
func Only(err, target error) bool {
	if !errors.Is(err, target) {
		return false
	}
	for err != nil {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range joined.Unwrap() {
				if !Only(err, target) {
					return false
				}
			}
			return true
		}
		err = errors.Unwrap(err)
	}
	return true
}

// Guard returns a transport that lets through all requests but writes by contexts of Following, which fail with
// ErrFollowing. It is meant for rest.Config.Wrap.
func Guard(next http.RoundTripper) http.RoundTripper { return guard{next} }

type guard struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && IsFollowing(r.Context()) {
		if r.Body != nil {
			// A transport closes the body whatever comes of the request.
			r.Body.Close()
		}
		return nil, ErrFollowing
	}
	return g.next.RoundTrip(r)
}

// WrappedRoundTripper tells client-go what is behind the guard.
func (g guard) WrappedRoundTripper() http.RoundTripper { return g.next }
