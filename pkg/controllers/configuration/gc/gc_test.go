package gc

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration/resources"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

var key = types.NamespacedName{Namespace: "default", Name: "hello"}

func configuration(generation int64) *servingv1.Configuration {
	c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "uid", Generation: generation}}
	c.Status.ObservedGeneration = generation
	c.Status.LatestCreatedRevisionName = fmt.Sprintf("hello-%05d", generation)
	c.Status.LatestReadyRevisionName = fmt.Sprintf("hello-%05d", generation-1)
	return c
}

// unused is the Revision of a generation, created and last active some time ago.
func unused(generation int64, created, active time.Duration) *servingv1.Revision {
	r := resources.Revision(configuration(generation), controllertest.Now.Add(-active))
	r.UID, r.ResourceVersion = types.UID(r.Name), fmt.Sprint(generation)
	r.CreationTimestamp = metav1.NewTime(controllertest.Now.Add(-created))
	r.Labels[servingv1.RoutingStateLabelKey] = servingv1.RoutingStateReserve
	return r
}

// Revisions are kept for a minimum number and for two retention times, and never above a maximum (serving 7.3-2).
func TestDecide(t *testing.T) {
	const hour = time.Hour
	off := time.Duration(-1)
	three := []*servingv1.Revision{unused(3, 50*hour, 10*hour), unused(1, 100*hour, 90*hour), unused(2, 60*hour, 40*hour)}
	for name, test := range map[string]struct {
		gc      settings.GC
		want    []string
		requeue time.Duration
	}{
		"fewer than the minimum": {settings.GC{RetainSinceCreateTime: hour, RetainSinceLastActiveTime: hour, MinNonActiveRevisions: 3, MaxNonActiveRevisions: 10}, nil, 0},
		"the longest unused are deleted first": {settings.GC{RetainSinceCreateTime: hour, RetainSinceLastActiveTime: hour, MinNonActiveRevisions: 2, MaxNonActiveRevisions: 10},
			[]string{"hello-00001"}, 0},
		"since last active": {settings.GC{RetainSinceCreateTime: 48 * hour, RetainSinceLastActiveTime: 15 * hour, MaxNonActiveRevisions: 10},
			[]string{"hello-00001", "hello-00002"}, 5 * hour},
		"since created": {settings.GC{RetainSinceCreateTime: 70 * hour, RetainSinceLastActiveTime: 5 * hour, MaxNonActiveRevisions: 10},
			[]string{"hello-00001"}, 10 * hour},
		"one time disabled": {settings.GC{RetainSinceCreateTime: off, RetainSinceLastActiveTime: 45 * hour, MaxNonActiveRevisions: 10},
			[]string{"hello-00001"}, 5 * hour},
		"both times disabled":                         {settings.GC{RetainSinceCreateTime: off, RetainSinceLastActiveTime: off, MaxNonActiveRevisions: 10}, nil, 0},
		"more than the maximum":                       {settings.GC{RetainSinceCreateTime: off, RetainSinceLastActiveTime: off, MaxNonActiveRevisions: 1}, []string{"hello-00001", "hello-00002"}, 0},
		"the maximum disabled":                        {settings.GC{RetainSinceCreateTime: off, RetainSinceLastActiveTime: off, MaxNonActiveRevisions: -1}, nil, 0},
		"no minimum":                                  {settings.GC{MinNonActiveRevisions: -1, MaxNonActiveRevisions: -1}, nil, 0},
		"the maximum takes precedence over the times": {settings.GC{RetainSinceCreateTime: 1000 * hour, RetainSinceLastActiveTime: hour, MaxNonActiveRevisions: 2}, []string{"hello-00001"}, 900 * hour},
	} {
		t.Run(name, func(t *testing.T) {
			remove, requeue := decide(three, test.gc, controllertest.Now)
			var got []string
			for _, revision := range remove {
				got = append(got, revision.Name)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("removed (-want +got):\n%s", diff)
			}
			if requeue != test.requeue {
				t.Errorf("requeue after %v, want %v", requeue, test.requeue)
			}
		})
	}
}

