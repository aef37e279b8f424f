package v1alpha1

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

type fault struct {
	Type   field.ErrorType
	Field  string
	Detail string
}

func policy(spec EventPolicySpec) *EventPolicy {
	return &EventPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}, Spec: spec}
}

func to(to ...EventPolicySpecTo) EventPolicySpec { return EventPolicySpec{To: to} }

func from(from ...EventPolicySpecFrom) EventPolicySpec { return EventPolicySpec{From: from} }

func sub(name string) EventPolicySpecFrom { return EventPolicySpecFrom{Sub: &name} }

func filters(filters ...eventingv1.SubscriptionsAPIFilter) EventPolicySpec {
	return EventPolicySpec{Filters: filters}
}

func TestDefaults(t *testing.T) {
	p := policy(from(EventPolicySpecFrom{Ref: &EventPolicyFromReference{Name: "a"}}, EventPolicySpecFrom{Ref: &EventPolicyFromReference{Namespace: "other"}}, sub("x")))
	SetDefaults_EventPolicy(p)
	if p.Spec.From[0].Ref.Namespace != "shop" || p.Spec.From[1].Ref.Namespace != "other" {
		t.Errorf("references: %+v, %+v", p.Spec.From[0].Ref, p.Spec.From[1].Ref)
	}
}

func TestValidateEventPolicy(t *testing.T) {
	object := EventPolicyToReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Name: "default"}
	sender := EventPolicyFromReference{APIVersion: "eventing.knative.dev/v1", Kind: "Trigger", Name: "orders", Namespace: "other"}
	selector := &EventPolicySelector{LabelSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}, APIVersion: "messaging.knative.dev/v1", Kind: "Channel"}
	exact := eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{"type": "a"}}
	for name, tt := range map[string]struct {
		spec EventPolicySpec
		want []fault
	}{
		"all objects, no senders": {EventPolicySpec{}, nil},
		"objects":                 {to(EventPolicySpecTo{Ref: &object}, EventPolicySpecTo{Selector: selector}), nil},
		"an empty selector":       {to(EventPolicySpecTo{Selector: &EventPolicySelector{}}), nil},
		"neither":                 {to(EventPolicySpecTo{Ref: &object}, EventPolicySpecTo{}), []fault{{field.ErrorTypeRequired, "spec.to[1]", "exactly one"}}},
		"both":                    {to(EventPolicySpecTo{Ref: &object, Selector: selector}), []fault{{field.ErrorTypeInvalid, "spec.to[0]", "exactly one"}}},
		"an empty reference": {to(EventPolicySpecTo{Ref: &EventPolicyToReference{}}), []fault{
			{field.ErrorTypeRequired, "spec.to[0].ref.apiVersion", ""}, {field.ErrorTypeRequired, "spec.to[0].ref.kind", ""}, {field.ErrorTypeRequired, "spec.to[0].ref.name", ""},
		}},
		"senders":               {from(EventPolicySpecFrom{Ref: &sender}, sub("alice"), sub("system:serviceaccount:shop:*"), sub("*")), nil},
		"neither sender":        {from(EventPolicySpecFrom{}), []fault{{field.ErrorTypeRequired, "spec.from[0]", "exactly one"}}},
		"an empty name":         {from(sub("")), []fault{{field.ErrorTypeRequired, "spec.from[0]", "exactly one"}}},
		"both of a sender":      {from(EventPolicySpecFrom{Ref: &sender, Sub: ptr.To("a")}), []fault{{field.ErrorTypeInvalid, "spec.from[0]", "exactly one"}}},
		"a wildcard in between": {from(sub("a*b")), []fault{{field.ErrorTypeInvalid, "spec.from[0].sub", "'*' is only allowed as suffix"}}},
		"two wildcards":         {from(sub("a**")), []fault{{field.ErrorTypeInvalid, "spec.from[0].sub", "'*' is only allowed as suffix"}}},
		"an incomplete sender":  {from(EventPolicySpecFrom{Ref: &EventPolicyFromReference{Kind: "Trigger", Name: "a"}}), []fault{{field.ErrorTypeRequired, "spec.from[0].ref.apiVersion", ""}}},
		"filters":               {filters(exact, eventingv1.SubscriptionsAPIFilter{CESQL: "type = 'a'"}, eventingv1.SubscriptionsAPIFilter{Not: &exact}), nil},
		"filters of nothing": {filters(eventingv1.SubscriptionsAPIFilter{}, eventingv1.SubscriptionsAPIFilter{Not: &eventingv1.SubscriptionsAPIFilter{}},
			eventingv1.SubscriptionsAPIFilter{Any: []eventingv1.SubscriptionsAPIFilter{{}}}, eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{}}), nil},
		"empty values": {filters(eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{"type": ""}}, eventingv1.SubscriptionsAPIFilter{Prefix: map[string]string{"type": ""}},
			eventingv1.SubscriptionsAPIFilter{Suffix: map[string]string{"type": ""}}), nil},
		"two dialects":            {filters(eventingv1.SubscriptionsAPIFilter{Exact: exact.Exact, Prefix: exact.Exact}), []fault{{field.ErrorTypeInvalid, "spec.filters[0]", "exactly one dialect"}}},
		"an invalid attribute":    {filters(eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{"Type": "a"}}), []fault{{field.ErrorTypeInvalid, "spec.filters[0].exact[Type]", "name of an attribute"}}},
		"an invalid expression":   {filters(eventingv1.SubscriptionsAPIFilter{CESQL: "type ="}), []fault{{field.ErrorTypeInvalid, "spec.filters[0].cesql", "CloudEvents SQL expression"}}},
		"filters beyond a limit":  {filters(make([]eventingv1.SubscriptionsAPIFilter, 513)...), []fault{{field.ErrorTypeInvalid, "spec.filters", "at most 512 filters"}}},
		"filters nested too deep": {filters(nested(40)), []fault{{field.ErrorTypeInvalid, "spec.filters[0]" + strings.Repeat(".not", 32), "nested deeper"}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy(tt.spec)
			apitest.ExpectFaults(t, ValidateEventPolicy(p, true), tt.want...)
			apitest.ExpectFaults(t, ValidateEventPolicyUpdate(p, policy(EventPolicySpec{})), tt.want...)
		})
	}
}

