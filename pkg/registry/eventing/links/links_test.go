package links

import (
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// A link to another namespace needs the feature, and the verb knsubscribe for exactly its Broker.
func TestValidate(t *testing.T) {
	var asked authorizer.Attributes
	decide := func(decision authorizer.Decision, err error) authorizer.Authorizer {
		return authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = a
			return decision, "", err
		})
	}
	on := func() bool { return true }
	allow, deny := decide(authorizer.DecisionAllow, nil), decide(authorizer.DecisionNoOpinion, nil)
	foreign := types.NamespacedName{Namespace: "shop", Name: "orders"}
	own := types.NamespacedName{Namespace: "billing", Name: "orders"}
	alice := request.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"})
	for _, tt := range []struct {
		name   string
		links  Links
		ctx    context.Context
		target types.NamespacedName
		unset  bool
		old    any
		want   string
	}{
		{name: "allowed", links: Links{allow, on}, target: foreign},
		{name: "no reference", links: Links{}, target: own, unset: true},
		{name: "disabled", links: Links{allow, func() bool { return false }}, target: foreign, want: "cross-namespace-event-links"},
		{name: "disabled, in the own namespace", links: Links{allow, nil}, target: own, want: "cross-namespace-event-links"},
		{name: "disabled since, unchanged", links: Links{}, target: foreign, old: "spec"},
		{name: "own namespace", links: Links{deny, on}, target: own},
		{name: "denied", links: Links{deny, on}, target: foreign,
			want: `user alice is not authorized to get target resource in namespace: shop: the verb knsubscribe for brokers.eventing.knative.dev "orders" is required`},
		{name: "denied, unchanged", links: Links{deny, on}, target: foreign, old: "spec"},
		{name: "denied, another field changed", links: Links{deny, on}, target: foreign, old: "other", want: "not authorized"},
		{name: "review failed", links: Links{decide(authorizer.DecisionNoOpinion, errors.New("down")), on}, target: foreign, want: "down"},
		{name: "no user", links: Links{allow, on}, ctx: t.Context(), target: foreign, want: "unknown"},
		{name: "no authorizer", links: Links{nil, on}, target: foreign, want: "unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := alice //nolint:contextcheck // it is the context of a request by a user
			if tt.ctx != nil {
				ctx = tt.ctx
			}
			link := Link{
				Object: "billing", Target: tt.target, Set: !tt.unset, Path: field.NewPath("spec", "brokerRef"),
				Resource: schema.GroupResource{Group: "eventing.knative.dev", Resource: "brokers"},
			}
			err := tt.links.Validate(ctx, link, "spec", tt.old).ToAggregate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q", err, tt.want)
			}
		})
	}
	if asked.GetVerb() != "knsubscribe" || asked.GetNamespace() != "shop" || asked.GetName() != "orders" || asked.GetResource() != "brokers" ||
		asked.GetAPIGroup() != "eventing.knative.dev" || asked.GetUser().GetName() != "alice" || !asked.IsResourceRequest() {
		t.Errorf("the review is about %+v", asked)
	}
}
