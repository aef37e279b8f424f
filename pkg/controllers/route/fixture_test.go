package route

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

var began = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func newRoute(name string, traffic ...servingv1.TrafficTarget) *servingv1.Route {
	return &servingv1.Route{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(began)},
		Spec:       servingv1.RouteSpec{Traffic: traffic},
	}
}

func newConfiguration(name, latestReady string, ready ...duckv1.Condition) *servingv1.Configuration {
	configuration := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1}}
	configuration.Status.ObservedGeneration, configuration.Status.Conditions = 1, ready
	configuration.Status.LatestReadyRevisionName = latestReady
	return configuration
}

// newRevision returns the nth Revision of a Configuration, which belongs to a Service of that name.
func newRevision(configuration string, n int, ready ...duckv1.Condition) *servingv1.Revision {
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: fmt.Sprintf("%s-%d", configuration, n), Generation: 1,
		Labels: map[string]string{
			servingv1.ConfigurationLabelKey: configuration, servingv1.ServiceLabelKey: configuration,
			servingv1.ConfigurationGenerationLabelKey: fmt.Sprint(n), servingv1.RoutingStateLabelKey: servingv1.RoutingStatePending,
		},
	}}
	revision.Status.ObservedGeneration, revision.Status.Conditions = 1, ready
	return revision
}

func ready(status corev1.ConditionStatus, message string) duckv1.Condition {
	return duckv1.Condition{Type: duckv1.ConditionReady, Status: status, Message: message}
}

// follow and pin return entries of spec.traffic.
func follow(configuration string, percent int64, tag ...string) servingv1.TrafficTarget {
	return servingv1.TrafficTarget{ConfigurationName: configuration, LatestRevision: ptr.To(true), Percent: &percent, Tag: strings.Join(tag, "")}
}

func pin(revision string, percent int64, tag ...string) servingv1.TrafficTarget {
	return servingv1.TrafficTarget{RevisionName: revision, LatestRevision: ptr.To(false), Percent: &percent, Tag: strings.Join(tag, "")}
}

// fakeGateway records the routes that were set.
type fakeGateway struct {
	routes map[routing.Key]*routing.Route
	calls  int
	// behind are called when other replicas have caught up; nil means that they have.
	behind *[]func()
}

func (f *fakeGateway) SetRoute(route *routing.Route) {
	f.calls++
	f.routes[route.Key] = route
}

func (f *fakeGateway) DeleteRoute(key routing.Key) { delete(f.routes, key) }

func (f *fakeGateway) ServedByAll(_ routing.Key, then func()) bool {
	if f.behind == nil {
		return true
	}
	*f.behind = append(*f.behind, then)
	return false
}

// shares returns the Revisions that serve a host, as "revision:percent" in order, or "" for an unknown host.
func (f *fakeGateway) shares(host string) string {
	var found []string
	for _, route := range f.routes {
		for _, h := range route.Hosts {
			if h.Name != host {
				continue
			}
			for _, t := range h.Targets {
				found = append(found, fmt.Sprintf("%s:%d", t.Revision.Name, t.Percent))
			}
		}
	}
	return strings.Join(found, " ")
}

type fakeQueue struct{ keys []types.NamespacedName }

func (f *fakeQueue) Enqueue(key types.NamespacedName) { f.keys = append(f.keys, key) }

// fixture is a Reconciler with fake dependencies.
type fixture struct {
	*Reconciler
	t                                *testing.T
	client                           *fake.Clientset
	routes, configurations, revision cache.Indexer
	gateway                          *fakeGateway
	queue                            *fakeQueue
	clock                            *clocktesting.FakePassiveClock
	events                           *record.FakeRecorder
	settings                         *settings.Settings
	// result is the Result of the latest reconciliation.
	result reconciler.Result
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	current := settings.Default("example.com")
	f := &fixture{
		t: t, client: fake.NewSimpleClientset(), clock: clocktesting.NewFakePassiveClock(began), settings: &current,
		routes:         cache.NewIndexer(cache.MetaNamespaceKeyFunc, byNamespace),
		configurations: cache.NewIndexer(cache.MetaNamespaceKeyFunc, byNamespace),
		revision: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, revisionsByRoute: indexed(routesOf), pendingByConfiguration: indexed(pendingOf),
		}),
	}
	for _, object := range objects {
		f.put(object)
	}
	f.restart()
	return f
}

// stored is the part of a kind's client that fixtures need.
type stored[O any] interface {
	Create(ctx context.Context, obj O, opts metav1.CreateOptions) (O, error)
	Update(ctx context.Context, obj O, opts metav1.UpdateOptions) (O, error)
}

