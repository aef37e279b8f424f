// Package route reconciles Routes: it resolves their traffic to Revisions, assigns host names, passes both to the gateway, and reports
// them in the status (serving 7.4, 8, 9.3.3).
package route

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Gateway serves the host names of Routes. A change is effective when the call returns.
type Gateway interface {
	SetRoute(route *routing.Route)
	DeleteRoute(key routing.Key)
	// ServedByAll reports whether the gateways of all replicas serve the same route as this one. If not, it calls then once that may have changed.
	ServedByAll(key routing.Key, then func()) bool
}

// Queue accepts keys of Routes to reconcile.
type Queue interface {
	Enqueue(key types.NamespacedName)
}

// Reconciler applies Routes to the gateway, labels the Revisions that they refer to, and writes the status of Routes.
type Reconciler struct {
	Client         servingclient.ServingV1Interface
	Routes         servinglisters.RouteLister
	Configurations servinglisters.ConfigurationLister
	Revisions      servinglisters.RevisionLister
	// RevisionIndex is the indexer of the Revisions' informer.
	RevisionIndex cache.Indexer
	Gateway       Gateway
	URLs          URLs
	// Certificates are nil if the gateway does not serve HTTPS.
	Certificates hosttls.Certificates
	// CertManager is nil if the replica neither reads nor writes Certificates of cert-manager.
	CertManager hosttls.Manager
	// Placeholders are nil without a host cluster.
	Placeholders Placeholders
	// Namespaces has the metadata of all Namespaces. Nil means that no Namespace has annotations.
	Namespaces cache.SharedIndexInformer
	Recorder   record.EventRecorder
	Clock      clock.PassiveClock
	// Settings returns the same pointer until the settings change.
	Settings func() *settings.Settings
	Queue    Queue

	// Claims decide which host names the Routes get.
	Claims *hostnames.Claims

	// mu guards published: the routes that the gateway has.
	mu        sync.Mutex
	published map[routing.Key]*routing.Route
}

// Reconcile applies a Route to the gateway, its core Services, the Revisions and its status, in this order, so that the status
// promises only working addresses. Each step depends on stored state only: a step that a crash interrupts is repeated, and the
// gateways of all replicas get the same routes. Replicas that do not write stop after the gateway.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	route, ok, err := reconciler.Live(r.Routes.Routes(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok {
		return reconciler.Result{}, r.remove(ctx, request)
	}
	current := r.Settings()
	named, err := r.addresses(route, current)
	if err != nil {
		return reconciler.Result{}, err
	}
	callers, err := r.callers(route, &named, current)
	if err != nil {
		return reconciler.Result{}, err
	}
	lost, err := r.Claims.Set(claimOf(route, named), current)
	if err != nil {
		return reconciler.Result{}, err
	}
	now := r.Clock.Now()
	found, err := r.assign(ctx, route, current, now)
	if err != nil {
		return reconciler.Result{}, err
	}
	var result reconciler.Result
	if !found.due.IsZero() {
		result.RequeueAfter = found.due.Sub(now)
	}
	found.addresses, found.lost = named, lost
	found.tls = r.secure(ctx, route, &found.addresses, func(name string) bool { _, isLost := lost[name]; return isLost }, &current.Network)
	served := table(key, named.hosts, found.targets, lost, current.TagHeader, &found.tls)
	if served != nil {
		served.Callers = callers
	}
	r.publish(key, served)
	if !request.Writes {
		return result, nil
	}
	var unplaced error
	if found.placeholder, unplaced = r.place(ctx, route, &named, lost); apierrors.IsConflict(unplaced) {
		return result, unplaced
	}
	uncertified := found.tls.Apply(ctx)
	// The scale of Revisions and garbage collection depend on the labels of Revisions, but serving the Route does not.
	return result, errors.Join(
		unplaced, uncertified,
		r.refer(ctx, key, route.Labels[servingv1.ServiceLabelKey], references(route, found.targets), found.latest()),
		r.write(ctx, request.Status, route, &found, now),
	)
}

