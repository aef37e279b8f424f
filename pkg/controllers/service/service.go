// Package service reconciles Services: each owns a Configuration and a Route of its name, and reflects their
// status (serving 7.1).
package service

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/service/resources"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
)

// Reconciler creates and updates the objects that Services own and writes the status of Services.
type Reconciler struct {
	Client         servingclient.ServingV1Interface
	Services       servinglisters.ServiceLister
	Configurations servinglisters.ConfigurationLister
	Routes         servinglisters.RouteLister
	Recorder       record.EventRecorder
	Clock          clock.PassiveClock
}

// Controller returns the controller that runs r, and sets the listers.
func (r *Reconciler) Controller(informers servinginformers.Interface) (*reconciler.Controller, error) {
	r.Services, r.Configurations, r.Routes = informers.Services().Lister(), informers.Configurations().Lister(), informers.Routes().Lister()
	controller := reconciler.New("service", r)
	// Children have the name of their Service, as do conflicting objects, whose deletion it waits for.
	for _, informer := range []cache.SharedIndexInformer{
		informers.Services().Informer(),
		informers.Configurations().Informer(),
		informers.Routes().Informer(),
	} {
		if err := controller.Watch(informer, reconciler.KeyOf); err != nil {
			return nil, err
		}
	}
	return controller, nil
}

// Reconcile applies a Service to its Configuration and Route, and their status to the Service's.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	service, ok, err := reconciler.Live(r.Services.Services(key.Namespace), key.Name)
	if err != nil || !ok || !request.Writes {
		return reconciler.Result{}, err
	}
	seen, failed, err := r.reconcileChildren(ctx, service)
	if err != nil {
		return reconciler.Result{}, err
	}
	updated := *service
	updated.Status = status(service, seen, metav1.NewTime(r.Clock.Now()))
	// The Service repeats what its children report while they become ready.
	written, err := request.Status.DeferUnknown(ctx, reconciler.UpdateOf(r.Client.Services(key.Namespace), service, &updated))
	if err != nil {
		return reconciler.Result{}, err
	}
	if written {
		reconciler.RecordReady(r.Recorder, &updated, service.Status.Conditions, updated.Status.Conditions)
	}
	return reconciler.Result{}, failed
}

// reconcileChildren creates and updates the children and returns their state. The caller retries after failed once it has written the
// status; err means that the state is incomplete.
func (r *Reconciler) reconcileChildren(ctx context.Context, service *servingv1.Service) (seen observation, failed, err error) {
	seen.configuration, err = child[*servingv1.Configuration]{
		kind:    "Configuration",
		listed:  r.Configurations.Configurations(service.Namespace),
		stored:  r.Client.Configurations(service.Namespace),
		desired: resources.Configuration,
		update:  resources.UpdateConfiguration,
	}.ensure(ctx, service, r.Recorder)
	if seen.configurationFault = fault(servingv1.ServiceConditionConfigurationsReady, "Configuration", service.Name, err); seen.configurationFault != nil {
		// A Route would follow a Configuration that differs from the Service.
		failed = retryable(err)
	} else if err != nil {
		return seen, nil, err
	}

	listedRoutes := r.Routes.Routes(service.Namespace)
	if seen.routeFault = hold(seen); seen.routeFault != nil {
		route, err := listedRoutes.Get(service.Name)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return seen, nil, err
		case metav1.IsControlledBy(route, service):
			seen.route = route
		}
		return seen, failed, nil
	}
	seen.route, err = child[*servingv1.Route]{
		kind:    "Route",
		listed:  listedRoutes,
		stored:  r.Client.Routes(service.Namespace),
		desired: resources.Route,
		update:  resources.UpdateRoute,
	}.ensure(ctx, service, r.Recorder)
	if seen.routeFault = fault(servingv1.ServiceConditionRoutesReady, "Route", service.Name, err); seen.routeFault != nil {
		return seen, retryable(err), nil
	}
	return seen, nil, err
}

// retryable returns the error unless only a change of another object can resolve it.
func retryable(err error) error {
	if errors.Is(err, errNotOwned) {
		return nil
	}
	return err
}

// hold returns the condition that explains why the Route may not follow the Service yet, or nil. Traffic may name the Revision that the
// template names: it must be certain that this Revision was created from the template, and is not an older one of that name.
func hold(seen observation) *duckv1.Condition {
	unknown := func(reason, message string) *duckv1.Condition {
		condition := reconciler.Unknown(servingv1.ServiceConditionRoutesReady, reason, message)
		return &condition
	}
	if seen.configuration == nil {
		return unknown("", "")
	}
	name := seen.configuration.Spec.Template.Name
	if name == "" {
		return nil
	}
	ready := reconciler.Ready(seen.configuration)
	switch {
	case ready == nil:
		return unknown(reasonOutOfDate, "The Route waits for the Configuration to make the Revision that the template names.")
	case ready.Reason == revisionref.ReasonRevisionNameInUse:
		return unknown(revisionref.ReasonRevisionNameInUse, revisionNameInUse(name))
	}
	return nil
}
