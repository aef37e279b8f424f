package authorization

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
)

// FuzzApplies compares the EventPolicies that apply to a Broker or Channel with the definition of references and selectors: spec.to has any
// combination of both. It also checks that an entry that causes a warning selects no object.
func FuzzApplies(f *testing.F) {
	const words = "eventing.knative.dev/v1\nmessaging.knative.dev/v1\nEVENTING.knative.dev/v9\nBroker\nchannel\norders\nORDERS\nteam\nred\n"
	for _, shape := range [][]byte{
		{},                                               // all objects
		{1, 0, 0, 3, 5},                                  // a reference
		{1, 0, 2, 3, 6},                                  // a reference in another case and version
		{1, 0, 0, 4, 5},                                  // a reference to another kind
		{1, 1, 0, 3, 0, 0},                               // all of a kind
		{1, 1, 0, 3, 1, 7, 8, 0},                         // a label
		{1, 1, 0, 3, 0, 1, 7, 0, 2, 8, 5},                // a label in a list
		{1, 1, 0, 3, 0, 1, 7, 1, 1, 8},                   // a label not in a list
		{1, 1, 0, 3, 0, 2, 7, 2, 0, 5, 3, 0},             // a label that exists, and one that does not
		{1, 1, 0, 3, 0, 1, 7, 4, 0},                      // an unknown operator
		{1, 1, 0, 3, 0, 1, 7, 0, 0},                      // a list without values
		{2, 0, 0, 3, 9, 1, 0, 3, 1, 7, 8, 0},             // a reference to another object and a label
		{2, 0, 1, 3, 5, 1, 9, 9, 0, 0},                   // nothing that applies
		{3, 1, 0, 3, 1, 9, 9, 0, 0, 0, 3, 5, 0, 0, 3, 5}, // a selector that is not valid, and references
	} {
		f.Add(shape, words, "orders", "team=red", false)
		f.Add(shape, words, "orders", "", true)
		f.Add(shape, words+"x/y/z\n-\n"+strings.Repeat("a", 64), "Orders", "team=blue\norders=red", false)
	}
	f.Fuzz(func(t *testing.T, shape []byte, words, name, labels string, channel bool) {
		g := generator{shape: shape, words: strings.Split(words, "\n")}
		policy := &eventingv1alpha1.EventPolicy{Spec: eventingv1alpha1.EventPolicySpec{To: g.to()}}
		kind := schema.GroupKind{Group: "eventing.knative.dev", Kind: "Broker"}
		if channel {
			kind = schema.GroupKind{Group: "messaging.knative.dev", Kind: "Channel"}
		}
		target := &metav1.ObjectMeta{Name: name, Labels: map[string]string{}}
		for line := range strings.SplitSeq(labels, "\n") {
			key, value, _ := strings.Cut(line, "=")
			target.Labels[key] = value
		}
		want := len(policy.Spec.To) == 0
		for i := range policy.Spec.To {
			selected := selects(&policy.Spec.To[i], kind, target)
			want = want || selected
			alone := &eventingv1alpha1.EventPolicy{Spec: eventingv1alpha1.EventPolicySpec{To: policy.Spec.To[i : i+1]}}
			if warnings := eventingv1alpha1.WarnEventPolicy(alone); selected && len(warnings) > 0 {
				t.Errorf("%+v selects %s %q and causes a warning: %q", policy.Spec.To[i], kind, name, warnings)
			}
		}
		if got := applies(policy, kind, target); got != want {
			t.Errorf("applies to %s %q with labels %v: %v, want %v: %+v", kind, name, target.Labels, got, want, policy.Spec.To)
		}
	})
}

// generator generates entries of spec.to from the input of a fuzzer: shape chooses, words are the values.
type generator struct {
	shape []byte
	words []string
}

// next returns the next choice below n, and 0 after the last one.
func (g *generator) next(n int) int {
	if len(g.shape) == 0 {
		return 0
	}
	choice := int(g.shape[0]) % n
	g.shape = g.shape[1:]
	return choice
}

func (g *generator) word() string { return g.words[g.next(len(g.words))] }

func (g *generator) to() []eventingv1alpha1.EventPolicySpecTo {
	to := make([]eventingv1alpha1.EventPolicySpecTo, g.next(4))
	for i := range to {
		if g.next(2) == 0 {
			to[i].Ref = &eventingv1alpha1.EventPolicyToReference{APIVersion: g.word(), Kind: g.word(), Name: g.word()}
			continue
		}
		to[i].Selector = &eventingv1alpha1.EventPolicySelector{APIVersion: g.word(), Kind: g.word(), LabelSelector: g.labels()}
	}
	return to
}

func (g *generator) labels() metav1.LabelSelector {
	var selector metav1.LabelSelector
	for range g.next(3) {
		if selector.MatchLabels == nil {
			selector.MatchLabels = map[string]string{}
		}
		selector.MatchLabels[g.word()] = g.word()
	}
	operators := []metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist, "Like",
	}
	for range g.next(3) {
		r := metav1.LabelSelectorRequirement{Key: g.word(), Operator: operators[g.next(len(operators))]}
		for range g.next(3) {
			r.Values = append(r.Values, g.word())
		}
		selector.MatchExpressions = append(selector.MatchExpressions, r)
	}
	return selector
}

// selects reports whether an entry of spec.to selects an object, by the definition of references and label selectors.
func selects(to *eventingv1alpha1.EventPolicySpecTo, kind schema.GroupKind, target *metav1.ObjectMeta) bool {
	of := func(apiVersion, name string) bool {
		parts := strings.Split(apiVersion, "/")
		return len(parts) == 2 && strings.EqualFold(parts[0], kind.Group) && strings.EqualFold(name, kind.Kind)
	}
	if to.Ref != nil {
		return of(to.Ref.APIVersion, to.Ref.Kind) && strings.EqualFold(to.Ref.Name, target.Name)
	}
	selector := &to.Selector.LabelSelector
	if !of(to.Selector.APIVersion, to.Selector.Kind) || len(metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0 {
		return false
	}
	for key := range maps.Keys(selector.MatchLabels) {
		if value, found := target.Labels[key]; !found || value != selector.MatchLabels[key] {
			return false
		}
	}
	return !slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		value, found := target.Labels[r.Key]
		switch r.Operator {
		case metav1.LabelSelectorOpIn:
			return !found || !slices.Contains(r.Values, value)
		case metav1.LabelSelectorOpNotIn:
			return found && slices.Contains(r.Values, value)
		case metav1.LabelSelectorOpExists:
			return !found
		default:
			return found
		}
	})
}
