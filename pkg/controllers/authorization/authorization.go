// Package authorization finds the EventPolicies of Brokers and Channels, and with them who may send events.
package authorization

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	eventinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/eventing/v1alpha1"
	eventinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1alpha1"
)

// Reasons of the condition EventPoliciesReady, as in Knative's releases.
const (
	ReasonDefaultMode  = "DefaultAuthorizationMode"
	ReasonDisabled     = "OIDCDisabled"
	ReasonNotReady     = "EventPoliciesNotReady"
	disabledMessage    = "Feature \"authentication-oidc\" must be enabled to support Authorization"
	modeMessage        = "Default authz mode is %q"
	notReadyMessage    = "event policies %s are not ready"
	maxListedUnreadies = 10
)

// modeNames are the names of the default modes in messages.
var modeNames = map[eventing.AuthorizationMode]string{
	eventing.AllowAll: "Allow-All", eventing.AllowSameNamespace: "Allow-Same-Namespace", eventing.DenyAll: "Deny-All",
}

// Settings are the settings of the operator.
type Settings struct {
	// Authenticated is true if senders are authenticated.
	Authenticated bool
	// Default applies to objects without EventPolicies.
	Default eventing.AuthorizationMode
}

// Source has all EventPolicies.
type Source struct {
	Informer eventinginformers.EventPolicyInformer
	Settings func() Settings
}

// Controller is the part of a reconciler.Controller that a Source needs.
type Controller interface {
	Watch(informer cache.SharedIndexInformer, keys func(obj metav1.Object) []types.NamespacedName) error
}

// Policies finds the EventPolicies of objects of one kind.
type Policies struct {
	kind     schema.GroupKind
	lister   eventinglisters.EventPolicyLister
	settings func() Settings
}

// Of returns the Policies of a kind, and has its controller reconcile the objects that an EventPolicy applies to when that changes. targets has
// the objects of the kind.
func (s Source) Of(kind schema.GroupKind, controller Controller, targets cache.SharedIndexInformer) (*Policies, error) {
	err := controller.Watch(s.Informer.Informer(), func(obj metav1.Object) (keys []types.NamespacedName) {
		policy, ok := obj.(*eventingv1alpha1.EventPolicy)
		if !ok {
			return nil
		}
		// The function returns no error.
		_ = cache.ListAllByNamespace(targets.GetIndexer(), policy.Namespace, labels.Everything(), func(obj any) {
			if target, ok := obj.(metav1.Object); ok && applies(policy, kind, target) {
				keys = append(keys, types.NamespacedName{Namespace: target.GetNamespace(), Name: target.GetName()})
			}
		})
		return keys
	})
	return &Policies{kind: kind, lister: s.Informer.Lister(), settings: s.Settings}, err
}

// Applied are the EventPolicies of an object.
type Applied struct {
	// Senders is for the data plane. Nil admits all senders.
	Senders *eventing.Senders
	// Status is the part of the object's status.
	Status duckv1.AppliedEventPoliciesStatus
	// Condition is EventPoliciesReady.
	Condition duckv1.Condition
}

// Of returns the EventPolicies of an object. While senders are not authenticated, EventPolicies have no effect.
func (p *Policies) Of(target metav1.Object) (Applied, error) {
	settings := p.settings()
	condition := reconciler.True(duckv1.ConditionEventPoliciesReady)
	if !settings.Authenticated {
		condition.Reason, condition.Message = ReasonDisabled, disabledMessage
		return Applied{Condition: condition}, nil
	}
	all, err := p.lister.EventPolicies(target.GetNamespace()).List(labels.Everything())
	if err != nil {
		return Applied{}, fmt.Errorf("list EventPolicies: %w", err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(policy *eventingv1alpha1.EventPolicy) bool { return !applies(policy, p.kind, target) })
	slices.SortFunc(all, func(a, b *eventingv1alpha1.EventPolicy) int { return strings.Compare(a.Name, b.Name) })

	applied := Applied{Senders: &eventing.Senders{Default: settings.Default}}
	var unready []string
	for _, policy := range all {
		// An older status is in force until a change was observed.
		ready := policy.Status.Conditions.Get(duckv1.ConditionReady)
		if ready == nil || ready.Status != corev1.ConditionTrue {
			unready = append(unready, policy.Name)
			continue
		}
		applied.Status.Policies = append(applied.Status.Policies, duckv1.AppliedEventPolicyRef{
			APIVersion: eventingv1alpha1.SchemeGroupVersion.String(), Name: policy.Name,
		})
		applied.Senders.Policies = append(applied.Senders.Policies, eventing.SenderPolicy{
			Name: policy.Name, Subjects: subjects(policy), Filters: streams.FiltersOf(policy.Spec.Filters),
		})
	}
	switch {
	case len(all) == 0:
		condition.Reason, condition.Message = ReasonDefaultMode, fmt.Sprintf(modeMessage, modeNames[settings.Default])
	case len(unready) > 0:
		listed := unready
		if more := len(unready) - maxListedUnreadies; more > 0 {
			listed = append(slices.Clone(unready[:maxListedUnreadies]), fmt.Sprintf("and %d more", more))
		}
		condition = reconciler.False(duckv1.ConditionEventPoliciesReady, ReasonNotReady, fmt.Sprintf(notReadyMessage, strings.Join(listed, ", ")))
	}
	applied.Condition, applied.Senders.Unready = condition, unready
	return applied, nil
}

// subjects returns the users that an EventPolicy names. References are resolved in its status; without any, the spec has all users, so that they change
// together with the filters.
func subjects(policy *eventingv1alpha1.EventPolicy) []string {
	named := make([]string, 0, len(policy.Spec.From))
	for _, from := range policy.Spec.From {
		if from.Sub == nil {
			return policy.Status.From
		}
		named = append(named, *from.Sub)
	}
	return named
}

// applies reports whether an EventPolicy applies to an object of its namespace: the version of a kind has no meaning, nor has the case.
func applies(policy *eventingv1alpha1.EventPolicy, kind schema.GroupKind, target metav1.Object) bool {
	return len(policy.Spec.To) == 0 || slices.ContainsFunc(policy.Spec.To, func(to eventingv1alpha1.EventPolicySpecTo) bool {
		switch {
		case to.Ref != nil:
			return eventingv1alpha1.IsKind(to.Ref.APIVersion, to.Ref.Kind, kind) && strings.EqualFold(to.Ref.Name, target.GetName())
		case to.Selector != nil:
			if !eventingv1alpha1.IsKind(to.Selector.APIVersion, to.Selector.Kind, kind) {
				return false
			}
			selector, err := metav1.LabelSelectorAsSelector(&to.Selector.LabelSelector)
			return err == nil && selector.Matches(labels.Set(target.GetLabels()))
		}
		return false
	})
}
