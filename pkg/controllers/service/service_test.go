package service

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/service/resources"
)

var key = types.NamespacedName{Namespace: "default", Name: "hello"}

func newReconciler(w *controllertest.Fixture) *Reconciler {
	return &Reconciler{
		Client:         w.Client.ServingV1(),
		Services:       w.Informers.Services().Lister(),
		Configurations: w.Informers.Configurations().Lister(),
		Routes:         w.Informers.Routes().Lister(),
		Recorder:       w.Recorder,
		Clock:          w.Clock,
	}
}

// service returns a Service as the server stores it, changed by some functions.
func service(changes ...func(*servingv1.Service)) *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, UID: "service-uid", Generation: 1,
		Labels:      map[string]string{"team": "a"},
		Annotations: map[string]string{servingv1.CreatorAnnotationKey: "jane", servingv1.LastModifierAnnotationKey: "joe"},
	}}
	s.Spec.Template.Spec.Containers = []corev1.Container{{Image: "hello"}}
	servingv1.SetDefaults_Service(s)
	for _, change := range changes {
		change(s)
	}
	return s
}

func named(name string) func(*servingv1.Service) {
	return func(s *servingv1.Service) { s.Spec.Template.Name = name }
}

// configuration returns the Configuration of a Service, with the status that its controller wrote for its generation.
func configuration(s *servingv1.Service, ready duckv1.Condition, changes ...func(*servingv1.Configuration)) *servingv1.Configuration {
	c := resources.Configuration(s)
	c.UID, c.Generation = "configuration-uid", 1
	c.Status.ObservedGeneration = 1
	c.Status.LatestCreatedRevisionName, c.Status.LatestReadyRevisionName = "hello-00001", "hello-00001"
	c.Status.Conditions.Set(ready, metav1.NewTime(controllertest.Now))
	for _, change := range changes {
		change(c)
	}
	return c
}

func route(s *servingv1.Service, ready duckv1.Condition, changes ...func(*servingv1.Route)) *servingv1.Route {
	r := resources.Route(s)
	r.UID, r.Generation = "route-uid", 1
	r.Status.ObservedGeneration = 1
	r.Status.URL = "http://hello.default.localhost"
	r.Status.Address = &duckv1.Addressable{URL: "http://hello.default.svc.cluster.local"}
	r.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: "hello-00001", LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)}}
	r.Status.Conditions.Set(ready, metav1.NewTime(controllertest.Now))
	for _, change := range changes {
		change(r)
	}
	return r
}

var isReady = reconciler.True(duckv1.ConditionReady)

