package registry_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/networking/clusterdomainclaim"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/domainmapping"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/service"
)

func as(u user.Info) context.Context { return request.WithUser(context.Background(), u) }

func alice() context.Context { return as(&user.DefaultInfo{Name: "alice"}) }
func bob() context.Context   { return as(&user.DefaultInfo{Name: "bob"}) }

func newService(image string) *servingv1.Service {
	return &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}},
		}}},
	}
}

func serviceStrategies() (rest.RESTCreateUpdateStrategy, rest.RESTUpdateStrategy) {
	return registry.Strategies(service.Resource(identity.Controllers{}, servingv1.DefaultSettings), runtime.NewScheme())
}

func TestPrepareForCreate(t *testing.T) {
	strategy, _ := serviceStrategies()
	s := newService("image")
	s.Generation = 7
	s.Status.URL = "http://forged"
	s.Annotations = map[string]string{"serving.knative.dev/creator": "forged", "serving.knative.dev/lastModifier": "forged"}
	strategy.PrepareForCreate(alice(), s)

	if s.Generation != 1 {
		t.Errorf("generation = %d, want 1", s.Generation)
	}
	if s.Status.URL != "" {
		t.Errorf("status.url = %q, want the status dropped", s.Status.URL)
	}
	for _, key := range []string{"serving.knative.dev/creator", "serving.knative.dev/lastModifier"} {
		if got := s.Annotations[key]; got != "alice" {
			t.Errorf("annotation %s = %q, want alice", key, got)
		}
	}
	if got := s.Spec.Template.Spec.EnableServiceLinks; got == nil || *got {
		t.Errorf("enableServiceLinks = %v, want false", got)
	}
}

// An update that does not change the template keeps the defaults of earlier settings. Otherwise a change of settings would
// create Revisions (serving 5.3-1).
func TestUpdatesUnderOtherSettings(t *testing.T) {
	settings := servingv1.DefaultSettings()
	strategy, _ := registry.Strategies(service.Resource(identity.Controllers{}, func() servingv1.Settings { return settings }), runtime.NewScheme())
	old := newService("image")
	strategy.PrepareForCreate(alice(), old)
	settings.TimeoutSeconds, settings.IdleTimeoutSeconds = 120, 60

	labelled := old.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	strategy.PrepareForUpdate(bob(), labelled, old)
	if diff := cmp.Diff(old.Spec, labelled.Spec); diff != "" || labelled.Generation != 1 {
		t.Errorf("generation %d, spec (-old +new):\n%s", labelled.Generation, diff)
	}

	changed := old.DeepCopy()
	changed.Spec.Template.Spec.Containers[0].Image = "other"
	strategy.PrepareForUpdate(bob(), changed, old)
	if got := changed.Spec.Template.Spec; changed.Generation != 2 || *got.TimeoutSeconds != 300 || *got.IdleTimeoutSeconds != 60 {
		t.Errorf("generation %d, spec %+v", changed.Generation, got)
	}

	created := newService("image")
	strategy.PrepareForCreate(alice(), created)
	if got := *created.Spec.Template.Spec.TimeoutSeconds; got != 120 {
		t.Errorf("timeoutSeconds of a new Service is %d", got)
	}
}

func TestControllersKeepUserAnnotations(t *testing.T) {
	strategy, _ := serviceStrategies()
	s := newService("image")
	s.Annotations = map[string]string{"serving.knative.dev/creator": "alice"}
	strategy.PrepareForCreate(as(identity.NewControllers()), s)
	if got := s.Annotations["serving.knative.dev/creator"]; got != "alice" {
		t.Errorf("creator = %q, want the one the controllers copied", got)
	}
	if got := s.Annotations["serving.knative.dev/lastModifier"]; got != identity.ControllersUser {
		t.Errorf("lastModifier = %q, want %q", got, identity.ControllersUser)
	}
}

