// Package eventpolicy reconciles EventPolicies: it finds the names of their senders.
package eventpolicy

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	eventingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/eventing/v1alpha1"
	eventinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/eventing/v1alpha1"
	eventinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1alpha1"
)

const (
	// ReasonAuthenticationDisabled is the reason of AuthenticationEnabled while senders are not authenticated.
	ReasonAuthenticationDisabled = "OIDCAuthenticationDisabled"
	// ReasonSubjectsNotResolved is the reason of SubjectsResolved while a sender has no name.
	ReasonSubjectsNotResolved = "SubjectsNotResolved"
)

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{
	eventingv1alpha1.EventPolicyConditionAuthenticationEnabled,
	eventingv1alpha1.EventPolicyConditionSubjectsResolved,
}

// Reconciler writes the status of EventPolicies.
type Reconciler struct {
	Client   eventingclient.EventingV1alpha1Interface
	Policies eventinglisters.EventPolicyLister
	// Authenticated reports whether senders are authenticated.
	Authenticated func() bool
	Tracker       *destination.Tracker
	Recorder      record.EventRecorder
	Clock         clock.PassiveClock
}

// Controller returns the controller that runs r, and sets Policies and Tracker.
func (r *Reconciler) Controller(informers eventinginformers.Interface, resolver *destination.Resolver) (*reconciler.Controller, error) {
	r.Policies = informers.EventPolicies().Lister()
	controller := reconciler.New("eventpolicy", r)
	var err error
	if r.Tracker, err = resolver.Track(controller); err != nil {
		return nil, err
	}
	return controller, controller.Watch(informers.EventPolicies().Informer(), reconciler.KeyOf)
}

// Reconcile writes the names of the senders of an EventPolicy into its status.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	policy, ok, err := reconciler.Listed(r.Policies.EventPolicies(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok {
		r.Tracker.Forget(key)
		return reconciler.Result{}, nil
	}
	refs := r.Tracker.Begin(key)
	subjects, resolved, err := subjectsOf(ctx, policy, refs)
	if err != nil {
		return reconciler.Result{}, fmt.Errorf("resolve senders of EventPolicy %s: %w", key, err)
	}
	refs.End()

	updated := *policy
	updated.Status = *policy.Status.DeepCopy()
	updated.Status.From = subjects
	authenticated := reconciler.True(eventingv1alpha1.EventPolicyConditionAuthenticationEnabled)
	if !r.Authenticated() {
		authenticated = reconciler.False(eventingv1alpha1.EventPolicyConditionAuthenticationEnabled, ReasonAuthenticationDisabled,
			"Feature \"authentication-oidc\" must be enabled to support Authorization.")
	}
	reconciler.Observe(&updated.Status.Status, policy.Generation, metav1.NewTime(r.Clock.Now()), dependents, authenticated, resolved)
	written, err := request.Status.Write(ctx, reconciler.UpdateOf(r.Client.EventPolicies(key.Namespace), policy, &updated))
	if written {
		reconciler.RecordReady(r.Recorder, &updated, policy.Status.Conditions, updated.Status.Conditions)
	}
	return reconciler.Result{}, err
}

// subjectsOf returns the names of all senders of an EventPolicy, in their order, and the condition SubjectsResolved. Without the name of
// one sender the policy has none. An error means that the names could not be determined.
func subjectsOf(ctx context.Context, policy *eventingv1alpha1.EventPolicy, refs *destination.References) ([]string, duckv1.Condition, error) {
	const t = eventingv1alpha1.EventPolicyConditionSubjectsResolved
	var subjects []string
	fault := ""
	for i := range policy.Spec.From {
		from := &policy.Spec.From[i]
		if from.Sub != nil {
			subjects = append(subjects, *from.Sub)
		}
		if from.Ref == nil {
			continue
		}
		names, unknown, err := accountsOf(ctx, from.Ref, policy.Namespace, refs)
		if err != nil {
			return nil, duckv1.Condition{}, err
		}
		// After the first fault the remaining references are tracked too.
		if fault == "" {
			fault = unknown
		}
		subjects = append(subjects, names...)
	}
	if fault != "" {
		return nil, reconciler.False(t, ReasonSubjectsNotResolved, fault), nil
	}
	return subjects, reconciler.True(t), nil
}

// accountsOf returns the user names of the ServiceAccounts of a sender, or the reason why they are unknown. An error means that they could
// not be determined.
func accountsOf(ctx context.Context, from *eventingv1alpha1.EventPolicyFromReference, namespace string, refs *destination.References) (users []string, unknown string, err error) {
	ref := duckv1.KReference{APIVersion: from.APIVersion, Kind: from.Kind, Namespace: from.Namespace, Name: from.Name}
	ref.SetNamespace(namespace)
	names, err := refs.Senders(ctx, &ref)
	if unresolved, ok := destination.AsUnresolved(err); ok {
		return nil, unresolved.Message, nil
	}
	for _, name := range names {
		users = append(users, "system:serviceaccount:"+ref.Namespace+":"+name)
	}
	return users, "", err
}
