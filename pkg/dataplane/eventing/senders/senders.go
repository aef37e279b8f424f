// Package senders decides who may send events to Brokers and Channels: it authenticates senders by their tokens, and authorizes them by
// EventPolicies, by the default mode, and by RBAC.
package senders

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// verb is the verb of the permission that replaces an EventPolicy.
	verb = "send"
	// maxNamed bounds the policies that a rejection names, and maxSubject the characters of a sender's name in it.
	maxNamed, maxSubject = 5, 256
)

// Rejection is the error of a request that may not send events. Its text is for the sender.
type Rejection struct {
	// Status is an HTTP status code, Challenge the value of the WWW-Authenticate header for status 401.
	Status    int
	Challenge string
	Message   string
}

// Error implements error.
func (r *Rejection) Error() string { return r.Message }

var errUnavailable = &Rejection{Status: http.StatusServiceUnavailable, Message: "senders cannot be verified at the moment"}

// Door decides who may send events to one stream. Immutable.
type Door struct {
	stream    eventing.Key
	audience  string
	audiences *reviews.Audiences
	access    reviews.Access
	mode      eventing.AuthorizationMode
	policies  []policy
	index     index
	// unready is the part of a rejection about policies that are not ready, or empty.
	unready string

	missing, invalid *Rejection
}

// policy is an EventPolicy.
type policy struct {
	name string
	// filter is nil if all events pass. err is the error of invalid filters, which no event passes.
	filter *filter.Filter
	err    error
}

// NewDoor returns the Door of a stream.
func NewDoor(stream eventing.Key, senders *eventing.Senders) *Door {
	audience := eventing.Audience(stream)
	group, resource := eventing.Resource(stream.Kind)
	const needed = `%s needs the header "Authorization: Bearer <token>", with a token for the audience %q`
	challenge := fmt.Sprintf("Bearer realm=%q", audience)
	d := &Door{
		stream: stream, audience: audience, audiences: reviews.NewAudiences(audience), mode: senders.Default,
		access:   reviews.Access{Verb: verb, Group: group, Resource: resource, Namespace: stream.Namespace, Name: stream.Name},
		policies: make([]policy, len(senders.Policies)), index: newIndex(senders.Policies),
		missing: &Rejection{Status: http.StatusUnauthorized, Challenge: challenge, Message: fmt.Sprintf(needed, stream, audience)},
		invalid: &Rejection{
			Status: http.StatusUnauthorized, Challenge: challenge + `, error="invalid_token"`,
			Message: "the token is not valid; " + fmt.Sprintf(needed, stream, audience),
		},
	}
	if len(senders.Unready) > 0 {
		d.unready = "; not in force, because they are not ready: " + list(senders.Unready)
	}
	for i := range senders.Policies {
		p := &senders.Policies[i]
		d.policies[i].name = p.Name
		if len(p.Filters) > 0 {
			d.policies[i].filter, d.policies[i].err = filter.Compile(nil, p.Filters)
		}
	}
	return d
}

// Check returns the name of a sender that may send events, and a *Rejection otherwise. authorization are the values of that header field.
func (d *Door) Check(ctx context.Context, r *reviews.Reviews, authorization []string, events []*event.Event) (name string, err error) {
	if len(authorization) == 0 {
		return "", d.missing
	}
	token, ok := reviews.Bearer([]byte(authorization[0]))
	if !ok || len(authorization) > 1 {
		return "", d.invalid
	}
	if r == nil {
		return "", errUnavailable
	}
	sender, err := r.Authenticate(ctx, d.stream.Namespace, token, d.audiences)
	if errors.Is(err, reviews.ErrInvalidToken) {
		return "", d.invalid
	}
	if err != nil {
		return "", errUnavailable
	}
	rejection := d.decide(ctx, sender.Name, events)
	if rejection == nil {
		return sender.Name, nil
	}
	allowed, err := r.Authorize(ctx, sender, d.access)
	switch {
	case err != nil:
		return "", errUnavailable
	case !allowed:
		return "", rejection
	}
	return sender.Name, nil
}

// decide returns nil if the policies, or the default mode without policies, allow a sender to send events.
func (d *Door) decide(ctx context.Context, sender string, events []*event.Event) *Rejection {
	if len(d.policies) == 0 {
		return d.decideDefault(sender)
	}
	i, found := d.index.find(sender)
	if !found {
		return d.forbidden(sender, "an EventPolicy that names the sender in spec.from, such as "+d.named())
	}
	p := &d.policies[i]
	if p.err != nil {
		return &Rejection{Status: http.StatusInternalServerError, Message: fmt.Sprintf("the filters of EventPolicy %q are invalid", p.name)}
	}
	if p.filter == nil {
		return nil
	}
	budget := filter.NewBudget(ctx)
	for _, e := range events {
		// A filter beyond the budget passes no event.
		if passed, ok := p.filter.Match(budget, e); !passed || !ok {
			return d.forbidden(sender, fmt.Sprintf("an event that passes spec.filters of EventPolicy %q, which names the sender first", p.name))
		}
	}
	return nil
}

// decideDefault returns nil if the default mode allows a sender.
func (d *Door) decideDefault(sender string) *Rejection {
	switch {
	case d.mode == eventing.AllowAll:
		return nil
	case d.mode == eventing.AllowSameNamespace && strings.HasPrefix(sender, "system:serviceaccount:"+d.stream.Namespace+":"):
		return nil
	}
	return d.forbidden(sender, fmt.Sprintf("an EventPolicy in namespace %q that applies to it and names the sender in spec.from", d.stream.Namespace))
}

// forbidden returns the rejection of a sender, with the policy that is needed, and the ones that could be it once they are ready.
func (d *Door) forbidden(sender, needed string) *Rejection {
	return &Rejection{Status: http.StatusForbidden, Message: fmt.Sprintf(
		"%.*q may not send this to %s: it needs %s, or the permission to %s %s.%s %q%s",
		maxSubject, sender, d.stream, needed, verb, d.access.Resource, d.access.Group, d.stream.Name, d.unready)}
}

// named lists the policies.
func (d *Door) named() string {
	names := make([]string, len(d.policies))
	for i := range d.policies {
		names[i] = d.policies[i].name
	}
	return list(names)
}

// list returns the first names, and how many follow.
func list(names []string) string {
	listed := make([]string, 0, maxNamed+1)
	for i, name := range names {
		if i == maxNamed {
			listed = append(listed, fmt.Sprintf("%d more", len(names)-maxNamed))
			break
		}
		listed = append(listed, fmt.Sprintf("%q", name))
	}
	return strings.Join(listed, ", ")
}