// remove removes a deleted Route from the gateway, the claims and the Revisions.
func (r *Reconciler) remove(ctx context.Context, request reconciler.Request) error {
	r.publish(request.Key, nil)
	r.Claims.Drop(ownerOf(request.Key))
	if r.Certificates != nil {
		r.Certificates.Set(ctx, certificatesOwner(request.Key), nil)
	}
	if r.CertManager != nil {
		r.CertManager.Forget(certificatesOwner(request.Key))
	}
	if r.Placeholders != nil {
		r.Placeholders.Forget(request.Key)
	}
	if !request.Writes {
		return nil
	}
	return r.refer(ctx, request.Key, "", nil, nil)
}

// assign returns the Revisions that currently get a Route's requests. If its spec cannot be satisfied, it returns the last valid assignment.
func (r *Reconciler) assign(ctx context.Context, route *servingv1.Route, current *settings.Settings, now time.Time) (findings, error) {
	from := sources{
		configuration: func(name string) (*servingv1.Configuration, error) {
			configuration, err := r.Configurations.Configurations(route.Namespace).Get(name)
			if apierrors.IsNotFound(err) {
				// The informer may lag behind: a Service makes both at once.
				return r.Client.Configurations(route.Namespace).Get(ctx, name, metav1.GetOptions{})
			}
			return configuration, err
		},
		revision: r.Revisions.Revisions(route.Namespace).Get,
	}
	targets, assigned, err := resolve(route, from)
	if err != nil {
		return findings{}, err
	}
	owner := func(name string) string {
		revision, err := from.revision(name)
		if err != nil {
			return ""
		}
		return revision.Labels[servingv1.ConfigurationLabelKey]
	}
	found := findings{assigned: assigned, rollouts: readRollouts(&route.Status)}
	before := assignedBefore(&route.Status)
	if assigned.Status != corev1.ConditionTrue {
		found.targets = surviving(before, func(name string) bool {
			_, err := from.revision(name)
			return !apierrors.IsNotFound(err)
		})
		return found, nil
	}
	found.targets, found.rollouts, found.due = rollOut(targets, before, found.rollouts, owner, rolloutDuration(route, &current.Network), now)
	return found, nil
}

// publish passes a route to the gateway, unless the gateway has an equal one; nil removes the route.
func (r *Reconciler) publish(key routing.Key, route *routing.Route) {
	r.mu.Lock()
	had, known := r.published[key]
	same := reflect.DeepEqual(had, route)
	if r.published == nil {
		r.published = map[routing.Key]*routing.Route{}
	}
	if route != nil {
		r.published[key] = route
	} else {
		delete(r.published, key)
	}
	r.mu.Unlock()
	switch {
	case route == nil && known:
		r.Gateway.DeleteRoute(key)
	case route != nil && !same:
		r.Gateway.SetRoute(route)
	}
}

// write stores the status that follows from findings, unless it is stored already.
func (r *Reconciler) write(ctx context.Context, writer *reconciler.StatusWriter, observed *servingv1.Route, found *findings, now time.Time) error {
	status, err := found.status(observed, now)
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(observed.Status, status) {
		return nil
	}
	write := writer.DeferUnknown
	key := keyOf(observed)
	switch {
	case len(found.rollouts) > 0:
		// The start of a rollout is written before its next step.
		write = writer.Write
	case found.ingress().Status == corev1.ConditionTrue && !r.Gateway.ServedByAll(key, func() { r.Queue.Enqueue(key) }):
		found.spreading = true
		if status, err = found.status(observed, now); err != nil {
			return err
		}
		write = writer.Defer
	}
	current := *observed
	current.Status = status
	written, err := write(ctx, reconciler.UpdateOf(r.Client.Routes(observed.Namespace), observed, &current))
	if !written {
		return err
	}
	if message := changed(&observed.Status, &status); message != "" {
		r.Recorder.Event(&current, corev1.EventTypeNormal, ReasonTrafficChanged, message)
	}
	if metav1.GetControllerOfNoCopy(observed) == nil {
		// A Service records the same Events about itself.
		reconciler.RecordReady(r.Recorder, &current, observed.Status.Conditions, status.Conditions)
	}
	return nil
}