// statusOf returns the status that the server has of the Service.
func statusOf(t *testing.T, w *controllertest.Fixture) servingv1.ServiceStatus {
	t.Helper()
	s, err := w.Client.ServingV1().Services(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s.Status
}

// brief returns the status and reason of a condition: "False NotOwned".
func brief(conditions duckv1.Conditions, t duckv1.ConditionType) string {
	c := conditions.Get(t)
	if c == nil {
		return ""
	}
	text := string(c.Status)
	if c.Reason != "" {
		text += " " + c.Reason
	}
	return text
}

// A new Service gets its children, and a status in one write; reconciled again, nothing is written (serving 7.1-1,
// 7.1-7, 7.0.1-1, 9.1.3-4).
// It covers conventions Conditions-2.
func TestCreate(t *testing.T) {
	w := controllertest.New(t, service())
	r := newReconciler(w)
	w.Sync()
	if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"create configurations", "create routes", "update services/status"}, w.Writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	told := []string{`Normal Created Created Configuration "hello"`, `Normal Created Created Route "hello"`}
	if diff := cmp.Diff(told, w.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	c, err := w.Client.ServingV1().Configurations(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !metav1.IsControlledBy(c, service()) {
		t.Errorf("the Configuration is not controlled by the Service: %v", c.OwnerReferences)
	}
	s := statusOf(t, w)
	for _, condition := range []duckv1.ConditionType{duckv1.ConditionReady, servingv1.ServiceConditionConfigurationsReady, servingv1.ServiceConditionRoutesReady} {
		if got := s.Conditions.Get(condition); got == nil || got.Status != corev1.ConditionUnknown {
			t.Errorf("%s is %v, want Unknown", condition, got)
		}
	}
	if s.ObservedGeneration != 1 {
		t.Errorf("observedGeneration is %d", s.ObservedGeneration)
	}
	w.Sync()
	if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
		t.Fatal(err)
	}
	if writes := w.Writes(); len(writes) > 0 {
		t.Errorf("writes at rest: %v", writes)
	}
}

// The status repeats and summarizes the status of the children (serving 7.1-6, 6-12, 6-13, 9.1.3), and reports when they
// lag behind or are not the Service's (serving 7.0.1-3).
func TestStatus(t *testing.T) {
	s := service()
	foreign := service(named("hello-b"))
	failed := reconciler.False(duckv1.ConditionReady, "RevisionFailed", "no such image")
	for name, test := range map[string]struct {
		service                       *servingv1.Service
		children                      []runtime.Object
		configurations, routes, ready string
		message                       string
		writes                        []string
	}{
		"ready": {
			children:       []runtime.Object{configuration(s, isReady), route(s, isReady)},
			configurations: "True", routes: "True", ready: "True",
		},
		"the cause is copied": {
			children:       []runtime.Object{configuration(s, failed), route(s, isReady)},
			configurations: "False RevisionFailed", routes: "True", ready: "False RevisionFailed",
			message: "no such image",
		},
		"the Route's cause is copied": {
			children:       []runtime.Object{configuration(s, isReady), route(s, reconciler.Unknown(duckv1.ConditionReady, "IngressNotConfigured", ""))},
			configurations: "True", routes: "Unknown IngressNotConfigured", ready: "Unknown IngressNotConfigured",
		},
		"the Configuration lags behind": {
			children:       []runtime.Object{configuration(s, isReady, func(c *servingv1.Configuration) { c.Generation = 2 }), route(s, isReady)},
			configurations: "Unknown OutOfDate", routes: "True", ready: "Unknown OutOfDate",
			message: "The Configuration is still working to reflect the latest desired specification.",
		},
		"the Route lags behind": {
			children:       []runtime.Object{configuration(s, isReady), route(s, isReady, func(r *servingv1.Route) { r.Generation = 2 })},
			configurations: "True", routes: "Unknown OutOfDate", ready: "Unknown OutOfDate",
			message: "The Route is still working to reflect the latest desired specification.",
		},
		"the Route points to an older revision": {
			children:       []runtime.Object{configuration(s, isReady, func(c *servingv1.Configuration) { c.Status.LatestReadyRevisionName = "hello-00002" }), route(s, isReady)},
			configurations: "True", routes: "Unknown TrafficNotMigrated", ready: "Unknown TrafficNotMigrated",
			message: "Traffic is not yet migrated to the latest revision.",
		},
		"the Configuration belongs to another owner": {
			children:       []runtime.Object{configuration(s, isReady, func(c *servingv1.Configuration) { c.OwnerReferences = nil; c.Labels = nil })},
			configurations: "False NotOwned", routes: "Unknown", ready: "False NotOwned",
			message: `There is an existing Configuration "hello" that we do not own.`,
		},
		"the Route belongs to an earlier Service of the name": {
			children:       []runtime.Object{configuration(s, isReady), route(s, isReady, func(r *servingv1.Route) { r.OwnerReferences[0].UID = "earlier"; r.Labels = nil })},
			configurations: "True", routes: "False NotOwned", ready: "False NotOwned",
			message: `There is an existing Route "hello" that we do not own.`,
		},
		"the name of the Revision is in use": {
			service: foreign,
			children: []runtime.Object{
				configuration(foreign, reconciler.False(duckv1.ConditionReady, revisionref.ReasonRevisionNameInUse, "foreign")),
				// It would have to change.
				route(s, isReady, func(r *servingv1.Route) { r.Labels = nil }),
			},
			configurations: "False RevisionNameTaken", routes: "Unknown RevisionNameTaken", ready: "False RevisionNameTaken",
			message: "foreign",
		},
		"the named revision does not exist yet": {
			service: foreign,
			children: []runtime.Object{
				configuration(foreign, isReady, func(c *servingv1.Configuration) { c.Generation = 2 }),
				route(s, isReady, func(r *servingv1.Route) { r.Labels = nil }),
			},
			configurations: "Unknown OutOfDate", routes: "Unknown OutOfDate", ready: "Unknown OutOfDate",
			message: "The Configuration is still working to reflect the latest desired specification.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			subject := s
			if test.service != nil {
				subject = test.service
			}
			w := controllertest.New(t, append(test.children, subject)...)
			r := newReconciler(w)
			w.Sync()
			if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"update services/status"}, w.Writes()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			got := statusOf(t, w)
			want := []string{test.configurations, test.routes, test.ready, test.message}
			if diff := cmp.Diff(want, []string{
				brief(got.Conditions, servingv1.ServiceConditionConfigurationsReady),
				brief(got.Conditions, servingv1.ServiceConditionRoutesReady),
				brief(got.Conditions, duckv1.ConditionReady),
				got.Conditions.Get(duckv1.ConditionReady).Message,
			}); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}

// The fields of the children's statuses are in the Service's status (serving 9.1.3-6 to 9.1.3-12).
func TestStatusFields(t *testing.T) {
	s := service()
	c, r := configuration(s, isReady), route(s, isReady)
	got := status(s, observation{configuration: c, route: r}, metav1.NewTime(controllertest.Now))
	if diff := cmp.Diff(c.Status.ConfigurationStatusFields, got.ConfigurationStatusFields); diff != "" {
		t.Errorf("Configuration's fields (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(r.Status.RouteStatusFields, got.RouteStatusFields); diff != "" {
		t.Errorf("Route's fields (-want +got):\n%s", diff)
	}
}

// A new generation sets Ready to Unknown in the write that observes it (serving 9.1.3-4), which is also the transition time.
func TestUnseenGeneration(t *testing.T) {
	s := service()
	c, r := configuration(s, isReady), route(s, isReady)
	s.Status = status(s, observation{configuration: c, route: r}, metav1.NewTime(controllertest.Now.Add(-time.Hour)))
	s.Generation = 2
	s.Spec.Template.Spec.Containers[0].Image = "hello:2"
	w := controllertest.New(t, s, c, r)
	subject := newReconciler(w)
	w.Sync()
	// The server counts generations.
	w.Client.PrependReactor("update", "configurations", func(action clienttesting.Action) (bool, runtime.Object, error) {
		updated := action.(clienttesting.UpdateAction).GetObject().(*servingv1.Configuration).DeepCopy()
		updated.Generation++
		return true, updated, nil
	})
	if err := controllertest.Reconcile(t.Context(), subject, key); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"update configurations", "update services/status"}, w.Writes()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	got := statusOf(t, w)
	want := reconciler.Unknown(duckv1.ConditionReady, reasonOutOfDate, "The Configuration is still working to reflect the latest desired specification.")
	want.LastTransitionTime = metav1.NewTime(controllertest.Now)
	if diff := cmp.Diff(&want, got.Conditions.Get(duckv1.ConditionReady)); diff != "" {
		t.Errorf("Ready (-want +got):\n%s", diff)
	}
	if got.ObservedGeneration != 2 {
		t.Errorf("observedGeneration is %d", got.ObservedGeneration)
	}
}

// Manual changes of the children are reverted (serving 5.5-1, 7.1-5).
func TestReset(t *testing.T) {
	s := service()
	c := configuration(s, isReady, func(c *servingv1.Configuration) {
		c.Labels["extra"] = "x"
		c.Annotations["extra"] = "x"
		c.Finalizers = []string{"example.com/mine"}
		c.Spec.Template.Spec.Containers[0].Image = "other"
	})
	r := route(s, isReady, func(r *servingv1.Route) {
		r.Labels["extra"] = "x"
		r.Spec.Traffic = []servingv1.TrafficTarget{{RevisionName: "hello-00001", Percent: ptr.To[int64](100)}}
	})
	w := controllertest.New(t, s, c, r)
	subject := newReconciler(w)
	w.Sync()
	if err := controllertest.Reconcile(t.Context(), subject, key); err != nil {
		t.Fatal(err)
	}
	gotC, err := w.Client.ServingV1().Configurations(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantC := configuration(s, isReady)
	wantC.Finalizers = []string{"example.com/mine"}
	if diff := cmp.Diff(wantC, gotC); diff != "" {
		t.Errorf("Configuration (-want +got):\n%s", diff)
	}
	gotR, err := w.Client.ServingV1().Routes(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(route(s, isReady), gotR); diff != "" {
		t.Errorf("Route (-want +got):\n%s", diff)
	}
}