func nested(depth int) eventingv1.SubscriptionsAPIFilter {
	f := eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{"type": "a"}}
	for range depth {
		f = eventingv1.SubscriptionsAPIFilter{Not: &f}
	}
	return f
}

// TestValidateWithoutAuthentication covers creation while senders are not authenticated; updates pass.
func TestValidateWithoutAuthentication(t *testing.T) {
	p := policy(from(sub("alice")))
	apitest.ExpectFaults(t, ValidateEventPolicy(p, false), fault{field.ErrorTypeForbidden, "spec", "oidc-authentication feature not enabled"})
	apitest.ExpectFaults[fault](t, ValidateEventPolicyUpdate(policy(from(sub("bob"))), p))
}

// TestUnchangedFilters covers filters that were stored before a limit existed.
func TestUnchangedFilters(t *testing.T) {
	p := policy(filters(make([]eventingv1.SubscriptionsAPIFilter, 513)...))
	apitest.ExpectFaults[fault](t, ValidateEventPolicyUpdate(p, p.DeepCopy()))
}

func TestWarnings(t *testing.T) {
	p := policy(to(
		EventPolicySpecTo{Ref: &EventPolicyToReference{APIVersion: "Eventing.knative.dev/v2", Kind: "broker", Name: "a"}},
		EventPolicySpecTo{Ref: &EventPolicyToReference{APIVersion: "flows.knative.dev/v1", Kind: "Sequence", Name: "a"}},
		EventPolicySpecTo{Selector: &EventPolicySelector{APIVersion: "messaging.knative.dev/v1", Kind: "Channel"}},
		EventPolicySpecTo{Selector: &EventPolicySelector{}},
		EventPolicySpecTo{Selector: &EventPolicySelector{LabelSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}}},
	))
	p.Annotations = map[string]string{"eventing.knative.dev/creator": "a", "eventing.knative.dev/allow-from": "a", "a": "b"}
	p.Labels = map[string]string{"eventing.knative.dev/broker": "a", "a": "b"}
	none := eventingv1.SubscriptionsAPIFilter{}
	p.Spec.Filters = []eventingv1.SubscriptionsAPIFilter{
		{Exact: map[string]string{"type": "a"}}, none, {Not: &eventingv1.SubscriptionsAPIFilter{Any: []eventingv1.SubscriptionsAPIFilter{none}}},
		{All: []eventingv1.SubscriptionsAPIFilter{{Prefix: map[string]string{"type": "a", "source": ""}}}}, nested(64),
	}
	got := WarnEventPolicy(p)
	want := []string{
		"metadata.labels[eventing.knative.dev/broker]: has no effect", "metadata.annotations[eventing.knative.dev/allow-from]: has no effect",
		"spec.to[1].ref: has no effect", "spec.to[3].selector: has no effect", "spec.to[4].selector: selects nothing",
		"spec.filters[1]: has no effect", "spec.filters[2].not.any[0]: has no effect",
		"spec.filters[3].all[0].prefix[source]: an empty value passes all events with the attribute",
	}
	if len(got) != len(want) {
		t.Fatalf("warnings: %q", got)
	}
	for i, want := range want {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("warning %q, want %q", got[i], want)
		}
	}
}
