package route

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// fakePlaceholders records the names of the Services of Routes.
type fakePlaceholders struct {
	names map[string][]string
	err   error
	// labelled are the Services that users labelled.
	labelled []string
}

func (f *fakePlaceholders) Labelled(_ metav1.Object, key, value string) ([]string, error) {
	if key != servingv1.VisibilityLabelKey || value != servingv1.VisibilityClusterLocal {
		return nil, nil
	}
	return f.labelled, nil
}

func (f *fakePlaceholders) Apply(_ context.Context, route metav1.Object, names []string) error {
	if f.err == nil {
		f.names[route.GetName()] = names
	}
	return f.err
}

func (f *fakePlaceholders) Forget(route types.NamespacedName) { delete(f.names, route.Name) }

func (*fakePlaceholders) Track(*reconciler.Controller) error { return nil }

// TestPrivateTag checks that the label on its core Service makes a tag private, and that it is public without the label.
func TestPrivateTag(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	f := newFixture(t, newRoute("hello", pin("hello-1", 50, "v1"), pin("hello-1", 50, "v2")), newRevision("hello", 1, isReady))
	placeholders := &fakePlaceholders{names: map[string][]string{}}
	f.Placeholders = placeholders
	const public = "v1-hello.default.example.com"
	for _, step := range []struct {
		labelled  []string
		url, want string
	}{
		{nil, "http://" + public, "hello-1:100"},
		{[]string{"v1-hello"}, "http://v1-hello.default.svc.cluster.local", ""},
		{nil, "http://" + public, "hello-1:100"},
	} {
		placeholders.labelled = step.labelled
		f.reconcile("hello")
		if got := f.gateway.shares(public); got != step.want {
			t.Errorf("with %v labelled, requests to the public host of the tag go to %q, want %q", step.labelled, got, step.want)
		}
		status := f.status("hello")
		if got := status.Traffic[0].URL; got != step.url {
			t.Errorf("with %v labelled, the URL of the tag is %s, want %s", step.labelled, got, step.url)
		}
		if status.URL != "http://hello.default.example.com" || status.Traffic[1].URL != "http://v2-hello.default.example.com" {
			t.Errorf("with %v labelled, the other URLs are %s, %s", step.labelled, status.URL, status.Traffic[1].URL)
		}
		if got := f.gateway.shares("v1-hello.default.svc.cluster.local"); got != "hello-1:100" {
			t.Errorf("with %v labelled, requests within the cluster go to %q", step.labelled, got)
		}
	}
}

// TestPlaceholders checks that Routes and their tags get core Services, except for hosts of other Routes.
func TestPlaceholders(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	older, younger := newRoute("v1-hello", pin("hello-1", 100)), newRoute("hello", pin("hello-1", 100, "v1"), pin("hello-1", 0, "v2"))
	younger.CreationTimestamp = metav1.NewTime(began.Add(time.Minute))
	f := newFixture(t, older, younger, newRevision("hello", 1, isReady))
	placeholders := &fakePlaceholders{names: map[string][]string{}}
	f.Placeholders = placeholders
	f.reconcile("v1-hello")
	f.reconcile("hello")
	if diff := cmp.Diff(map[string][]string{"v1-hello": {"v1-hello"}, "hello": {"hello", "v2-hello"}}, placeholders.names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// TestPlaceholderFaults covers a name that another object has and a Service that cannot be written (serving 7.0.1-3).
func TestPlaceholderFaults(t *testing.T) {
	notOwned := &hostservice.NotOwned{Service: named("hello"), Kind: "Route"}
	quota := apierrors.NewForbidden(corev1.Resource("services"), "hello", errors.New("exceeded quota"))
	down := errors.New("connection refused")
	conflict := apierrors.NewConflict(corev1.Resource("services"), "hello", errors.New("changed"))
	for _, tt := range []struct {
		name          string
		fault         error
		want, ingress string
		retried       bool
	}{
		{"owned by another object", notOwned, "False", "False NotOwned " + notOwned.Error(), false},
		{"quota", quota, "False", "False PlaceholderFailed A name of the Route does not resolve within the cluster: " + quota.Error(), true},
		{"host down", down, "Unknown", "Unknown PlaceholderFailed A name of the Route does not resolve within the cluster yet: connection refused", true},
		{"out of date", conflict, "missing", "missing", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, newRoute("hello", pin("hello-1", 100)), newRevision("hello", 1, ready(corev1.ConditionTrue, "")))
			placeholders := &fakePlaceholders{names: map[string][]string{}, err: tt.fault}
			f.Placeholders = placeholders
			if err := controllertest.Reconcile(t.Context(), f, named("hello")); (err != nil) != tt.retried {
				t.Errorf("error %v, want one to retry: %v", err, tt.retried)
			}
			f.list()
			if got := f.condition("hello", ingress); got != tt.ingress {
				t.Errorf("IngressReady is %q, want %q", got, tt.ingress)
			}
			if got := f.gateway.shares("hello.default"); got != "hello-1:100" {
				t.Errorf("requests go to %q meanwhile, want hello-1:100", got)
			}
			placeholders.err = nil
			f.reconcile("hello")
			if got := f.condition("hello", duckv1.ConditionReady); got != "True" {
				t.Errorf("Ready is %q in the end", got)
			}
		})
	}
}

// TestFollowing checks that the gateway of a replica that does not write gets the same route as the gateway of the writing one, also
// during a rollout, and that it writes nothing.
func TestFollowing(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	route := newRoute("hello", follow("hello", 100))
	route.Annotations = map[string]string{servingv1.RolloutDurationAnnotationKey: "100s"}
	leading := newFixture(t, route, newConfiguration("hello", "hello-1", isReady), newRevision("hello", 1, isReady), newRevision("hello", 2, isReady))
	placeholders := &fakePlaceholders{names: map[string][]string{}}
	leading.Placeholders = placeholders
	leading.reconcile("hello")
	leading.put(newConfiguration("hello", "hello-2", isReady))
	leading.reconcile("hello")

	// The other replica starts later, from the stored objects.
	other := newFixture(t)
	other.client, other.clock = leading.client, leading.clock
	other.restart()
	other.Placeholders = &fakePlaceholders{names: map[string][]string{}}
	other.list()
	var tables []*routing.Route
	for _, f := range []*fixture{other, leading} {
		f.clock.SetTime(began.Add(30 * time.Second))
		f.list()
		f.client.ClearActions()
		if _, err := f.Reconcile(t.Context(), reconciler.NewRequest(named("hello"), f == leading)); err != nil {
			t.Errorf("got %v", err)
		}
		if writes := len(f.client.Actions()); (writes > 0) != (f == leading) {
			t.Errorf("leading %v: %d writes", f == leading, writes)
		}
		tables = append(tables, f.gateway.routes[named("hello")])
	}
	if names := other.Placeholders.(*fakePlaceholders).names; len(names) > 0 {
		t.Errorf("core Services of the other replica: %v", names)
	}
	if diff := cmp.Diff(tables[0], tables[1]); diff != "" {
		t.Errorf("route of the other replica (-want +got):\n%s", diff)
	}
	if got := other.gateway.shares("hello.default"); got != "hello-1:70 hello-2:30" && got != "hello-1:69 hello-2:31" {
		t.Errorf("requests go to %q, want nearly a third to the new Revision", got)
	}
}