// newFixture has Revisions 1 to 6 of a Configuration, all long unused; 5 is the latest ready, 6 the current one.
func newFixture(t *testing.T, changes map[int64]func(*servingv1.Revision), more ...runtime.Object) (*controllertest.Fixture, *Reconciler) {
	t.Helper()
	objects := more
	for generation := int64(1); generation <= 6; generation++ {
		r := unused(generation, 100*time.Hour, 100*time.Hour)
		if change := changes[generation]; change != nil {
			change(r)
		}
		objects = append(objects, r)
	}
	w := controllertest.New(t, objects...)
	revisions, routes := w.Informers.Revisions().Informer(), w.Informers.Routes().Informer()
	if err := reconciler.IndexByController(revisions); err != nil {
		t.Fatal(err)
	}
	if err := revisionref.IndexRoutes(routes); err != nil {
		t.Fatal(err)
	}
	st := settings.Default("localhost")
	st.GC.MinNonActiveRevisions = 0
	r := &Reconciler{
		Client:         w.Client.ServingV1(),
		Configurations: w.Informers.Configurations().Lister(),
		RevisionIndex:  revisions.GetIndexer(),
		RouteIndex:     routes.GetIndexer(),
		Clock:          w.Clock,
		Settings:       func() *settings.Settings { return &st },
	}
	w.Sync()
	return w, r
}

// deleted returns the names of the Revisions that were deleted. Each deletion has preconditions on the listed object.
func deleted(t *testing.T, w *controllertest.Fixture) []string {
	t.Helper()
	var names []string
	for _, action := range w.Client.Actions() {
		deletion, ok := action.(clienttesting.DeleteActionImpl)
		if !ok || deletion.Resource.Resource != "revisions" {
			continue
		}
		p := deletion.DeleteOptions.Preconditions
		if p == nil || string(*p.UID) != deletion.Name || "hello-0000"+*p.ResourceVersion != deletion.Name {
			t.Errorf("deletion of %s has preconditions %v", deletion.Name, p)
		}
		names = append(names, deletion.Name)
	}
	return names
}

// The current and the latest ready Revision, routed Revisions and Revisions that a user keeps are not deleted, and the
// next deadline requeues the Configuration (serving 7.3-2).
func TestReconcile(t *testing.T) {
	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	route.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: "hello-00003"}}
	w, r := newFixture(t, map[int64]func(*servingv1.Revision){
		1: func(r *servingv1.Revision) { r.Annotations[servingv1.NoGCAnnotationKey] = "true" },
		2: func(r *servingv1.Revision) {
			r.Labels[servingv1.RoutingStateLabelKey] = servingv1.RoutingStateActive
		},
		4: func(r *servingv1.Revision) {
			r.CreationTimestamp = metav1.NewTime(controllertest.Now.Add(-47 * time.Hour))
		},
	}, configuration(6), route)
	result, err := r.Reconcile(t.Context(), reconciler.NewRequest(key, true))
	if err != nil {
		t.Fatal(err)
	}
	if got := deleted(t, w); len(got) > 0 {
		t.Errorf("deleted %v", got)
	}
	if result.RequeueAfter != time.Hour {
		t.Errorf("requeues after %v, want 1h", result.RequeueAfter)
	}
	w.Clock.SetTime(controllertest.Now.Add(time.Hour))
	if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"hello-00004"}, deleted(t, w)); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
}

// Nothing is deleted while the Configuration's own controller has not observed its generation: an older Revision may become the current one.
func TestUnseenGeneration(t *testing.T) {
	c := configuration(6)
	c.Generation = 7
	w, r := newFixture(t, nil, c)
	if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
		t.Fatal(err)
	}
	if got := deleted(t, w); len(got) > 0 {
		t.Errorf("deleted %v", got)
	}
}

