package serving

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// configurationOf returns a Configuration that runs the sample application.
func configurationOf(t testing.TB, namespace, name string, options ...option) *servingv1.Configuration {
	t.Helper()
	service := app(t, namespace, name, options...)
	return &servingv1.Configuration{ObjectMeta: service.ObjectMeta, Spec: service.Spec.ConfigurationSpec}
}

// configure creates or replaces a Configuration.
func (s *server) configure(t testing.TB, configuration *servingv1.Configuration) {
	t.Helper()
	client := s.Knative.ServingV1().Configurations(configuration.Namespace)
	_, err := client.Create(t.Context(), configuration, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		harness.Edit(t, client, configuration.Name, func(c *servingv1.Configuration) { c.Spec = configuration.Spec })
	case err != nil:
		t.Fatal(err)
	}
}

// configured waits until a Configuration is ready.
func (s *server) configured(t testing.TB, namespace, name string) *servingv1.Configuration {
	t.Helper()
	return eventually(t, s.Knative.ServingV1().Configurations(namespace), name, "is ready",
		func(c *servingv1.Configuration) error { return isReady(c, &c.Status.Status) })
}

// TestConfigurationAndRoute checks that a Configuration and a Route serve without a Service. The Configuration creates a
// Revision for each template, with the metadata and the spec of the template, without its own metadata and without additions
// (serving 6-1, 6-4, 6-11, 7.0.1-1, 7.2-1 to 7.2-4, 7.2-6, 9-7, 9.2.1-1 to 9.2.1-4, 9.2.2-1, 9.2.3-1, 9.2.3-2, 9.2.3-4 to
// 9.2.3-6, 9.3.2-1, 9.3.3-1, 9.3.3-3, 9.3.3-5 to 9.3.3-7, 9.3.3-9, 9.3.3-10, 9.4.2-1, 9.4.2-3, 9.4.2-4, 9.4.3-1, 9.4.3-3,
// 9.4.3-5).
// It covers serving 5.3-2.
func TestConfigurationAndRoute(t *testing.T) {
	t.Parallel()
	ns := namespace()
	client := shared.Knative.ServingV1()
	shared.configure(t, configurationOf(t, ns, "alone", object(func(s *servingv1.Service) {
		s.Labels, s.Annotations = map[string]string{"own": "x"}, map[string]string{"example.com/own": "x"}
		s.Spec.Template.Labels, s.Spec.Template.Annotations = map[string]string{"app": "x"}, map[string]string{"example.com/app": "x"}
	})))
	configuration := shared.configured(t, ns, "alone")
	if diff := cmp.Diff(map[string]string{"own": "x"}, configuration.Labels); diff != "" {
		t.Errorf("the Configuration's labels (-want +got):\n%s", diff)
	}
	if status := configuration.Status; status.ObservedGeneration != 1 || status.LatestCreatedRevisionName != "alone-00001" || status.LatestReadyRevisionName != "alone-00001" {
		t.Errorf("the Configuration's status is %+v", status)
	}

	revision := read(t, client.Revisions(ns), "alone-00001")
	if owner := metav1.GetControllerOf(revision); owner == nil || owner.UID != configuration.UID || owner.Kind != "Configuration" {
		t.Errorf("the Revision's controller is %+v", owner)
	}
	if diff := cmp.Diff(configuration.Spec.Template.Spec, revision.Spec); diff != "" {
		t.Errorf("the Revision's spec (-template +got):\n%s", diff)
	}
	for key, want := range map[string]string{
		"app": "x", "own": "", servingv1.ServiceLabelKey: "", servingv1.ServiceUIDLabelKey: "",
		servingv1.ConfigurationLabelKey: "alone", servingv1.ConfigurationUIDLabelKey: string(configuration.UID),
		servingv1.ConfigurationGenerationLabelKey: "1",
	} {
		if got := revision.Labels[key]; got != want {
			t.Errorf("the Revision's label %s is %q, want %q", key, got, want)
		}
	}
	if a := revision.Annotations; a["example.com/app"] != "x" || a["example.com/own"] != "" {
		t.Errorf("the Revision's annotations are %v", a)
	}
	if seconds, concurrency := ptr.Deref(revision.Spec.TimeoutSeconds, 0), ptr.Deref(revision.Spec.ContainerConcurrency, -1); seconds != 300 || concurrency != 0 {
		t.Errorf("timeoutSeconds is %d, want 300; containerConcurrency %d, want 0", seconds, concurrency)
	}
	if err := isReady(revision, &revision.Status.Status); err != nil {
		t.Errorf("the Revision of a Configuration that is ready: %v", err)
	}
	logs, err := url.Parse(revision.Status.LogURL)
	if err != nil || logs.Scheme != "file" {
		t.Errorf("status.logUrl %q must be the URL of a file (%v)", revision.Status.LogURL, err)
	} else if _, err := os.Stat(logs.Path); err != nil {
		t.Errorf("status.logUrl: %v", err)
	}

	// An empty spec refers to the Configuration with the name of the Route.
	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "alone"}}
	if _, err := client.Routes(ns).Create(t.Context(), route, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	route = shared.routed(t, ns, "alone")
	want := []servingv1.TrafficTarget{{RevisionName: "alone-00001", LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)}}
	if diff := cmp.Diff(want, route.Status.Traffic); diff != "" || route.Status.ObservedGeneration != 1 {
		t.Errorf("the Route's status.traffic (-want +got):\n%s", diff)
	}
	if route.Status.Address == nil || hostOf(t, route.Status.Address.URL) == "" || hostOf(t, route.Status.URL) != "alone."+ns+".localhost" {
		t.Errorf("the Route's URL is %q, its address %+v", route.Status.URL, route.Status.Address)
	}
	if got := shared.mustGet(t, route.Status.URL); got != "Hello World!\n" {
		t.Errorf("it answers %q", got)
	}

	// A change of metadata creates no Revision and does not change existing ones; a change of the template creates one.
	harness.Edit(t, client.Configurations(ns), "alone", func(c *servingv1.Configuration) { c.Labels["own"] = "y" })
	shared.configure(t, configurationOf(t, ns, "alone", env("TARGET", "second")))
	eventually(t, client.Routes(ns), "alone", "follows the second Revision", func(r *servingv1.Route) error {
		if len(r.Status.Traffic) != 1 || r.Status.Traffic[0].RevisionName != "alone-00002" {
			return fmt.Errorf("traffic %+v", r.Status.Traffic)
		}
		return isReady(r, &r.Status.Status)
	})
	if got := shared.mustGet(t, route.Status.URL); got != "Hello second!\n" {
		t.Errorf("it answers %q", got)
	}
	shared.mustHaveRevisions(t, ns, "alone-00001", "alone-00002")
	if value, there := read(t, client.Revisions(ns), "alone-00001").Labels["own"]; there {
		t.Errorf("the Revision got its Configuration's label own=%s", value)
	}
}

