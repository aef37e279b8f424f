// Package eventrun implements the API resource eventruns.eventing.knative.dev, and the subresources redrive of Triggers and Subscriptions and
// replay of Brokers, which alone create its objects.
package eventrun

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// NewStorage returns the storage of EventRuns by resource path, and the Runs that create them.
func NewStorage(controllers identity.Controllers, typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (map[string]rest.Storage, *Runs, error) {
	paths, err := registry.NewStorage(resource(controllers), typer, getter)
	if err != nil {
		return nil, nil, err
	}
	served, ok := paths["eventruns"].(*registry.REST)
	if !ok {
		return nil, nil, fmt.Errorf("the storage of EventRuns is a %T", paths["eventruns"])
	}
	creating := *served.Store
	creating.BeginCreate = nil
	return paths, NewRuns(registry.NewREST(&creating, nil, nil)), nil
}

// resource describes EventRuns.
func resource(controllers identity.Controllers) *registry.Resource[*eventingv1alpha1.EventRun, eventingv1alpha1.EventRunSpec, eventingv1alpha1.EventRunStatus] {
	return &registry.Resource[*eventingv1alpha1.EventRun, eventingv1alpha1.EventRunSpec, eventingv1alpha1.EventRunStatus]{
		GroupVersion: eventingv1alpha1.SchemeGroupVersion,
		Plural:       "eventruns",
		Singular:     "eventrun",
		Categories:   []string{"knative", "eventing"},
		New:          func() *eventingv1alpha1.EventRun { return &eventingv1alpha1.EventRun{} },
		NewList:      func() runtime.Object { return &eventingv1alpha1.EventRunList{} },
		Spec:         func(r *eventingv1alpha1.EventRun) *eventingv1alpha1.EventRunSpec { return &r.Spec },
		Status:       func(r *eventingv1alpha1.EventRun) *eventingv1alpha1.EventRunStatus { return &r.Status },
		Common:       func(r *eventingv1alpha1.EventRun) *duckv1.Status { return &r.Status.Status },
		Controllers:  controllers,
		AllowCreate: func(_ context.Context, r *eventingv1alpha1.EventRun) error {
			return apierrors.NewForbidden(eventingv1alpha1.Resource("eventruns"), r.Name,
				errors.New("EventRuns are created by a POST to the subresource redrive of a Trigger or Subscription, or replay of a Broker, only"))
		},
		Validate: func(_ context.Context, r *eventingv1alpha1.EventRun) field.ErrorList {
			return eventingv1alpha1.ValidateEventRun(r)
		},
		ValidateUpdate: func(_ context.Context, r, old *eventingv1alpha1.EventRun) field.ErrorList {
			return eventingv1alpha1.ValidateEventRunUpdate(r, old)
		},
		Columns: columns(),
	}
}

// columns are the table columns after the name.
func columns() []registry.Column[*eventingv1alpha1.EventRun] {
	type run = *eventingv1alpha1.EventRun
	progress := func(r run) any {
		switch {
		case r.Spec.Replay != nil:
			return fmt.Sprint(r.Status.Queued)
		case r.Status.Total == nil:
			return nil
		}
		return fmt.Sprintf("%d/%d", r.Status.Queued, *r.Status.Total)
	}
	reason := func(r run) any {
		if c := r.Status.Conditions.Get(eventingv1alpha1.EventRunConditionSucceeded); c != nil {
			return c.Message
		}
		return nil
	}
	return []registry.Column[run]{
		{Name: "Target", Type: "string", Description: "The object that gets the events.", Value: func(r run) any { return r.Spec.Target.Kind + "/" + r.Spec.Target.Name }},
		{Name: "Phase", Type: "string", Description: "Pending, Running, Succeeded or Failed.", Value: func(r run) any { return string(r.Status.Phase) }},
		{Name: "Progress", Type: "string", Description: "The number of events that are queued for delivery, of all that were selected if they were counted.", Value: progress},
		{Name: "Failed", Type: "integer", Description: "The number of events that cannot be delivered again.", Value: func(r run) any { return r.Status.Failed }},
		registry.AgeColumn[run](),
		{Name: "Message", Type: "string", Wide: true, Description: "Why events wait, or why the EventRun failed.", Value: reason},
	}
}
