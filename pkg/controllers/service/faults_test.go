package service

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
)

// The response of the server decides whether the user is informed, and whether the write is retried.
func TestErrors(t *testing.T) {
	resource := servingv1.Resource("configurations")
	quota := apierrors.NewForbidden(resource, "hello", errors.New("exceeded quota"))
	for name, test := range map[string]struct {
		err        error
		configured string
		writes     []string
	}{
		"quota":                {quota, "False Rejected", []string{"create configurations", "update services/status"}},
		"an overloaded server": {apierrors.NewInternalError(errors.New("etcd")), "", []string{"create configurations"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := controllertest.New(t, service())
			r := newReconciler(w)
			w.Sync()
			w.Fail("create", "configurations", test.err)
			if err := controllertest.Reconcile(t.Context(), r, key); !errors.Is(err, test.err) {
				t.Errorf("got error %v, want %v", err, test.err)
			}
			if diff := cmp.Diff(test.writes, w.Writes()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			if got := brief(statusOf(t, w).Conditions, servingv1.ServiceConditionConfigurationsReady); got != test.configured {
				t.Errorf("ConfigurationsReady is %q, want %q", got, test.configured)
			}
		})
	}
}

// Children that the informers do not have yet are read from the server, if they are the Service's.
func TestLaggingInformers(t *testing.T) {
	s := service()
	w := controllertest.New(t, s)
	r := newReconciler(w)
	w.Sync()
	for _, obj := range []runtime.Object{configuration(s, isReady), route(s, isReady)} {
		if err := w.Client.Tracker().Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
		t.Fatal(err)
	}
	if got := brief(statusOf(t, w).Conditions, duckv1.ConditionReady); got != "True" {
		t.Errorf("Ready is %q, want True", got)
	}
	if diff := cmp.Diff([]string{"Normal Ready Became ready"}, w.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// Nothing is created for Services that do not exist or are being deleted, and a Conflict is returned so that the key is retried.
func TestGoneAndConflict(t *testing.T) {
	w := controllertest.New(t, service(func(s *servingv1.Service) {
		s.DeletionTimestamp = ptr.To(metav1.NewTime(controllertest.Now))
		s.Finalizers = []string{metav1.FinalizerDeleteDependents}
	}))
	r := newReconciler(w)
	w.Sync()
	for _, name := range []string{"hello", "missing"} {
		if err := controllertest.Reconcile(t.Context(), r, types.NamespacedName{Namespace: key.Namespace, Name: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if writes := w.Writes(); len(writes) > 0 {
		t.Errorf("writes: %v", writes)
	}

	w = controllertest.New(t, service())
	r = newReconciler(w)
	w.Sync()
	w.Fail("update", "services", apierrors.NewConflict(servingv1.Resource("services"), "hello", errors.New("changed")))
	if err := controllertest.Reconcile(t.Context(), r, key); !apierrors.IsConflict(err) {
		t.Errorf("got error %v, want a Conflict", err)
	}
}

// A retry leads to the same state, wherever the work is interrupted.
func TestInterrupted(t *testing.T) {
	start := func() (*controllertest.Fixture, func() error) {
		w := controllertest.New(t, service())
		r := newReconciler(w)
		return w, func() error { return controllertest.Reconcile(t.Context(), r, key) }
	}
	controllertest.Interrupted(t, 3, start, func(w *controllertest.Fixture) []any {
		configurations, err := w.Informers.Configurations().Lister().List(labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		routes, err := w.Informers.Routes().Lister().List(labels.Everything())
		if err != nil {
			t.Fatal(err)
		}
		return []any{statusOf(t, w), configurations, routes}
	})
}

// The controller watches Services and all objects of their names: when another owner's Configuration is
// deleted, the Service creates its own (serving 7.1-1).
func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := configuration(service(), isReady, func(c *servingv1.Configuration) { c.OwnerReferences = nil })
		w := controllertest.New(t, service(), foreign)
		controller, err := (&Reconciler{Client: w.Client.ServingV1(), Recorder: w.Recorder, Clock: w.Clock}).Controller(w.Informers)
		if err != nil {
			t.Fatal(err)
		}
		w.Run(controller, func() {
			if got := brief(statusOf(t, w).Conditions, duckv1.ConditionReady); got != "False NotOwned" {
				t.Fatalf("Ready is %q, want False NotOwned", got)
			}
			if err := w.Client.ServingV1().Configurations(key.Namespace).Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			for _, get := range []func() (metav1.Object, error){
				func() (metav1.Object, error) {
					return w.Client.ServingV1().Configurations(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
				},
				func() (metav1.Object, error) {
					return w.Client.ServingV1().Routes(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
				},
			} {
				if child, err := get(); err != nil {
					t.Error(err)
				} else if !metav1.IsControlledBy(child, service()) {
					t.Errorf("%T is not the Service's", child)
				}
			}
		})
	})
}
