// Package controllertest holds what the tests of several reconcilers share.
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

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
)

// Now is when tests take place.
var Now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// World is a server and informers that know the same of it until the server changes.
type World struct {
	t         *testing.T
	Client    *fake.Clientset
	Factory   externalversions.SharedInformerFactory
	Informers servinginformers.Interface
	Clock     *clocktesting.FakePassiveClock
	Recorder  *record.FakeRecorder
}

// New returns a world of some objects.
func New(t *testing.T, objects ...runtime.Object) *World {
	t.Helper()
	client := fake.NewSimpleClientset(objects...)
	factory := externalversions.NewSharedInformerFactory(client, 0)
	return &World{
		t:         t,
		Client:    client,
		Factory:   factory,
		Informers: factory.Serving().V1(),
		Clock:     clocktesting.NewFakePassiveClock(Now),
		Recorder:  record.NewFakeRecorder(100),
	}
}

// Sync has the informers know what the server has. Call it when all indexes are added.
func (w *World) Sync() {
	w.t.Helper()
	ctx, client, all := w.t.Context(), w.Client.ServingV1(), metav1.ListOptions{}
	services, err := client.Services("").List(ctx, all)
	w.replace(w.Informers.Services().Informer(), services, err)
	configurations, err := client.Configurations("").List(ctx, all)
	w.replace(w.Informers.Configurations().Informer(), configurations, err)
	revisions, err := client.Revisions("").List(ctx, all)
	w.replace(w.Informers.Revisions().Informer(), revisions, err)
	routes, err := client.Routes("").List(ctx, all)
	w.replace(w.Informers.Routes().Informer(), routes, err)
	w.Client.ClearActions()
}

func (w *World) replace(informer cache.SharedIndexInformer, list runtime.Object, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		w.t.Fatal(err)
	}
	objects := make([]any, 0, len(items))
	for _, item := range items {
		objects = append(objects, item)
	}
	if err := informer.GetIndexer().Replace(objects, ""); err != nil {
		w.t.Fatal(err)
	}
}

// Writes returns what was written since the last Sync: "create configurations", "update services/status".
func (w *World) Writes() []string {
	var writes []string
	for _, action := range w.Client.Actions() {
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

// Fail has the server answer a verb on a resource with an error.
func (w *World) Fail(verb, resource string, err error) {
	w.Client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// FailOnce has the server answer the nth write from now on with an error, counted from 0, as if the process had
// ended there.
func (w *World) FailOnce(nth int, err error) {
	seen := 0
	w.Client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
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
func (w *World) Events() []string {
	var events []string
	for {
		select {
		case event := <-w.Recorder.Events:
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
// called, and after each synctest.Wait in it, all that was to be done is done.
func (w *World) Run(controller Runner, fn func()) {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer w.Factory.Shutdown()
	defer stop()
	w.Factory.Start(ctx.Done())
	running.Go(func() { controller.Run(ctx, 1) })
	synctest.Wait()
	// The informers' first sync is looked for at intervals.
	time.Sleep(time.Second)
	synctest.Wait()
	fn()
}
