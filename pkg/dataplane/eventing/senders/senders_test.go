package senders

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var orders = eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}

// api reviews tokens, which are "for-" and the name of the user, with dots for colons. Users in allowed may send events.
type api struct {
	audiences []string
	allowed   []string
	asked     []authorizationv1.ResourceAttributes
	err       error
}

// tokens is an api that reviews tokens.
type tokens struct{ *api }

// Create implements reviews.TokenReviewer.
func (a tokens) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	a.audiences = review.Spec.Audiences
	name, ok := strings.CutPrefix(review.Spec.Token, "for-")
	if !ok {
		return review, a.err
	}
	review.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: review.Spec.Audiences, User: authenticationv1.UserInfo{Username: strings.ReplaceAll(name, ".", ":")},
	}
	return review, a.err
}

// access is an api that reviews permissions.
type access struct{ *api }

// Create implements reviews.AccessReviewer.
func (a access) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	a.asked = append(a.asked, *review.Spec.ResourceAttributes)
	review.Status.Allowed = slices.Contains(a.allowed, review.Spec.User)
	return review, a.err
}

func (a *api) reviews() *reviews.Reviews {
	return reviews.New(reviews.Options{Tokens: tokens{a}, Access: access{a}})
}

func typed(kinds ...string) []*event.Event {
	var events []*event.Event
	for _, kind := range kinds {
		header := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/s"}, "Ce-Type": {kind}}
		read, err := event.FromRequest(header, nil)
		if err != nil {
			panic(err)
		}
		events = append(events, read...)
	}
	return events
}

func only(kind string) []eventing.Filter {
	return []eventing.Filter{{Exact: map[string]string{"type": kind}}}
}