// store creates or replaces an object with its status.
func store[O any](t *testing.T, client stored[O], obj O) {
	t.Helper()
	_, err := client.Create(t.Context(), obj, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = client.Update(t.Context(), obj, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatalf("storing %v: %v", obj, err)
	}
}

// put creates or replaces an object.
func (f *fixture) put(object runtime.Object) {
	f.t.Helper()
	client := f.client.ServingV1()
	switch object := object.(type) {
	case *servingv1.Route:
		store(f.t, client.Routes("default"), object)
	case *servingv1.Configuration:
		store(f.t, client.Configurations("default"), object)
	case *servingv1.Revision:
		store(f.t, client.Revisions("default"), object)
	}
	f.list()
}

// list updates the listers.
func (f *fixture) list() {
	f.t.Helper()
	client, ctx := f.client.ServingV1(), f.t.Context()
	routes, err := client.Routes("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	configurations, err := client.Configurations("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	revisions, err := client.Revisions("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	fill(f.t, f.routes, routes.Items)
	fill(f.t, f.configurations, configurations.Items)
	fill(f.t, f.revision, revisions.Items)
}

func fill[O any](t *testing.T, indexer cache.Indexer, objects []O) {
	t.Helper()
	items := make([]any, 0, len(objects))
	for i := range objects {
		items = append(items, &objects[i])
	}
	if err := indexer.Replace(items, ""); err != nil {
		t.Fatal(err)
	}
}

// remove deletes an object.
func (f *fixture) remove(resource, name string) {
	f.t.Helper()
	gvr := schema.GroupVersionResource{Group: servingv1.GroupName, Version: "v1", Resource: resource}
	if err := f.client.Tracker().Delete(gvr, "default", name); err != nil {
		f.t.Fatalf("deleting %s: %v", name, err)
	}
	f.list()
}

// restart replaces the Reconciler by a new one for the same objects.
func (f *fixture) restart() {
	f.gateway, f.queue, f.events = &fakeGateway{routes: map[routing.Key]*routing.Route{}}, &fakeQueue{}, record.NewFakeRecorder(100)
	f.Reconciler = &Reconciler{
		Client: f.client.ServingV1(), Routes: servinglisters.NewRouteLister(f.routes),
		Configurations: servinglisters.NewConfigurationLister(f.configurations), Revisions: servinglisters.NewRevisionLister(f.revision),
		RevisionIndex: f.revision, Gateway: f.gateway, Recorder: f.events, Clock: f.clock, Queue: f.queue,
		URLs:     URLs{ClusterDomain: "cluster.local"},
		Settings: func() *settings.Settings { return f.settings },
		Claims:   &hostnames.Claims{},
	}
	f.Claims.Join(hostnames.Route, f.Participant())
}

// reconcile returns the number of writes, and the events.
func (f *fixture) reconcile(name string) (writes int, events []string) {
	f.t.Helper()
	f.client.ClearActions()
	var err error
	if f.result, err = f.Reconcile(f.t.Context(), reconciler.NewRequest(named(name), true)); err != nil {
		f.t.Fatalf("reconciling %s: %v", name, err)
	}
	for len(f.events.Events) > 0 {
		events = append(events, <-f.events.Events)
	}
	writes = len(f.client.Actions())
	f.list()
	return writes, events
}

func (f *fixture) status(name string) *servingv1.RouteStatus {
	f.t.Helper()
	route, err := f.Routes.Routes("default").Get(name)
	if err != nil {
		f.t.Fatal(err)
	}
	return &route.Status
}

// condition returns one of a Route's conditions as status, reason and message.
func (f *fixture) condition(name string, t duckv1.ConditionType) string {
	f.t.Helper()
	c := f.status(name).Conditions.Get(t)
	if c == nil {
		return "missing"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message))
}

// traffic summarizes a Route's status.traffic.
func (f *fixture) traffic(name string) string {
	f.t.Helper()
	var parts []string
	for _, t := range f.status(name).Traffic {
		part := fmt.Sprintf("%s:%d", t.RevisionName, *t.Percent)
		if *t.LatestRevision {
			part += "+"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, " ")
}

// routing returns the routing state of a Revision, with the Routes that refer to it.
func (f *fixture) routing(name string) string {
	f.t.Helper()
	revision, err := f.Revisions.Revisions("default").Get(name)
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(revision.Labels[servingv1.RoutingStateLabelKey] + " " + revision.Annotations[servingv1.RoutesAnnotationKey])
}
