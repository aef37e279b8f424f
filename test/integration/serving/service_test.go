package serving

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestServiceChildren checks that a Service owns a Configuration and a Route of its name with its labels, annotations and spec,
// and that its status aggregates their statuses (serving 7.0.1-1, 7.1-1, 7.1-2, 7.1-4, 7.1-6, 7.1-7, 9.1.1-1, 9.1.1-2, 9.1.2-1,
// 9.1.2-2, 9.1.3-1, 9.1.3-3, 9.1.3-5, 9.1.3-9 to 9.1.3-12, 6-1, 6-2, 6-4, 6-5, 6-11).
// It covers serving 10.29-1.
// It covers serving 9.1.3-2.
func TestServiceChildren(t *testing.T) {
	t.Parallel()
	ns := namespace()
	client := shared.Knative.ServingV1()
	service := shared.deploy(t, app(t, ns, "parent", object(func(s *servingv1.Service) {
		s.Labels = map[string]string{"team": "a"}
		s.Annotations = map[string]string{"note.example.com/why": "test"}
	})))
	configuration, route := read(t, client.Configurations(ns), "parent"), read(t, client.Routes(ns), "parent")

	owner := []metav1.OwnerReference{{
		APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "parent", UID: service.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}}
	for kind, child := range map[string]metav1.Object{"Configuration": configuration, "Route": route} {
		if diff := cmp.Diff(owner, child.GetOwnerReferences()); diff != "" {
			t.Errorf("%s: owners (-want +got):\n%s", kind, diff)
		}
		if diff := cmp.Diff(map[string]string{"team": "a", servingv1.ServiceLabelKey: "parent"}, child.GetLabels()); diff != "" {
			t.Errorf("%s: labels (-want +got):\n%s", kind, diff)
		}
		if diff := cmp.Diff(service.Annotations, child.GetAnnotations()); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", kind, diff)
		}
	}
	if diff := cmp.Diff(service.Spec.ConfigurationSpec, configuration.Spec); diff != "" {
		t.Errorf("the Configuration's spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]servingv1.TrafficTarget{{ConfigurationName: "parent", LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)}}, route.Spec.Traffic); diff != "" {
		t.Errorf("the Route's traffic (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(configuration.Status.ConfigurationStatusFields, service.Status.ConfigurationStatusFields); diff != "" {
		t.Errorf("the status for the Configuration (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(route.Status.RouteStatusFields, service.Status.RouteStatusFields); diff != "" {
		t.Errorf("the status for the Route (-want +got):\n%s", diff)
	}
	if name := service.Status.LatestReadyRevisionName; name != "parent-00001" || service.Status.LatestCreatedRevisionName != name {
		t.Errorf("latest ready Revision %q, latest created %q", name, service.Status.LatestCreatedRevisionName)
	}
	for _, c := range []duckv1.ConditionType{duckv1.ConditionReady, servingv1.ServiceConditionConfigurationsReady, servingv1.ServiceConditionRoutesReady} {
		if err := condition(service, &service.Status.Status, c, corev1.ConditionTrue, ""); err != nil {
			t.Error(err)
		}
	}
	if service.Status.Address == nil || hostOf(t, service.Status.Address.URL) == "" {
		t.Errorf("status.address is %+v", service.Status.Address)
	}
}

// TestServiceMetadata checks that changed and removed labels and annotations of the Service change both children, that changes
// by other clients in the children are reverted, and that none of it creates a Revision (serving 7.1-3, 7.1-5, 9.2.1-1,
// 9.2.1-2).
func TestServiceMetadata(t *testing.T) {
	t.Parallel()
	ns := namespace()
	client := shared.Knative.ServingV1()
	shared.deploy(t, app(t, ns, "labels", object(func(s *servingv1.Service) {
		s.Labels = map[string]string{"stays": "old", "removed": "x"}
		s.Annotations = map[string]string{"example.com/stays": "old", "example.com/removed": "x"}
	})))
	harness.Edit(t, client.Services(ns), "labels", func(s *servingv1.Service) {
		delete(s.Labels, "removed")
		delete(s.Annotations, "example.com/removed")
		s.Labels["stays"], s.Annotations["example.com/stays"] = "new", "new"
	})
	follow := func(what string) {
		t.Helper()
		check := func(child metav1.Object) error {
			if diff := cmp.Diff(map[string]string{"stays": "new", servingv1.ServiceLabelKey: "labels"}, child.GetLabels()); diff != "" {
				return fmt.Errorf("labels (-want +got):\n%s", diff)
			}
			annotations := child.GetAnnotations()
			if _, there := annotations["example.com/removed"]; there || annotations["example.com/stays"] != "new" {
				return fmt.Errorf("annotations %v", annotations)
			}
			return nil
		}
		eventually(t, client.Configurations(ns), "labels", what, func(c *servingv1.Configuration) error {
			return check(c)
		})
		eventually(t, client.Routes(ns), "labels", what, func(r *servingv1.Route) error {
			return errors.Join(check(r), wantNumber("traffic targets", int64(len(r.Spec.Traffic)), 1))
		})
	}
	follow("follows the Service")

	harness.Edit(t, client.Configurations(ns), "labels", func(c *servingv1.Configuration) {
		c.Labels["removed"], c.Annotations["example.com/removed"] = "by-hand", "by hand"
		delete(c.Labels, "stays")
	})
	harness.Edit(t, client.Routes(ns), "labels", func(r *servingv1.Route) {
		r.Labels["removed"], r.Annotations["example.com/removed"] = "by-hand", "by hand"
		r.Spec.Traffic = []servingv1.TrafficTarget{pinned("labels-00001", 50), pinned("labels-00001", 50)}
	})
	follow("is reset")

	shared.ready(t, ns, "labels")
	shared.mustHaveRevisions(t, ns, "labels-00001")
	revision := read(t, client.Revisions(ns), "labels-00001")
	for _, key := range []string{"stays", "removed"} {
		if value, there := revision.Labels[key]; there {
			t.Errorf("the Revision has the label %s=%s of its Configuration", key, value)
		}
		if value, there := revision.Annotations["example.com/"+key]; there {
			t.Errorf("the Revision has the annotation %s: %s of its Configuration", key, value)
		}
	}
}

func wantNumber(what string, got, want int64) error {
	if got != want {
		return fmt.Errorf("%s: %d, want %d", what, got, want)
	}
	return nil
}

// TestServiceNotOwned checks that an existing Configuration or Route is not changed, that the Service reports it, and that the
// Service creates its own once the object is deleted (serving 7.0.1-2, 7.0.1-3, 6-6, 6-12).
func TestServiceNotOwned(t *testing.T) {
	t.Parallel()
	client := shared.Knative.ServingV1()
	t.Run("Configuration", func(t *testing.T) {
		t.Parallel()
		ns := namespace()
		foreign := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Name: "taken", Namespace: ns}}
		foreign.Spec = app(t, ns, "taken", env("TARGET", "foreign")).Spec.ConfigurationSpec
		if _, err := client.Configurations(ns).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		shared.apply(t, app(t, ns, "taken"))
		notOwned(t, ns, servingv1.ServiceConditionConfigurationsReady)
		configuration := read(t, client.Configurations(ns), "taken")
		if metav1.GetControllerOf(configuration) != nil || configuration.Generation != 1 {
			t.Errorf("the foreign Configuration was changed: %+v", configuration.ObjectMeta)
		}
		if err := client.Configurations(ns).Delete(t.Context(), "taken", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if url := shared.ready(t, ns, "taken").Status.URL; shared.mustGet(t, url) != "Hello World!\n" {
			t.Error("the Service does not serve once the Configuration is its own")
		}
	})
	t.Run("Route", func(t *testing.T) {
		t.Parallel()
		ns := namespace()
		foreign := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "taken", Namespace: ns}}
		foreign.Spec.Traffic = []servingv1.TrafficTarget{{ConfigurationName: "other", Percent: ptr.To[int64](100)}}
		if _, err := client.Routes(ns).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		shared.apply(t, app(t, ns, "taken"))
		notOwned(t, ns, servingv1.ServiceConditionRoutesReady)
		route := read(t, client.Routes(ns), "taken")
		if metav1.GetControllerOf(route) != nil || route.Generation != 1 {
			t.Errorf("the foreign Route was changed: %+v", route.ObjectMeta)
		}
		if err := client.Routes(ns).Delete(t.Context(), "taken", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		shared.ready(t, ns, "taken")
	})
}