// TestCheck covers the order in which a request is decided: token, the first policy that names the sender, the filters of that policy,
// the default mode without policies, and the permission as an alternative to all but the token.
func TestCheck(t *testing.T) {
	same := eventing.Senders{Default: eventing.AllowSameNamespace}
	policies := eventing.Senders{Default: eventing.AllowAll, Policies: []eventing.SenderPolicy{
		{Name: "a", Subjects: []string{"alice"}, Filters: only("a")},
		{Name: "b", Subjects: []string{"ALICE", "bob", "system:serviceaccount:Shop:*"}},
		{Name: "c", Subjects: nil},
	}}
	unready := policies
	unready.Unready = []string{"1", "2", "3", "4", "5", "6"}
	for name, tt := range map[string]struct {
		senders       eventing.Senders
		authorization []string
		events        []*event.Event
		err           error
		status        int
		message       string
	}{
		"no token":                 {senders: same, status: 401, message: `with a token for the audience "eventing.knative.dev/broker/shop/orders"`},
		"another scheme":           {senders: same, authorization: []string{"Basic YTpi"}, status: 401, message: "the token is not valid"},
		"invalid token":            {senders: same, authorization: []string{"Bearer x"}, status: 401, message: "the token is not valid"},
		"two tokens":               {senders: same, authorization: []string{"Bearer for-alice", "Bearer for-bob"}, status: 401, message: "the token is not valid"},
		"no reviews":               {senders: same, authorization: []string{"Bearer for-alice"}, err: errors.New("down"), status: 503, message: "senders cannot be verified at the moment"},
		"the same namespace":       {senders: same, authorization: []string{"bearer for-system.serviceaccount.shop.a"}},
		"a longer namespace":       {senders: same, authorization: []string{"Bearer for-system.serviceaccount.shop2.a"}, status: 403, message: `it needs an EventPolicy in namespace "shop" that applies to it`},
		"another user":             {senders: same, authorization: []string{"Bearer for-alice"}, status: 403, message: `"alice" may not send this to Broker shop/orders`},
		"allow all":                {senders: eventing.Senders{Default: eventing.AllowAll}, authorization: []string{"Bearer for-alice"}},
		"deny all":                 {senders: eventing.Senders{Default: eventing.DenyAll}, authorization: []string{"Bearer for-system.serviceaccount.shop.a"}, status: 403, message: `or the permission to send brokers.eventing.knative.dev "orders"`},
		"an unknown mode":          {senders: eventing.Senders{}, authorization: []string{"Bearer for-system.serviceaccount.shop.a"}, status: 403},
		"a policy":                 {senders: policies, authorization: []string{"Bearer for-bob"}},
		"equal ignoring case":      {senders: policies, authorization: []string{"Bearer for-Bob"}},
		"a prefix":                 {senders: policies, authorization: []string{"Bearer for-system.serviceaccount.Shop.x"}},
		"a prefix in another case": {senders: policies, authorization: []string{"Bearer for-system.serviceaccount.shop.x"}, status: 403},
		"no policy":                {senders: policies, authorization: []string{"Bearer for-carol"}, status: 403, message: `it needs an EventPolicy that names the sender in spec.from, such as "a", "b", "c"`},
		"no ready policy": {senders: eventing.Senders{Default: eventing.DenyAll, Unready: []string{"x"}}, authorization: []string{"Bearer for-carol"}, status: 403,
			message: `"orders"; not in force, because they are not ready: "x"`},
		"unready policies beside": {senders: unready, authorization: []string{"Bearer for-carol"}, status: 403,
			message: `such as "a", "b", "c", or the permission to send brokers.eventing.knative.dev "orders"; not in force, because they are not ready: "1", "2", "3", "4", "5", 1 more`},
		"filtered beside unready ones": {senders: unready, authorization: []string{"Bearer for-alice"}, events: typed("b"), status: 403, message: `not ready: "1"`},
		"passes filters":               {senders: policies, authorization: []string{"Bearer for-alice"}, events: typed("a", "a")},
		"the first policy decides":     {senders: policies, authorization: []string{"Bearer for-alice"}, events: typed("a", "b"), status: 403, message: `it needs an event that passes spec.filters of EventPolicy "a"`},
		"the permission without":       {senders: same, authorization: []string{"Bearer for-dora"}},
		"the permission with policies": {senders: policies, authorization: []string{"Bearer for-dora"}, events: typed("b")},
		"the permission with deny all": {senders: eventing.Senders{Default: eventing.DenyAll}, authorization: []string{"Bearer for-dora"}},
		"invalid filters": {senders: eventing.Senders{Policies: []eventing.SenderPolicy{{Name: "a", Subjects: []string{"*"}, Filters: []eventing.Filter{{}}}}},
			authorization: []string{"Bearer for-alice"}, events: typed("a"), status: 500, message: `the filters of EventPolicy "a" are invalid`},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{allowed: []string{"dora"}, err: tt.err}
			if tt.events == nil {
				tt.events = typed("a")
			}
			sender, err := NewDoor(orders, &tt.senders).Check(t.Context(), a.reviews(), tt.authorization, tt.events)
			if tt.status == 0 {
				if err != nil || sender == "" {
					t.Fatalf("rejected %q: %v", sender, err)
				}
				return
			}
			rejection, ok := errors.AsType[*Rejection](err)
			if !ok || rejection.Status != tt.status || !strings.Contains(rejection.Message, tt.message) {
				t.Fatalf("got %+v, want %d %s", err, tt.status, tt.message)
			}
			if (rejection.Status == 401) != strings.HasPrefix(rejection.Challenge, `Bearer realm="eventing.knative.dev/broker/shop/orders"`) {
				t.Errorf("challenge: %q", rejection.Challenge)
			}
			if strings.Contains(rejection.Message, "for-") {
				t.Errorf("the message has the token: %s", rejection.Message)
			}
		})
	}
}

// TestReviews covers what the API is asked.
func TestReviews(t *testing.T) {
	a := &api{}
	channel := eventing.Key{Kind: eventing.Channel, Namespace: "shop", Name: "orders"}
	_, err := NewDoor(channel, &eventing.Senders{}).Check(t.Context(), a.reviews(), []string{"Bearer for-alice"}, typed("a"))
	if rejection, ok := errors.AsType[*Rejection](err); !ok || rejection.Status != 403 {
		t.Fatalf("got %v", err)
	}
	want := authorizationv1.ResourceAttributes{Verb: "send", Group: "messaging.knative.dev", Resource: "channels", Namespace: "shop", Name: "orders"}
	if !slices.Equal(a.audiences, []string{"messaging.knative.dev/channel/shop/orders"}) || len(a.asked) != 1 || a.asked[0] != want {
		t.Errorf("asked for audiences %v and access %+v", a.audiences, a.asked)
	}
	// A permission that cannot be reviewed does not reject the sender for good.
	a.err = errors.New("down")
	broker := NewDoor(orders, &eventing.Senders{})
	if rejection, ok := errors.AsType[*Rejection](errorOf(broker.Check(t.Context(), a.reviews(), []string{"Bearer for-alice"}, typed("a")))); !ok || rejection.Status != 503 {
		t.Errorf("got %v", rejection)
	}
}

