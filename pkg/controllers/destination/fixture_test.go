package destination

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

var referrer = types.NamespacedName{Namespace: "default", Name: "mine"}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1}
}

func at(url string) duckv1.AddressStatus {
	return duckv1.AddressStatus{Address: &duckv1.Addressable{URL: url}}
}

func service(name, url string) *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: named(name)}
	if url != "" {
		s.Status.Address = at(url).Address
	}
	return s
}

func route(name, url string) *servingv1.Route {
	r := &servingv1.Route{ObjectMeta: named(name)}
	r.Status.Address = at(url).Address
	return r
}

func broker(name, url string) *eventingv1.Broker {
	return &eventingv1.Broker{ObjectMeta: named(name), Status: eventingv1.BrokerStatus{AddressStatus: at(url)}}
}

func channel(name, url string) *messagingv1.Channel {
	return &messagingv1.Channel{ObjectMeta: named(name), Status: messagingv1.ChannelStatus{AddressStatus: at(url)}}
}

func ref(apiVersion, kind, name string) *duckv1.KReference {
	return &duckv1.KReference{APIVersion: apiVersion, Kind: kind, Name: name}
}

// follower is a reconciler of one object that refers to a destination.
type follower struct {
	tracker *Tracker

	mu sync.Mutex
	// to is its destination, or nil.
	to *duckv1.Destination
	// seen has the result of each reconciliation: a URL or an error.
	seen []string
}

func (f *follower) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	f.mu.Lock()
	to := f.to
	f.mu.Unlock()
	refs := f.tracker.Begin(request.Key)
	found := "nothing"
	if to != nil {
		address, err := refs.Resolve(ctx, to)
		if found = address.URL; err != nil {
			found = err.Error()
		}
	}
	refs.End()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, found)
	return reconciler.Result{}, nil
}

func (f *follower) refer(to *duckv1.Destination) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = to
}

// results returns the results since the last call, after all work is done.
func (f *follower) results() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.seen
	f.seen = nil
	return seen
}

// follow runs fn with a follower, in a synctest bubble.
func follow(t *testing.T, options Options, objects []runtime.Object, to *duckv1.Destination, fn func(w *controllertest.Fixture, f *follower, retry func())) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := controllertest.New(t, objects...)
		options.Informers, options.ClusterDomain = w.Factory, "cluster.local"
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f := &follower{to: to}
		controller := reconciler.New("follower", f)
		var err error
		if f.tracker, err = New(ctx, options).Track(controller); err != nil {
			t.Fatal(err)
		}
		controller.Enqueue(referrer)
		w.Run(controller, func() { fn(w, f, func() { controller.Enqueue(referrer) }) })
	})
}

// pass advances the time of a synctest bubble.
func pass(d time.Duration) {
	synctest.Wait()
	<-time.After(d)
}
