package configuration

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
)

// A Revision that the server refuses makes the Configuration not ready, with the server's message (serving 7.2-5).
// Other errors do not affect the conditions of the Configuration.
func TestCreationErrors(t *testing.T) {
	quota := apierrors.NewForbidden(servingv1.Resource("revisions"), "hello-00001", errors.New("exceeded quota: revisions"))
	for name, test := range map[string]struct {
		err  error
		want summary
	}{
		"quota": {quota, summary{Status: "False", Reason: "RevisionFailed",
			Message: `Revision creation failed with message: revisions.serving.knative.dev "hello-00001" is forbidden: exceeded quota: revisions.`}},
		"an overloaded server": {apierrors.NewInternalError(errors.New("etcd")), summary{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := controllertest.New(t, configuration(1, "one"))
			r := newReconciler(t, w)
			w.Sync()
			w.Fail("create", "revisions", test.err)
			if err := controllertest.Reconcile(t.Context(), r, key); !errors.Is(err, test.err) {
				t.Errorf("got error %v, want %v", err, test.err)
			}
			if diff := cmp.Diff(test.want, summarize(statusOf(t, w))); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

// Nothing is created for Configurations that do not exist or are being deleted, and a Conflict is returned so that the key is retried.
func TestGoneAndConflict(t *testing.T) {
	w := controllertest.New(t, configuration(1, "one", func(c *servingv1.Configuration) {
		c.DeletionTimestamp = ptr.To(metav1.NewTime(controllertest.Now))
		c.Finalizers = []string{metav1.FinalizerDeleteDependents}
	}))
	r := newReconciler(t, w)
	w.Sync()
	for _, name := range []string{"hello", "missing"} {
		if err := controllertest.Reconcile(t.Context(), r, types.NamespacedName{Namespace: key.Namespace, Name: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if writes := w.Writes(); len(writes) > 0 {
		t.Errorf("writes: %v", writes)
	}

	w = controllertest.New(t, configuration(1, "one"))
	r = newReconciler(t, w)
	w.Sync()
	w.Fail("update", "configurations", apierrors.NewConflict(servingv1.Resource("configurations"), "hello", errors.New("changed")))
	if err := controllertest.Reconcile(t.Context(), r, key); !apierrors.IsConflict(err) {
		t.Errorf("got error %v, want a Conflict", err)
	}
}

// A change of a Revision enqueues its Configuration and every Configuration that waits for its name.
func TestKeysOfRevision(t *testing.T) {
	w := controllertest.New(t, configuration(1, "one", func(c *servingv1.Configuration) { c.Name = "waiting" }, named("hello-00001")))
	if err := reconciler.AddIndex(w.Informers.Configurations().Informer(), byRevisionName, revisionNameOf); err != nil {
		t.Fatal(err)
	}
	w.Sync()
	got := keysOfRevision(w.Informers.Configurations().Informer().GetIndexer())(revision(configuration(1, "one"), succeeded))
	want := []types.NamespacedName{key, {Namespace: key.Namespace, Name: "waiting"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}

// A retry leads to the same state, wherever the work is interrupted.
func TestInterrupted(t *testing.T) {
	start := func() (*controllertest.Fixture, func() error) {
		w := controllertest.New(t, configuration(1, "hello"))
		r := newReconciler(t, w)
		return w, func() error { return controllertest.Reconcile(t.Context(), r, key) }
	}
	controllertest.Interrupted(t, 2, start, func(w *controllertest.Fixture) []any {
		revisions, err := w.Informers.Revisions().Lister().List(labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		return []any{statusOf(t, w), revisions}
	})
}

// The controller watches Configurations, the state of their Revisions, and names that become free.
func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := revision(configuration(1, "one"), succeeded)
		foreign.OwnerReferences = nil
		w := controllertest.New(t, configuration(1, "one"), foreign)
		controller, err := (&Reconciler{Client: w.Client.ServingV1(), Recorder: w.Recorder, Clock: w.Clock}).Controller(w.Informers)
		if err != nil {
			t.Fatal(err)
		}
		revisions := w.Client.ServingV1().Revisions(key.Namespace)
		w.Run(controller, func() {
			if got := summarize(statusOf(t, w)).Reason; got != revisionref.ReasonRevisionNameInUse {
				t.Fatalf("reason is %q, want %s", got, revisionref.ReasonRevisionNameInUse)
			}
			if err := revisions.Delete(t.Context(), foreign.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			own, err := revisions.Get(t.Context(), foreign.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			own.Status.Conditions.Set(succeeded, metav1.NewTime(controllertest.Now))
			if _, err := revisions.UpdateStatus(t.Context(), own, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if diff := cmp.Diff(summary{Status: "True", Created: own.Name, Ready: own.Name}, summarize(statusOf(t, w))); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	})
}