// A Revision that no longer exists is not an error; one that changed meanwhile is checked again.
func TestErrors(t *testing.T) {
	revisions := servingv1.Resource("revisions")
	for name, test := range map[string]struct {
		err  error
		want func(error) bool
	}{
		"gone":    {apierrors.NewNotFound(revisions, "x"), func(err error) bool { return err == nil }},
		"changed": {apierrors.NewConflict(revisions, "x", errors.New("routed")), apierrors.IsConflict},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := newFixture(t, nil, configuration(6))
			w.Fail("delete", "revisions", test.err)
			if err := controllertest.Reconcile(t.Context(), r, key); !test.want(err) {
				t.Errorf("got error %v", err)
			}
			if got := deleted(t, w); len(got) != 4 {
				t.Errorf("tried to delete %v, want four", got)
			}
		})
	}
}

// A Revision that its Route no longer refers to is deleted, although the Route changes the Revision before its own
// status, which still names the Revision until then. It is also deleted when the Route is deleted.
func TestRouteLetsGo(t *testing.T) {
	name := func(revision string) *servingv1.Route {
		route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		route.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: revision}}
		return route
	}
	for what, letGo := range map[string]func(*controllertest.Fixture) error{
		"the status names another Revision": func(w *controllertest.Fixture) error {
			_, err := w.Client.ServingV1().Routes(key.Namespace).UpdateStatus(t.Context(), name("hello-00006"), metav1.UpdateOptions{})
			return err
		},
		"the Route is deleted": func(w *controllertest.Fixture) error {
			return w.Client.ServingV1().Routes(key.Namespace).Delete(t.Context(), key.Name, metav1.DeleteOptions{})
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := settings.Default("localhost")
				st.GC.MinNonActiveRevisions = 0
				released := unused(1, 100*time.Hour, 100*time.Hour)
				w := controllertest.New(t, configuration(6), released, name(released.Name))
				controller, err := (&Reconciler{Client: w.Client.ServingV1(), Clock: w.Clock, Settings: func() *settings.Settings { return &st }}).Controller(w.Informers)
				if err != nil {
					t.Fatal(err)
				}
				w.Run(controller, func() {
					if got := deleted(t, w); len(got) > 0 {
						t.Fatalf("deleted %v, which the Route names", got)
					}
					if err := letGo(w); err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					if diff := cmp.Diff([]string{released.Name}, deleted(t, w)); diff != "" {
						t.Errorf("deleted (-want +got):\n%s", diff)
					}
				})
			})
		})
	}
}

// The controller reconciles again at the next deadline, and when the settings change.
func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := settings.Default("localhost")
		st.GC.MinNonActiveRevisions = 0
		var current atomic.Pointer[settings.Settings]
		current.Store(&st)
		w := controllertest.New(t, configuration(6), unused(1, 47*time.Hour, 47*time.Hour), unused(2, time.Hour, time.Hour))
		controller, err := (&Reconciler{Client: w.Client.ServingV1(), Clock: w.Clock, Settings: current.Load}).Controller(w.Informers)
		if err != nil {
			t.Fatal(err)
		}
		w.Run(controller, func() {
			if got := deleted(t, w); len(got) > 0 {
				t.Fatalf("deleted %v", got)
			}
			w.Clock.SetTime(controllertest.Now.Add(time.Hour))
			<-time.After(time.Hour)
			synctest.Wait()
			if diff := cmp.Diff([]string{"hello-00001"}, deleted(t, w)); diff != "" {
				t.Fatalf("deleted (-want +got):\n%s", diff)
			}
			changed := st
			changed.GC.MaxNonActiveRevisions = 0
			current.Store(&changed)
			controller.RequeueAll()
			synctest.Wait()
			if diff := cmp.Diff([]string{"hello-00001", "hello-00002"}, deleted(t, w)); diff != "" {
				t.Errorf("deleted (-want +got):\n%s", diff)
			}
		})
	})
}