func TestPrepareForUpdate(t *testing.T) {
	tests := []struct {
		name           string
		change         func(*servingv1.Service)
		wantGeneration int64
		wantModifier   string
	}{
		{"nothing", func(*servingv1.Service) {}, 1, "alice"},
		{"the manifest as it was written", func(s *servingv1.Service) { s.Spec = newService("image").Spec }, 1, "alice"},
		{"a label", func(s *servingv1.Service) { s.Labels = map[string]string{"a": "b"} }, 1, "alice"},
		{"the status", func(s *servingv1.Service) { s.Status.URL = "http://forged" }, 1, "alice"},
		{"the image", func(s *servingv1.Service) { s.Spec.Template.Spec.Containers[0].Image = "other" }, 2, "bob"},
		{"the traffic", func(s *servingv1.Service) {
			s.Spec.Traffic = []servingv1.TrafficTarget{{RevisionName: "s-1", Percent: ptr.To[int64](100)}}
		}, 2, "bob"},
		{"forged annotations", func(s *servingv1.Service) {
			s.Annotations = map[string]string{"serving.knative.dev/creator": "bob", "serving.knative.dev/lastModifier": "eve"}
		}, 1, "alice"},
		{"dropped annotations", func(s *servingv1.Service) { s.Annotations = nil }, 1, "alice"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			strategy, _ := serviceStrategies()
			old := newService("image")
			strategy.PrepareForCreate(alice(), old)
			old.Status.URL = "http://true"

			updated := old.DeepCopy()
			test.change(updated)
			// The store passes the stored generation before it calls the strategy.
			strategy.PrepareForUpdate(bob(), updated, old)

			if updated.Generation != test.wantGeneration {
				t.Errorf("generation = %d, want %d", updated.Generation, test.wantGeneration)
			}
			if updated.Status.URL != "http://true" {
				t.Errorf("status.url = %q, want the stored status", updated.Status.URL)
			}
			if got := updated.Annotations["serving.knative.dev/creator"]; got != "alice" {
				t.Errorf("creator = %q, want alice", got)
			}
			if got := updated.Annotations["serving.knative.dev/lastModifier"]; got != test.wantModifier {
				t.Errorf("lastModifier = %q, want %q", got, test.wantModifier)
			}
		})
	}
}

func TestStatusStrategyChangesStatusAlone(t *testing.T) {
	strategy, status := serviceStrategies()
	old := newService("image")
	strategy.PrepareForCreate(alice(), old)

	updated := old.DeepCopy()
	updated.Labels = map[string]string{"a": "b"}
	updated.Annotations = nil
	updated.Finalizers = []string{"example.com/x"}
	updated.Spec.Template.Spec.Containers[0].Image = "other"
	updated.Status.URL = "http://true"
	status.PrepareForUpdate(bob(), updated, old)

	want := old.DeepCopy()
	want.Status.URL = "http://true"
	if diff := cmp.Diff(want, updated); diff != "" {
		t.Errorf("a status write changed more than the status:\n%s", diff)
	}
}

func TestStatusStrategyValidatesConditions(t *testing.T) {
	_, status := serviceStrategies()
	s := newService("image")
	s.Status.Conditions = duckv1.Conditions{{Type: "Ready", Status: "Maybe"}}
	errs := status.ValidateUpdate(alice(), s, s)
	if len(errs) != 1 || errs[0].Field != "status.conditions[0].status" {
		t.Errorf("errors = %v, want one at status.conditions[0].status", errs)
	}
}

// New Brokers get defaults from the settings; later settings do not change them (eventing Broker Lifecycle-5, -7).
func TestBrokerSettings(t *testing.T) {
	settings := eventingv1.Settings{Cluster: eventingv1.BrokerDefaults{Class: "Kafka", OwnNamespace: true}}
	strategy, _ := registry.Strategies(broker.Resource(identity.Controllers{}, func() eventingv1.Settings { return settings }), runtime.NewScheme())
	manifest := func() *eventingv1.Broker {
		return &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns", ResourceVersion: "1"}}
	}
	b := manifest()
	strategy.PrepareForCreate(alice(), b)
	if got := b.Annotations[eventingv1.BrokerClassAnnotationKey]; got != "Kafka" || b.Spec.Config == nil {
		t.Errorf("a new Broker has class %q and config %v", got, b.Spec.Config)
	}
	if errs := strategy.Validate(alice(), b); len(errs) > 0 {
		t.Errorf("a new Broker is refused: %v", errs)
	}
	otherNamespace := b.DeepCopy()
	otherNamespace.Spec.Config = &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "other", Name: "c"}
	if errs := strategy.Validate(alice(), otherNamespace); len(errs) != 1 || errs[0].Field != "spec.config.namespace" {
		t.Errorf("errors = %v, want one at spec.config.namespace", errs)
	}

	settings.Cluster = eventingv1.BrokerDefaults{Class: "Rabbit", Options: eventingv1.BrokerOptions{Delivery: &duckv1.DeliverySpec{}}}
	update := manifest()
	strategy.PrepareForUpdate(alice(), update, b)
	if got := update.Annotations[eventingv1.BrokerClassAnnotationKey]; got != "Kafka" || update.Spec.Delivery != nil {
		t.Errorf("after an update the class is %q and delivery %v, want them unchanged", got, update.Spec.Delivery)
	}
	if errs := strategy.ValidateUpdate(alice(), update, b); len(errs) > 0 {
		t.Errorf("the update is refused: %v", errs)
	}
}