// errorOf returns the error of a check.
func errorOf(_ string, err error) error { return err }

type streams struct{ set []eventing.Stream }

func (s *streams) SetStream(_ context.Context, spec eventing.Stream) error {
	s.set = append(s.set, spec)
	return nil
}

func (s *streams) RemoveStream(context.Context, eventing.Key) error { return nil }

// TestTable covers changes of streams.
func TestTable(t *testing.T) {
	next := &streams{}
	table := &Table{Streams: next, Reviews: (&api{}).reviews()}
	check := func(want int) {
		t.Helper()
		status := 0
		if rejection, ok := errors.AsType[*Rejection](errorOf(table.Check(t.Context(), orders, []string{"Bearer for-alice"}, typed("a")))); ok {
			status = rejection.Status
		}
		if status != want {
			t.Errorf("got %d, want %d", status, want)
		}
	}
	check(503)
	if _, known := table.Restricted(orders); known {
		t.Error("an unknown stream is known")
	}
	for _, tt := range []struct {
		senders *eventing.Senders
		status  int
	}{
		{nil, 0},
		{&eventing.Senders{Default: eventing.DenyAll}, 403},
		{&eventing.Senders{Default: eventing.AllowAll}, 0},
	} {
		if err := table.SetStream(t.Context(), eventing.Stream{Key: orders, Senders: tt.senders}); err != nil {
			t.Fatal(err)
		}
		check(tt.status)
		if restricted, known := table.Restricted(orders); !known || restricted != (tt.senders != nil) {
			t.Errorf("restricted: %v, known: %v", restricted, known)
		}
	}
	if err := table.RemoveStream(t.Context(), orders); err != nil || len(next.set) != 3 {
		t.Errorf("%v, %d streams passed on", err, len(next.set))
	}
	check(503)
}

// FuzzCheck compares the decision about a sender and an event with a search of all policies in their order, whose filters are any combination
// of dialects except expressions.
func FuzzCheck(f *testing.F) {
	f.Add("alice", "alice\nbob", "system:*", []byte{1, 1, 0, 0}, "t", "t", "")
	f.Add("system:serviceaccount:shop:a", "*", "", []byte{}, "", "t", "")
	f.Add("\xff*", "\xff*", "ſ\nK", []byte{1, 2, 0, 0}, "%", "\x00", "a")
	for _, shape := range [][]byte{
		{1, 0, 0, 0, 0},                         // exact
		{1, 1, 0, 0, 0},                         // prefix
		{1, 2, 0, 0, 1},                         // suffix
		{1, 0, 0, 1, 2},                         // the attribute subject with any value
		{1, 1, 1, 0, 0, 1, 2},                   // a prefix of two attributes
		{1, 3, 1, 1, 0, 0, 0, 2, 0, 0, 1},       // all
		{1, 4, 1, 1, 0, 0, 0, 2, 0, 0, 1},       // any
		{1, 5, 0, 0, 0, 0},                      // not exact
		{1, 5, 2, 0, 2, 0},                      // not a suffix of a missing attribute
		{1, 5, 3, 1, 1, 0, 0, 0, 5, 2, 0, 0, 1}, // not all of a prefix and not a suffix
		{2, 1, 0, 0, 0, 2, 0, 0, 1},             // two filters
	} {
		for _, kind := range []string{"order", "ordered", "edited", "editor", ""} {
			f.Add("bob", "bob", "", shape, "order\ned\n", kind, "")
			f.Add("bob", "bob", "", shape, "order\ned\n", kind, "x")
		}
	}
	f.Fuzz(func(t *testing.T, sender, first, second string, shape []byte, words, kind, subject string) {
		if len(words) > maxWords {
			t.Skip("a filter beyond the budget passes no event")
		}
		names := func(s string) []string { return strings.Split(s, "\n") }
		g := generator{shape: shape, words: names(words)}
		policies := []eventing.SenderPolicy{
			{Name: "a", Subjects: names(first), Filters: g.filters(g.next()%3, maxDepth)},
			{Name: "b", Subjects: names(second), Filters: g.filters(g.next()%3, maxDepth)},
		}
		e, attributes := &event.Event{Attributes: []event.Attribute{{Name: "type", Value: kind}}}, map[string]string{"type": kind}
		if subject != "" {
			e.Attributes, attributes["subject"] = append(e.Attributes, event.Attribute{Name: "subject", Value: subject}), subject
		}
		allowed := false
		for i := range policies {
			if !slices.ContainsFunc(policies[i].Subjects, func(subject string) bool {
				prefix, wildcard := strings.CutSuffix(subject, "*")
				return strings.ToLower(subject) == strings.ToLower(sender) || //nolint:staticcheck // EqualFold knows more foldings than the index
					wildcard && strings.HasPrefix(sender, prefix)
			}) {
				continue
			}
			allowed = passes(&eventing.Filter{All: policies[i].Filters}, attributes)
			break
		}
		door := NewDoor(orders, &eventing.Senders{Policies: policies})
		if rejection := door.decide(t.Context(), sender, []*event.Event{e}); (rejection == nil) != allowed {
			t.Errorf("allowed is %v, got %v for the filters %+v and %+v", allowed, rejection, policies[0].Filters, policies[1].Filters)
		}
	})
}