func notOwned(t *testing.T, namespace string, c duckv1.ConditionType) {
	t.Helper()
	shared.until(t, namespace, "taken", "reports that it does not own its children", func(s *servingv1.Service) error {
		return errors.Join(
			condition(s, &s.Status.Status, c, corev1.ConditionFalse, "NotOwned"),
			condition(s, &s.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "NotOwned"))
	})
}

// TestServiceDeletion checks that children are deleted with their Service, before it (foreground), or not at all (orphan), as
// requested (serving 7.0.1-4).
func TestServiceDeletion(t *testing.T) {
	t.Parallel()
	client := shared.Knative.ServingV1()
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			ns, name := namespace(), "deleted-"+map[bool]string{true: "first", false: "last"}[policy == metav1.DeletePropagationBackground]
			url := shared.deploy(t, app(t, ns, name)).Status.URL
			shared.mustGet(t, url)
			if err := client.Services(ns).Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			deleted(t, client.Services(ns), name)
			if policy == metav1.DeletePropagationForeground {
				if left := shared.mustVersions(t, ns); len(left) > 0 {
					t.Errorf("the Service was deleted before %v", left)
				}
			}
			shared.removed(t, ns)
			harness.Eventually(t, "the host name is unknown and no process remains", func() error {
				a, err := shared.get(t.Context(), url)
				if err != nil || a.code != 404 {
					return fmt.Errorf("%+v, %w", a, err)
				}
				if left := processesOf(t, name); len(left) > 0 {
					return fmt.Errorf("processes %v run", left)
				}
				return nil
			})
		})
	}
	t.Run("Orphan", func(t *testing.T) {
		t.Parallel()
		ns := namespace()
		service := shared.deploy(t, app(t, ns, "leaves"))
		if err := client.Services(ns).Delete(t.Context(), "leaves", metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationOrphan)}); err != nil {
			t.Fatal(err)
		}
		deleted(t, client.Services(ns), "leaves")
		for kind, child := range map[string]metav1.Object{
			"Configuration": read(t, client.Configurations(ns), "leaves"), "Route": read(t, client.Routes(ns), "leaves"),
		} {
			if owners := child.GetOwnerReferences(); len(owners) > 0 {
				t.Errorf("the orphaned %s has the owners %v", kind, owners)
			}
		}
		shared.mustGet(t, service.Status.URL)
	})
}