// The eventing kinds use annotations of their own group.
func TestUserAnnotationsOfTheGroup(t *testing.T) {
	strategy, _ := registry.Strategies(broker.Resource(identity.Controllers{}, eventingv1.DefaultSettings), runtime.NewScheme())
	b := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "ns"}}
	strategy.PrepareForCreate(alice(), b)
	if got := b.Annotations["eventing.knative.dev/creator"]; got != "alice" {
		t.Errorf("creator = %q, want alice", got)
	}
}

// TestClusterScoped covers a kind without a status whose objects are in no namespace.
func TestClusterScoped(t *testing.T) {
	strategy, _ := registry.Strategies(clusterdomainclaim.Resource(identity.Controllers{}), runtime.NewScheme())
	if strategy.NamespaceScoped() || strategy.GetResetFields() != nil {
		t.Errorf("namespaced: %t, reset fields: %v", strategy.NamespaceScoped(), strategy.GetResetFields())
	}
	c := &networkingv1alpha1.ClusterDomainClaim{ObjectMeta: metav1.ObjectMeta{Name: "www.example.com"}, Spec: networkingv1alpha1.ClusterDomainClaimSpec{Namespace: "shop"}}
	strategy.PrepareForCreate(alice(), c)
	if errs := strategy.Validate(alice(), c); len(errs) > 0 {
		t.Error(errs)
	}
	moved := c.DeepCopy()
	moved.Spec.Namespace = "other"
	strategy.PrepareForUpdate(bob(), moved, c)
	if errs := strategy.ValidateUpdate(bob(), moved, c); len(errs) > 0 || moved.Generation != 2 {
		t.Errorf("generation %d, %v", moved.Generation, errs)
	}
}

// TestDomainMappingStrategy covers the creator, and the status, which users cannot set.
func TestDomainMappingStrategy(t *testing.T) {
	strategy, status := registry.Strategies(domainmapping.Resource(identity.Controllers{}, servingv1.DefaultSettings, "cluster.local"), runtime.NewScheme())
	m := &servingv1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "www.example.com"},
		Spec:       servingv1beta1.DomainMappingSpec{Ref: duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "hello"}},
		Status:     servingv1beta1.DomainMappingStatus{URL: "http://forged"},
	}
	strategy.PrepareForCreate(alice(), m)
	if errs := strategy.Validate(alice(), m); len(errs) > 0 {
		t.Error(errs)
	}
	if m.Status.URL != "" || m.Spec.Ref.Namespace != "shop" || m.Annotations["serving.knative.dev/creator"] != "alice" {
		t.Errorf("created: %+v", m)
	}
	changed := m.DeepCopy()
	changed.Spec.Ref.Name, changed.Status.URL = "other", "http://forged"
	strategy.PrepareForUpdate(bob(), changed, m)
	if changed.Generation != 2 || changed.Status.URL != "" || changed.Annotations["serving.knative.dev/lastModifier"] != "bob" ||
		changed.Annotations["serving.knative.dev/creator"] != "alice" {
		t.Errorf("changed: %+v", changed)
	}
	observed := m.DeepCopy()
	observed.Spec.Ref.Name, observed.Status.URL = "other", "http://www.example.com"
	status.PrepareForUpdate(bob(), observed, m)
	if observed.Spec.Ref.Name != "hello" || observed.Status.URL == "" {
		t.Errorf("observed: %+v", observed)
	}
}