// maxDepth bounds the nested filters of FuzzCheck, maxWords the bytes of their values.
const maxDepth, maxWords = 3, 4 << 10

// generator generates filters from the input of a fuzzer: shape chooses dialects, words are the values.
type generator struct {
	shape []byte
	words []string
}

// next returns the next choice, and 0 after the last one.
func (g *generator) next() int {
	if len(g.shape) == 0 {
		return 0
	}
	choice := g.shape[0]
	g.shape = g.shape[1:]
	return int(choice)
}

func (g *generator) filters(n, depth int) []eventing.Filter {
	filters := make([]eventing.Filter, n)
	for i := range filters {
		filters[i] = g.filter(depth)
	}
	return filters
}

// filter returns a valid filter, which has exactly one dialect.
func (g *generator) filter(depth int) eventing.Filter {
	dialect := g.next() % 6
	if depth == 0 {
		dialect %= 3
	}
	switch dialect {
	case 0:
		return eventing.Filter{Exact: g.values()}
	case 1:
		return eventing.Filter{Prefix: g.values()}
	case 2:
		return eventing.Filter{Suffix: g.values()}
	case 3:
		return eventing.Filter{All: g.filters(1+g.next()%3, depth-1)}
	case 4:
		return eventing.Filter{Any: g.filters(1+g.next()%3, depth-1)}
	default:
		negated := g.filter(depth - 1)
		return eventing.Filter{Not: &negated}
	}
}

// values returns values of one or two attributes, of which the event may lack some.
func (g *generator) values() map[string]string {
	values := map[string]string{}
	for range 1 + g.next()%2 {
		values[[]string{"type", "subject", "missing"}[g.next()%3]] = g.words[g.next()%len(g.words)]
	}
	return values
}

// passes reports whether an event with attributes passes a filter, by the definition of each dialect.
func passes(f *eventing.Filter, attributes map[string]string) bool {
	accepts := func(f eventing.Filter) bool { return passes(&f, attributes) }
	rejects := func(f eventing.Filter) bool { return !accepts(f) }
	holds := func(values map[string]string, compare func(value, wanted string) bool) bool {
		for name, wanted := range values {
			// An empty value stands for any.
			if value, found := attributes[name]; !found || wanted != "" && !compare(value, wanted) {
				return false
			}
		}
		return true
	}
	switch {
	case f.Any != nil:
		return slices.ContainsFunc(f.Any, accepts)
	case f.Not != nil:
		return rejects(*f.Not)
	case f.Exact != nil:
		return holds(f.Exact, func(value, wanted string) bool { return value == wanted })
	case f.Prefix != nil:
		return holds(f.Prefix, strings.HasPrefix)
	case f.Suffix != nil:
		return holds(f.Suffix, strings.HasSuffix)
	default:
		return !slices.ContainsFunc(f.All, rejects)
	}
}
