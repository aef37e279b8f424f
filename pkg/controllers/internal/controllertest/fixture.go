// Package controllertest has fixtures for the tests of several reconcilers.
package controllertest

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/authorization"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
)

// Now is the time at which tests start.
var Now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Fixture is a fake server with informers that Sync updates.
type Fixture struct {
	t         *testing.T
	Client    *fake.Clientset
	Factory   externalversions.SharedInformerFactory
	Informers servinginformers.Interface
	Clock     *clocktesting.FakePassiveClock
	Recorder  *record.FakeRecorder
	// Senders are the settings of EventPolicies.
	Senders authorization.Settings
	// Accounts are the ServiceAccounts whose informer Run starts. Nil without one.
	Accounts *Accounts
}

// New returns a fixture with some objects.
func New(t *testing.T, objects ...runtime.Object) *Fixture {
	t.Helper()
	client := fake.NewSimpleClientset(objects...)
	factory := externalversions.NewSharedInformerFactory(client, 0)
	return &Fixture{
		t:         t,
		Client:    client,
		Factory:   factory,
		Informers: factory.Serving().V1(),
		Clock:     clocktesting.NewFakePassiveClock(Now),
		Recorder:  record.NewFakeRecorder(100),
	}
}

// Sync updates the informers from the server. Call it when all indexes are added.
func (f *Fixture) Sync() {
	f.t.Helper()
	ctx, client, all := f.t.Context(), f.Client.ServingV1(), metav1.ListOptions{}
	services, err := client.Services("").List(ctx, all)
	f.replace(f.Informers.Services().Informer(), services, err)
	configurations, err := client.Configurations("").List(ctx, all)
	f.replace(f.Informers.Configurations().Informer(), configurations, err)
	revisions, err := client.Revisions("").List(ctx, all)
	f.replace(f.Informers.Revisions().Informer(), revisions, err)
	routes, err := client.Routes("").List(ctx, all)
	f.replace(f.Informers.Routes().Informer(), routes, err)
	mappings, err := f.Client.ServingV1beta1().DomainMappings("").List(ctx, all)
	f.replace(f.Factory.Serving().V1beta1().DomainMappings().Informer(), mappings, err)
	claims, err := f.Client.NetworkingV1alpha1().ClusterDomainClaims().List(ctx, all)
	f.replace(f.Factory.Networking().V1alpha1().ClusterDomainClaims().Informer(), claims, err)
	f.Client.ClearActions()
}

func (f *Fixture) replace(informer cache.SharedIndexInformer, list runtime.Object, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		f.t.Fatal(err)
	}
	objects := make([]any, 0, len(items))
	for _, item := range items {
		objects = append(objects, item)
	}
	if err := informer.GetIndexer().Replace(objects, ""); err != nil {
		f.t.Fatal(err)
	}
}

// Writes returns the writes since the last Sync: "create configurations", "update services/status".
func (f *Fixture) Writes() []string {
	var writes []string
	for _, action := range f.Client.Actions() {
		switch action.GetVerb() {
		case "get", "list", "watch":
			continue
		}
		write := action.GetVerb() + " " + action.GetResource().Resource
		if action.GetSubresource() != "" {
			write += "/" + action.GetSubresource()
		}
		writes = append(writes, write)
	}
	return writes
}

// Fail makes the server return an error for a verb on a resource.
func (f *Fixture) Fail(verb, resource string, err error) {
	f.Client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// FailOnce makes the server return an error for the nth write from now on, counted from 0, as if the process had
// ended there.
func (f *Fixture) FailOnce(nth int, err error) {
	seen := 0
	f.Client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		switch action.GetVerb() {
		case "get", "list", "watch":
			return false, nil, nil
		}
		seen++
		if seen-1 == nth {
			return true, nil, err
		}
		return false, nil, nil
	})
}

// Events returns the events recorded since the last call, "type reason message" each.
func (f *Fixture) Events() []string {
	var events []string
	for {
		select {
		case event := <-f.Recorder.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

// Runner is a controller.
type Runner interface {
	Run(ctx context.Context, workers int)
}

// Run starts the informers and a controller, calls fn, and stops both. Call it in a synctest bubble: when fn is
// called, and after each synctest.Wait in it, the controller has no pending work.
func (f *Fixture) Run(controller Runner, fn func()) {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer f.Factory.Shutdown()
	defer stop()
	f.Factory.Start(ctx.Done())
	if f.Accounts != nil {
		running.Go(func() { f.Accounts.Informer.RunWithContext(ctx) })
	}
	running.Go(func() { controller.Run(ctx, 1) })
	synctest.Wait()
	// The informers poll for their first sync.
	time.Sleep(time.Second)
	synctest.Wait()
	fn()
}
