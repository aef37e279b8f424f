package app

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	eventruncontroller "github.com/knative-apiserver/knative-apiserver/pkg/controllers/eventrun"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/broker"
	deadletterstore "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/eventrun"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// newDeadLetterStore returns the dead letter store, or nil if it is disabled.
func (o *eventingOptions) newDeadLetterStore(ctx context.Context, log *eventlog.Log, known *knownObjects) *deadletterstore.Store {
	if !o.storesDeadLetters() {
		return nil
	}
	evictions := &evictionEvents{known: known, recorder: o.clients.recorder, clock: clock.RealClock{}}
	triggers, subscriptions := o.clients.informers.Eventing().V1().Triggers().Lister(), o.clients.informers.Messaging().V1().Subscriptions().Lister()
	store := deadletterstore.NewStore(deadletterstore.Options{
		Log: log, Retention: o.DeadLetterRetention, MaxBytes: o.DeadLetterMaxBytes, Gone: known.gone, Evicted: evictions.add,
		InUse: func(namespace string) bool {
			t, errT := triggers.Triggers(namespace).List(labels.Everything())
			s, errS := subscriptions.Subscriptions(namespace).List(labels.Everything())
			return errT != nil || errS != nil || len(t)+len(s) > 0
		},
		Clock: clock.RealClock{}, Logger: klog.FromContext(ctx).WithName("dead-letters"),
	})
	o.registry.CustomMustRegister(store)
	return store
}

// newRuns returns the runs that deliver dead letters and archived events again, nil without both, and the controller of EventRuns.
func (o *eventingOptions) newRuns(ctx context.Context, own *broker.Broker, deliverer *sender.Sender, resolver *destination.Resolver, store *deadletterstore.Store, archives *archive.Store) (*eventrun.Runs, *reconciler.Controller, error) {
	r := &eventruncontroller.Reconciler{Client: o.clients.versioned.EventingV1alpha1(), DeadLetters: store != nil, Archives: archives != nil, Clock: clock.RealClock{}}
	controller, err := r.Controller(o.clients.informers, resolver)
	if err != nil || store == nil && archives == nil {
		return nil, controller, err
	}
	options := eventrun.Options{
		Target: own, Send: deliverer.Send, Budget: o.budget, Changed: controller.Enqueue, Clock: clock.RealClock{}, Logger: klog.FromContext(ctx).WithName("event-runs"),
	}
	if store != nil {
		options.Store = store
	}
	if archives != nil {
		options.Archives = archives
	}
	runs := eventrun.New(ctx, options)
	r.Runs = runs
	return runs, controller, nil
}

// consumerUID returns the original UID of a Trigger or Subscription.
func (o *eventingOptions) consumerUID(key eventing.Key) (types.UID, bool) {
	var object metav1.Object
	var err error
	if key.Kind == eventing.Trigger {
		object, err = o.clients.informers.Eventing().V1().Triggers().Lister().Triggers(key.Namespace).Get(key.Name)
	} else {
		object, err = o.clients.informers.Messaging().V1().Subscriptions().Lister().Subscriptions(key.Namespace).Get(key.Name)
	}
	if err != nil {
		return "", false
	}
	return origin.UID(object.GetUID()), true
}

// gone returns the objects that do not exist anymore.
func (k *knownObjects) gone(ctx context.Context, uids []types.UID) (sets.Set[types.UID], error) {
	gone := sets.New[types.UID]()
	for _, uid := range uids {
		if !k.exists(uid) {
			gone.Insert(uid)
		}
	}
	if len(gone) == 0 || k.list == nil {
		return gone, nil
	}
	all, err := k.list(ctx)
	return gone.Difference(all), err
}

const (
	// reasonEvicted is the reason of the Events about evicted dead letters.
	reasonEvicted = "DeadLettersEvicted"
	// evictionsInterval is the minimum time between two Events about the same Trigger or Subscription.
	evictionsInterval = 10 * time.Minute
)

// evictionEvents records Events about Triggers and Subscriptions whose dead letters were evicted.
type evictionEvents struct {
	known    *knownObjects
	recorder record.EventRecorder
	clock    clock.PassiveClock

	mu sync.Mutex
	// about has the last Event of each consumer, and the evictions since. mu guards it.
	about map[types.UID]*evictions
}

type evictions struct {
	reported time.Time
	since    uint64
}

// add counts evicted dead letters, and records an Event for each consumer without a recent one.
func (e *evictionEvents) add(_ string, consumers map[types.UID]uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, about := e.clock.Now(), map[types.UID]*evictions{}
	for uid, past := range e.about {
		if e.known.exists(uid) {
			about[uid] = past
		}
	}
	e.about = about
	for uid, count := range consumers {
		object := e.known.object(uid)
		if object == nil {
			continue
		}
		past := e.about[uid]
		if past == nil {
			past = &evictions{}
			e.about[uid] = past
		}
		past.since += count
		if now.Sub(past.reported) < evictionsInterval {
			continue
		}
		e.recorder.Eventf(object, corev1.EventTypeWarning, reasonEvicted,
			"The dead letter store is full: about %d dead letters were deleted, the oldest first", past.since)
		past.reported, past.since = now, 0
	}
}

// object returns the object of an original UID, or nil if it does not exist.
func (k *knownObjects) object(uid types.UID) runtime.Object {
	for _, informer := range k.informers {
		if found, err := informer.GetIndexer().ByIndex(byUID, string(uid)); err == nil && len(found) > 0 {
			if object, ok := found[0].(runtime.Object); ok {
				return object
			}
		}
	}
	return nil
}