// TestStatusIsNeverStale checks every state of a Service, its Configuration and its Route that a watch shows: none is ready for
// a generation by the status of an older one, and observedGeneration changes together with the conditions (serving 9.1.3-4,
// 9.2.3-3, 9.3.3-4, 6-13).
// It covers conventions Conditions-8.
// It covers conventions Spec and Status-6.
func TestStatusIsNeverStale(t *testing.T) {
	t.Parallel()
	const updates = 5
	ns := namespace()
	client := shared.Knative.ServingV1()
	services, err := client.Services(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configurations, err := client.Configurations(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	routes, err := client.Routes(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tag := func(generation int64) string { return fmt.Sprintf("t%d", generation) }
	for i := range int64(updates) {
		// Each update changes the template and the traffic: all three kinds get a new generation.
		shared.apply(t, app(t, ns, "stale", env("TARGET", fmt.Sprint(i)), traffic(tagged(tag(i+1), latest(100)))))
		// Every second update waits for the previous one, so both orders occur.
		if i%2 == 0 {
			shared.ready(t, ns, "stale")
		}
	}
	// The checks below define readiness for a generation.
	migrated := func(generation int64, traffic []servingv1.TrafficTarget) error {
		if len(traffic) != 1 || traffic[0].Tag != tag(generation) {
			return fmt.Errorf("the traffic is %+v", traffic)
		}
		return nil
	}
	runs := func(generation int64, status servingv1.ConfigurationStatusFields) error {
		if want := fmt.Sprintf("stale-%05d", generation); status.LatestReadyRevisionName != want || status.LatestCreatedRevisionName != want {
			return fmt.Errorf("the Revisions are %+v", status)
		}
		return nil
	}
	followStatus(t, services, updates, func(s *servingv1.Service) (*duckv1.Status, error) {
		observed := s.Status.ObservedGeneration
		err := errors.Join(runs(observed, s.Status.ConfigurationStatusFields), migrated(observed, s.Status.Traffic))
		for _, c := range []duckv1.ConditionType{servingv1.ServiceConditionConfigurationsReady, servingv1.ServiceConditionRoutesReady} {
			if got := s.Status.Conditions.Get(c); got == nil || got.Status != corev1.ConditionTrue {
				err = errors.Join(err, fmt.Errorf("%s is %+v", c, got))
			}
		}
		return &s.Status.Status, err
	})
	followStatus(t, configurations, updates, func(c *servingv1.Configuration) (*duckv1.Status, error) {
		return &c.Status.Status, runs(c.Status.ObservedGeneration, c.Status.ConfigurationStatusFields)
	})
	followStatus(t, routes, updates, func(r *servingv1.Route) (*duckv1.Status, error) {
		return &r.Status.Status, migrated(r.Status.ObservedGeneration, r.Status.Traffic)
	})
}

// followStatus checks all states of an object until it is ready for a generation. check returns the status, and an error if it
// must not be ready.
func followStatus[O metav1.Object](t *testing.T, watched watch.Interface, last int64, check func(O) (*duckv1.Status, error)) {
	t.Helper()
	defer watched.Stop()
	timeout := time.After(harness.Patience)
	for {
		select {
		case <-timeout:
			t.Fatalf("generation %d was not observed as ready", last)
		case event := <-watched.ResultChan():
			object, ok := event.Object.(O)
			if !ok {
				t.Fatalf("the watch ended with %+v", event)
			}
			status, fault := check(object)
			if status.ObservedGeneration > object.GetGeneration() {
				t.Errorf("%T: observedGeneration %d of generation %d", object, status.ObservedGeneration, object.GetGeneration())
			}
			ready := status.Conditions.Get(duckv1.ConditionReady)
			if (ready == nil) != (status.ObservedGeneration == 0) {
				t.Errorf("%T: observedGeneration %d with Ready %+v", object, status.ObservedGeneration, ready)
			}
			if ready == nil || ready.Status != corev1.ConditionTrue {
				continue
			}
			if fault != nil {
				t.Errorf("%T: ready for generation %d although %v", object, status.ObservedGeneration, fault)
			}
			if status.ObservedGeneration == last {
				return
			}
		}
	}
}
