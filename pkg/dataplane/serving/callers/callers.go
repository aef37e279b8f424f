// Package callers authorizes the callers of Routes: it has the policy of a restricted Route, and applies it to a request.
package callers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// verb is the verb that callers of a Service need.
const verb = "invoke"

// Policy is the policy of a Route. Immutable.
type Policy struct {
	audiences *reviews.Audiences
	access    reviews.Access

	missing, invalid, forbidden *serving.Rejection
}

var unavailable = &serving.Rejection{
	Status: http.StatusServiceUnavailable, Body: "callers cannot be verified at the moment", RetryAfter: time.Second,
}

// NewPolicy returns the policy of a Route, or nil if all clients may call it.
func NewPolicy(route *routing.Route) *Policy {
	c := route.Callers
	if c == nil || len(c.Audiences) == 0 {
		return nil
	}
	const needed = `this host needs the header "Authorization: Bearer <token>", with a token for the audience %q`
	challenge := fmt.Sprintf("Bearer realm=%q", c.Audiences[0])
	return &Policy{
		audiences: reviews.NewAudiences(c.Audiences...),
		access:    reviews.Access{Verb: verb, Group: c.Group, Resource: c.Resource, Namespace: route.Key.Namespace, Name: c.Name},
		missing: &serving.Rejection{
			Status: http.StatusUnauthorized, Body: fmt.Sprintf(needed, c.Audiences[0]), Challenge: challenge,
		},
		invalid: &serving.Rejection{
			Status: http.StatusUnauthorized, Body: fmt.Sprintf("the token is not valid; "+needed, c.Audiences[0]),
			Challenge: challenge + `, error="invalid_token"`,
		},
		forbidden: &serving.Rejection{
			Status: http.StatusForbidden,
			Body: fmt.Sprintf("the user of the token needs the permission to %s %s.%s %q in namespace %q",
				verb, c.Resource, c.Group, c.Name, route.Key.Namespace),
		},
	}
}

// Waiter is a request that may wait for a review.
type Waiter interface {
	// Wait returns a context that is canceled when the request ends. It is followed by stop.
	Wait() (ctx context.Context, stop context.CancelFunc)
}

// Check returns the name of the caller, or the rejection of the request and its cause. authorization are the values of that header
// field. The request waits for reviews only if no decision is cached.
func (p *Policy) Check(r *reviews.Reviews, w Waiter, authorization [][]byte) (user string, rejection *serving.Rejection, cause error) {
	if len(authorization) == 0 {
		return "", p.missing, p.missing
	}
	token, ok := reviews.Bearer(authorization[0])
	if !ok || len(authorization) > 1 {
		return "", p.invalid, p.invalid
	}
	if r == nil {
		return "", unavailable, unavailable
	}
	caller, err, known := r.Authenticated(token, p.audiences)
	if known && err == nil {
		if allowed, known := r.Authorized(caller, p.access); known {
			return p.decide(caller, allowed, nil)
		}
	}
	if !known || err == nil {
		ctx, stop := w.Wait()
		defer stop()
		if caller, err = r.Authenticate(ctx, p.access.Namespace, token, p.audiences); err == nil {
			allowed, err := r.Authorize(ctx, caller, p.access)
			return p.decide(caller, allowed, err)
		}
	}
	return p.decide(nil, false, err)
}

// decide returns the result of Check.
func (p *Policy) decide(caller *reviews.User, allowed bool, err error) (user string, rejection *serving.Rejection, cause error) {
	switch {
	case errors.Is(err, reviews.ErrInvalidToken):
		return "", p.invalid, err
	case err != nil:
		return "", unavailable, err
	case !allowed:
		return "", p.forbidden, p.forbidden
	}
	return caller.Name, nil, nil
}
