package serving

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// getter is the part of a typed client that reads one object.
type getter[O any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (O, error)
}

// read returns an object that must exist.
func read[O any](t testing.TB, client getter[O], name string) O {
	t.Helper()
	object, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// eventually waits until check accepts an object, and returns it.
func eventually[O any](t testing.TB, client getter[O], name, what string, check func(O) error) O {
	t.Helper()
	var object O
	harness.Eventually(t, fmt.Sprintf("%T %s %s", object, name, what), func() (err error) {
		if object, err = client.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(object)
	})
	return object
}

// deleted waits until no object has the name.
func deleted[O any](t testing.TB, client getter[O], name string) {
	t.Helper()
	var object O
	harness.Eventually(t, fmt.Sprintf("%T %s is deleted", object, name), func() error {
		_, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// condition returns an error if a status lacks the wanted condition; the status must be of the current generation.
func condition(object metav1.Object, status *duckv1.Status, t duckv1.ConditionType, want corev1.ConditionStatus, reason string) error {
	if status.ObservedGeneration != object.GetGeneration() {
		return fmt.Errorf("generation %d, observedGeneration %d", object.GetGeneration(), status.ObservedGeneration)
	}
	c := status.Conditions.Get(t)
	if c == nil || c.Status != want || c.Reason != reason {
		return fmt.Errorf("want %s %s with reason %q, conditions are %+v", t, want, reason, status.Conditions)
	}
	return nil
}

// isReady returns an error if an object is not ready.
func isReady(object metav1.Object, status *duckv1.Status) error {
	return condition(object, status, duckv1.ConditionReady, corev1.ConditionTrue, "")
}

// revisions returns the names of a namespace's Revisions, sorted.
func (s *server) revisions(ctx context.Context, namespace string) ([]string, error) {
	list, err := s.Knative.ServingV1().Revisions(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := []string{}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// mustHaveRevisions compares the names of a namespace's Revisions.
func (s *server) mustHaveRevisions(t testing.TB, namespace string, want ...string) {
	t.Helper()
	names, err := s.revisions(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("Revisions (-want +got):\n%s", diff)
	}
}

// servingKinds are the kinds of Serving.
func servingKinds() []harness.Kind {
	kinds := make([]harness.Kind, 0, 4)
	for _, name := range []string{"Service", "Configuration", "Revision", "Route"} {
		kinds = append(kinds, harness.KindOf(name))
	}
	return kinds
}

// versions returns the resourceVersions of all objects of Serving in a namespace, or in all namespaces if it is empty.
func (s *server) versions(ctx context.Context, namespace string) (map[string]string, error) {
	versions := map[string]string{}
	for _, kind := range servingKinds() {
		list, err := s.Dynamic.Resource(kind.GVR()).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			object := &list.Items[i]
			versions[fmt.Sprintf("%s %s/%s", kind.Kind, object.GetNamespace(), object.GetName())] = object.GetResourceVersion()
		}
	}
	return versions, nil
}

// mustVersions is versions that fails the test on errors.
func (s *server) mustVersions(t testing.TB, namespace string) map[string]string {
	t.Helper()
	versions, err := s.versions(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	return versions
}

// removed waits until a namespace has no object of Serving.
func (s *server) removed(t testing.TB, namespace string) {
	t.Helper()
	harness.Eventually(t, "no object of Serving remains", func() error {
		left, err := s.versions(t.Context(), namespace)
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
}

// pinned returns a traffic target of a Revision by its name.
func pinned(revision string, percent int64) servingv1.TrafficTarget {
	return servingv1.TrafficTarget{RevisionName: revision, LatestRevision: new(bool), Percent: &percent}
}

// latest returns a traffic target that follows the latest ready Revision.
func latest(percent int64) servingv1.TrafficTarget {
	follow := true
	return servingv1.TrafficTarget{LatestRevision: &follow, Percent: &percent}
}

// tagged returns a traffic target with a tag.
func tagged(tag string, target servingv1.TrafficTarget) servingv1.TrafficTarget {
	target.Tag = tag
	return target
}

// object changes the Service.
func object(change func(*servingv1.Service)) option { return change }

// command sets the command of the application.
func command(words ...string) option {
	return func(s *servingv1.Service) { s.Spec.Template.Spec.Containers[0].Command = words }
}

// wantError checks that the text of an error contains want.
func wantError(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error is %v, want one with %q", err, want)
	}
}
