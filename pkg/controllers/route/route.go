// Package route reconciles Routes: it resolves their traffic to Revisions, gives them host names, hands both to
// the gateway, and says so in their status (serving 7.4, 8, 9.3.3).
package route

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Gateway serves the host names of Routes. What it was handed serves when the call returns.
type Gateway interface {
	SetRoute(route *routing.Route)
	DeleteRoute(key routing.Key)
	// ServedEverywhere tells whether the gateways of all replicas serve a route as this one was told to. While they do
	// not, then is called when they may.
	ServedEverywhere(key routing.Key, then func()) bool
}

// Queue takes keys to be reconciled.
type Queue interface {
	Enqueue(key types.NamespacedName)
	EnqueueAfter(key types.NamespacedName, after time.Duration)
}

// Reconciler hands Routes to the gateway, has Revisions know that Routes refer to them, and writes the status of
// Routes.
type Reconciler struct {
	Client         servingclient.ServingV1Interface
	Routes         servinglisters.RouteLister
	Configurations servinglisters.ConfigurationLister
	Revisions      servinglisters.RevisionLister
	// RevisionIndex is that of the Revisions' informer.
	RevisionIndex cache.Indexer
	Gateway       Gateway
	URLs          URLs
	// Placeholders are nil where there is no host cluster.
	Placeholders Placeholders
	Recorder     record.EventRecorder
	Clock        clock.PassiveClock
	// Settings returns the same pointer until they change.
	Settings func() *settings.Settings
	Queue    Queue

	claims claims
	// mu guards handed: what the gateway has.
	mu     sync.Mutex
	handed map[routing.Key]*routing.Route
}

// Reconcile brings gateway, core Services, Revisions and status in line with a Route, in this order, so that the
// status never promises what is not served yet. Each of them follows from what is stored: what a crash cut off is
// done again, and the gateways of replicas that may not write are told the same.
func (r *Reconciler) Reconcile(ctx context.Context, key types.NamespacedName) error {
	route, ok, err := reconciler.Live(r.Routes.Routes(key.Namespace), key.Name)
	if err != nil {
		return err
	}
	if !ok {
		return r.remove(ctx, key)
	}
	current := r.Settings()
	named, err := r.addresses(route, current)
	if err != nil {
		return err
	}
	lost, wake, err := r.claims.set(route, named, current, r.all, r.addresses)
	if err != nil {
		return err
	}
	r.enqueue(wake)
	now := r.Clock.Now()
	found, err := r.assign(ctx, route, current, now)
	if err != nil {
		return err
	}
	if !found.due.IsZero() {
		r.Queue.EnqueueAfter(key, found.due.Sub(now))
	}
	found.addresses, found.lost = named, lost
	r.hand(key, table(key, named.hosts, found.targets, lost, current.TagHeader))
	var unplaced error
	if found.placeholder, unplaced = r.place(ctx, route, &named, lost); apierrors.IsConflict(unplaced) {
		return unplaced
	}
	// What Revisions say matters to their scale and to garbage collection, not to whether the Route serves.
	return errors.Join(
		unplaced,
		r.refer(ctx, key, route.Labels[servingv1.ServiceLabelKey], references(route, found.targets), found.latest()),
		r.write(ctx, route, &found, now),
	)
}

// remove ends what a Route that is gone had.
func (r *Reconciler) remove(ctx context.Context, key types.NamespacedName) error {
	r.hand(key, nil)
	r.enqueue(r.claims.drop(key))
	if r.Placeholders != nil {
		r.Placeholders.Forget(key)
	}
	return r.refer(ctx, key, "", nil, nil)
}

// assign finds which Revisions a Route's requests are to go to now. If its spec cannot be met, these are those of
// the last assignment that could.
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

// hand gives the gateway what it does not have in this form; nil takes the Route from it.
func (r *Reconciler) hand(key routing.Key, route *routing.Route) {
	r.mu.Lock()
	had, known := r.handed[key]
	same := reflect.DeepEqual(had, route)
	if r.handed == nil {
		r.handed = map[routing.Key]*routing.Route{}
	}
	if route != nil {
		r.handed[key] = route
	} else {
		delete(r.handed, key)
	}
	r.mu.Unlock()
	switch {
	case route == nil && known:
		r.Gateway.DeleteRoute(key)
	case route != nil && !same:
		r.Gateway.SetRoute(route)
	}
}

// write stores the status that follows from findings, unless it says nothing new.
func (r *Reconciler) write(ctx context.Context, observed *servingv1.Route, found *findings, now time.Time) error {
	status, err := found.status(observed, now)
	if err != nil {
		return err
	}
	if equality.Semantic.DeepEqual(observed.Status, status) {
		return nil
	}
	if len(found.rollouts) > 0 {
		// When it began is written before its next step.
		ctx = reconciler.AtOnce(ctx)
	}
	update := reconciler.UpdateStatus[*servingv1.Route]
	if key := keyOf(observed); found.ingress().Status == corev1.ConditionTrue && !leader.IsFollowing(ctx) &&
		!r.Gateway.ServedEverywhere(key, func() { r.Queue.Enqueue(key) }) {
		found.spreading = true
		if status, err = found.status(observed, now); err != nil {
			return err
		}
		update = reconciler.UpdateStatusLater
	}
	current := *observed
	current.Status = status
	if err := update(ctx, r.Client.Routes(observed.Namespace), observed, &current); err != nil {
		return err
	}
	if message := changed(&observed.Status, &status); message != "" {
		r.Recorder.Event(&current, corev1.EventTypeNormal, ReasonTrafficChanged, message)
	}
	if metav1.GetControllerOfNoCopy(observed) == nil {
		// A Service says the same of itself.
		reconciler.RecordReady(r.Recorder, &current, observed.Status.Conditions, status.Conditions)
	}
	return nil
}

func (r *Reconciler) all() ([]*servingv1.Route, error) { return r.Routes.List(labels.Everything()) }

func (r *Reconciler) enqueue(keys []routing.Key) {
	for _, key := range slices.Compact(keys) {
		r.Queue.Enqueue(key)
	}
}