// TestTemplateNeedsAContainer checks that a container is the only required part of a template (serving 9-7, 9.4.2-1, 9.1.2-1,
// 9.2.2-1).
func TestTemplateNeedsAContainer(t *testing.T) {
	t.Parallel()
	ns := namespace()
	service := app(t, ns, "empty", object(func(s *servingv1.Service) { s.Spec.Template.Spec.Containers = nil }))
	_, err := shared.Knative.ServingV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.template.spec.containers") {
		t.Errorf("without a container: %v", err)
	}
	shared.deploy(t, app(t, ns, "small"))
}

// TestLatestRevisions checks that the last ready Revision serves while a newer one fails, and that an older one that becomes
// ready late does not replace a newer one (serving 7.2-5, 7.2-7, 9.2.3-3).
func TestLatestRevisions(t *testing.T) {
	t.Parallel()
	ns := namespace()
	client := shared.Knative.ServingV1()
	watched, err := client.Configurations(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	address := shared.deploy(t, app(t, ns, "order", env("TARGET", "1"))).Status.URL

	shared.apply(t, app(t, ns, "order", env("START_FAIL", "1:broken")))
	eventually(t, client.Configurations(ns), "order", "has failed", func(c *servingv1.Configuration) error {
		if c.Status.LatestCreatedRevisionName != "order-00002" || c.Status.LatestReadyRevisionName != "order-00001" {
			return fmt.Errorf("status %+v", c.Status)
		}
		return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "RevisionFailed")
	})
	if got := shared.mustGet(t, address); got != "Hello 1!\n" {
		t.Errorf("while the second Revision fails, %q answers", got)
	}

	// The third Revision starts after the fourth.
	closed, open := gate(t)
	shared.apply(t, app(t, ns, "order", env("TARGET", "3"), closed))
	eventually(t, client.Configurations(ns), "order", "has created the third Revision", func(c *servingv1.Configuration) error {
		if c.Status.LatestCreatedRevisionName != "order-00003" {
			return fmt.Errorf("status %+v", c.Status)
		}
		return nil
	})
	shared.deploy(t, app(t, ns, "order", env("TARGET", "4")))
	open()
	eventually(t, client.Revisions(ns), "order-00003", "is ready", func(r *servingv1.Revision) error { return isReady(r, &r.Status.Status) })
	// The Configuration must observe it before the next change.
	shared.deploy(t, app(t, ns, "order", env("TARGET", "5")))
	if got := shared.mustGet(t, address); got != "Hello 5!\n" {
		t.Errorf("at the end %q answers", got)
	}

	var created, ready []string
	for !slices.Contains(ready, "order-00005") {
		select {
		case event := <-watched.ResultChan():
			c, ok := event.Object.(*servingv1.Configuration)
			if !ok {
				t.Fatalf("the watch ended with %+v", event)
			}
			if condition := c.Status.Conditions.Get(duckv1.ConditionReady); condition == nil && c.Status.ObservedGeneration > 0 {
				t.Errorf("observedGeneration %d without a condition", c.Status.ObservedGeneration)
			}
			created, ready = append(created, c.Status.LatestCreatedRevisionName), append(ready, c.Status.LatestReadyRevisionName)
		case <-time.After(harness.Patience):
			t.Fatalf("latest ready Revisions %q", ready)
		}
	}
	names := func(numbers string) []string {
		list := []string{""}
		for _, n := range numbers {
			list = append(list, "order-0000"+string(n))
		}
		return list
	}
	if diff := cmp.Diff(names("12345"), slices.Compact(created)); diff != "" {
		t.Errorf("latestCreatedRevisionName over time (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(names("145"), slices.Compact(ready)); diff != "" {
		t.Errorf("latestReadyRevisionName over time (-want +got):\n%s", diff)
	}
}

// TestRevisionNameConflict checks that a Revision name that another Configuration uses is rejected (serving 7.2-5, 7.0.1-2,
// 7.0.1-3).
func TestRevisionNameConflict(t *testing.T) {
	t.Parallel()
	ns := namespace()
	shared.configure(t, configurationOf(t, ns, "a", func(s *servingv1.Service) { s.Spec.Template.Name = "a-b-c" }))
	shared.configured(t, ns, "a")
	shared.apply(t, app(t, ns, "a-b", revisionName("c")))
	shared.until(t, ns, "a-b", "reports the name conflict", func(s *servingv1.Service) error {
		return errors.Join(
			condition(s, &s.Status.Status, servingv1.ServiceConditionConfigurationsReady, corev1.ConditionFalse, "RevisionNameTaken"),
			condition(s, &s.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "RevisionNameTaken"))
	})
	shared.mustHaveRevisions(t, ns, "a-b-c")
	if owner := metav1.GetControllerOf(read(t, shared.Knative.ServingV1().Revisions(ns), "a-b-c")); owner == nil || owner.Name != "a" {
		t.Errorf("the Revision's controller is %+v", owner)
	}
	shared.deploy(t, app(t, ns, "a-b", revisionName("d")))
}

// TestLatestReadyRevisionDeleted checks that the Configuration reports that its latest ready Revision was deleted until another
// one is ready, and creates the current Revision again (serving 6-6, 7.2-2, 7.2-7).
func TestLatestReadyRevisionDeleted(t *testing.T) {
	t.Parallel()
	ns := namespace()
	client := shared.Knative.ServingV1()
	shared.configure(t, configurationOf(t, ns, "lost"))
	shared.configured(t, ns, "lost")
	closed, open := gate(t)
	shared.configure(t, configurationOf(t, ns, "lost", closed))
	eventually(t, client.Configurations(ns), "lost", "has created the second Revision", func(c *servingv1.Configuration) error {
		if c.Status.LatestCreatedRevisionName != "lost-00002" {
			return fmt.Errorf("status %+v", c.Status)
		}
		return nil
	})
	if err := client.Revisions(ns).Delete(t.Context(), "lost-00001", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, client.Configurations(ns), "lost", "reports the deleted Revision", func(c *servingv1.Configuration) error {
		return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "RevisionDeleted")
	})
	open()
	if c := shared.configured(t, ns, "lost"); c.Status.LatestReadyRevisionName != "lost-00002" {
		t.Errorf("ready with %+v", c.Status)
	}

	first := read(t, client.Revisions(ns), "lost-00002")
	if err := client.Revisions(ns).Delete(t.Context(), first.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, client.Revisions(ns), first.Name, "is made again", func(r *servingv1.Revision) error {
		if r.UID == first.UID {
			return errors.New("it is the old one")
		}
		return isReady(r, &r.Status.Status)
	})
	shared.configured(t, ns, "lost")
}
