package v1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// chosen returns settings in which each default of a template differs from the built-in one.
func chosen() Settings {
	st := DefaultSettings()
	st.TimeoutSeconds, st.ResponseStartTimeoutSeconds, st.IdleTimeoutSeconds = 120, 60, 30
	st.ContainerConcurrency = 5
	st.Requests = resources("cpu", "400m", "memory", "64Mi")
	st.Limits = resources("cpu", "1")
	st.EnableServiceLinks = ptr.To(true)
	return st
}

// create completes a new Service as the registry does.
func create(s *Service, st Settings) {
	s.Spec.Template.Spec.SetCreateDefaults(&s.ObjectMeta, st)
	SetDefaults_Service(s)
}

func createConfiguration(c *Configuration, st Settings) {
	c.Spec.Template.Spec.SetCreateDefaults(&c.ObjectMeta, st)
	SetDefaults_Configuration(c)
}

func resources(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func TestDefaultsBySettings(t *testing.T) {
	s := newService()
	s.Spec.Template.Spec.InitContainers = []corev1.Container{{Image: "registry.example.com/init"}}
	create(s, chosen())
	want := RevisionSpec{
		PodSpec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init-container", Image: "registry.example.com/init"}},
			Containers: []corev1.Container{{
				Name:  "user-container",
				Image: "registry.example.com/hello:v1",
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:     corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}},
					SuccessThreshold: 1,
				},
				Resources: corev1.ResourceRequirements{Requests: resources("cpu", "400m", "memory", "64Mi"), Limits: resources("cpu", "1")},
			}},
			EnableServiceLinks: ptr.To(true),
		},
		ContainerConcurrency:        ptr.To[int64](5),
		TimeoutSeconds:              ptr.To[int64](120),
		ResponseStartTimeoutSeconds: ptr.To[int64](60),
		IdleTimeoutSeconds:          ptr.To[int64](30),
	}
	if diff := cmp.Diff(want, s.Spec.Template.Spec); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	c := newConfiguration()
	c.Spec.Template.Spec.InitContainers = []corev1.Container{{Image: "registry.example.com/init"}}
	createConfiguration(c, chosen())
	if diff := cmp.Diff(want, c.Spec.Template.Spec); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if faults := ValidateService(s, chosenWithInitContainers()); len(faults) > 0 {
		t.Errorf("defaults are not valid: %v", faults)
	}
}

func chosenWithInitContainers() Settings {
	st := chosen()
	st.Features.InitContainers = true
	return st
}

// Values in a template stay, and defaults that contradict them are ignored.
func TestDefaultsDoNotContradict(t *testing.T) {
	st := chosen()
	for _, tc := range []struct {
		name     string
		in, want corev1.ResourceRequirements
	}{
		{
			name: "limit below the default request",
			in:   corev1.ResourceRequirements{Limits: resources("cpu", "100m", "memory", "1Gi")},
			want: corev1.ResourceRequirements{Limits: resources("cpu", "100m", "memory", "1Gi"), Requests: resources("memory", "64Mi")},
		},
		{
			name: "request above the default limit",
			in:   corev1.ResourceRequirements{Requests: resources("cpu", "2")},
			want: corev1.ResourceRequirements{Requests: resources("cpu", "2", "memory", "64Mi")},
		},
		{
			name: "other resources",
			in:   corev1.ResourceRequirements{Requests: resources("ephemeral-storage", "1Gi")},
			want: corev1.ResourceRequirements{Requests: resources("ephemeral-storage", "1Gi", "cpu", "400m", "memory", "64Mi"), Limits: resources("cpu", "1")},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newService()
			s.Spec.Template.Spec.Containers[0].Resources = tc.in
			create(s, st)
			if diff := cmp.Diff(tc.want, s.Spec.Template.Spec.Containers[0].Resources); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
			if faults := ValidateService(s, st); len(faults) > 0 {
				t.Errorf("defaults are not valid: %v", faults)
			}
		})
	}

	s := newService()
	s.Spec.Template.Spec.TimeoutSeconds = ptr.To[int64](0)
	create(s, st)
	if got := *s.Spec.Template.Spec.TimeoutSeconds; got != 120 {
		t.Errorf("timeoutSeconds 0 becomes %d, want the default (serving 9.4.2-3)", got)
	}
	s = newService()
	s.Spec.Template.Spec.TimeoutSeconds = ptr.To[int64](40)
	create(s, st)
	if got := s.Spec.Template.Spec; got.ResponseStartTimeoutSeconds != nil || *got.IdleTimeoutSeconds != 30 {
		t.Errorf("of 40 s, the first byte may take %v, silence %v", got.ResponseStartTimeoutSeconds, got.IdleTimeoutSeconds)
	}
	if _, there := st.Requests["ephemeral-storage"]; there || len(st.Limits) != 1 {
		t.Error("the settings changed")
	}
}

// An operator may select the host's default for service links.
func TestServiceLinksOfTheHost(t *testing.T) {
	st := DefaultSettings()
	st.EnableServiceLinks = nil
	s := newService()
	create(s, st)
	if got := s.Spec.Template.Spec.EnableServiceLinks; got != nil {
		t.Errorf("enableServiceLinks is %v", *got)
	}
}

// Later settings do not change a template, regardless of other changes in an update; they apply to its empty fields
// once the template changes. It covers conventions Late Initialization-1.
func TestUpdatesUnderOtherSettings(t *testing.T) {
	for _, tc := range []struct {
		name    string
		created Settings
		now     Settings
		edit    func(*Service)
		want    func(*RevisionSpec)
	}{
		{
			name: "labels of the Service", created: DefaultSettings(), now: chosen(),
			edit: func(s *Service) { s.Labels = map[string]string{"a": "b"} },
			want: func(*RevisionSpec) {},
		},
		{
			name: "traffic", created: DefaultSettings(), now: chosen(),
			edit: func(s *Service) {
				s.Spec.Traffic = []TrafficTarget{{RevisionName: "hello-00001", Percent: percent(100)}}
			},
			want: func(*RevisionSpec) {},
		},
		{
			name: "traffic, back to the defaults", created: chosen(), now: DefaultSettings(),
			edit: func(s *Service) { s.Spec.Traffic = nil },
			want: func(*RevisionSpec) {},
		},
		{
			name: "service links omitted", created: chosen(), now: DefaultSettings(),
			edit: func(s *Service) { s.Spec.Template.Spec.EnableServiceLinks = nil },
			want: func(*RevisionSpec) {},
		},
		{
			name: "another image", created: DefaultSettings(), now: chosen(),
			edit: func(s *Service) { s.Spec.Template.Spec.Containers[0].Image = "registry.example.com/hello:v2" },
			want: func(s *RevisionSpec) {
				// Earlier defaults are kept; empty fields get current defaults.
				s.Containers[0].Image = "registry.example.com/hello:v2"
				s.Containers[0].Resources = corev1.ResourceRequirements{Requests: resources("cpu", "400m", "memory", "64Mi"), Limits: resources("cpu", "1")}
				s.ResponseStartTimeoutSeconds, s.IdleTimeoutSeconds = ptr.To[int64](60), ptr.To[int64](30)
			},
		},
		{
			name: "an omitted field gets the current default", created: DefaultSettings(), now: chosen(),
			edit: func(s *Service) { s.Spec.Template.Spec.TimeoutSeconds = nil },
			want: func(s *RevisionSpec) {
				s.TimeoutSeconds, s.ResponseStartTimeoutSeconds, s.IdleTimeoutSeconds = ptr.To[int64](120), ptr.To[int64](60), ptr.To[int64](30)
				s.Containers[0].Resources = corev1.ResourceRequirements{Requests: resources("cpu", "400m", "memory", "64Mi"), Limits: resources("cpu", "1")}
			},
		},
		{
			name: "0 is the default", created: DefaultSettings(), now: DefaultSettings(),
			edit: func(s *Service) { s.Spec.Template.Spec.TimeoutSeconds = ptr.To[int64](0) },
			want: func(*RevisionSpec) {},
		},
		{
			name: "the manifest again", created: chosen(), now: chosen(),
			edit: func(s *Service) { s.Spec = newService().Spec },
			want: func(*RevisionSpec) {},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old := newService()
			create(old, tc.created)
			s := old.DeepCopy()
			tc.edit(s)
			s.Spec.Template.SetUpdateDefaults(&old.Spec.Template, &s.ObjectMeta, tc.now)
			SetDefaults_Service(s)
			want := old.Spec.Template.Spec.DeepCopy()
			tc.want(want)
			if diff := cmp.Diff(want, &s.Spec.Template.Spec, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("service (-want +got):\n%s", diff)
			}
			c, oldC := &Configuration{ObjectMeta: s.ObjectMeta}, &Configuration{ObjectMeta: old.ObjectMeta, Spec: old.Spec.ConfigurationSpec}
			edited := old.DeepCopy()
			tc.edit(edited)
			c.Spec = edited.Spec.ConfigurationSpec
			c.Spec.Template.SetUpdateDefaults(&oldC.Spec.Template, &c.ObjectMeta, tc.now)
			SetDefaults_Configuration(c)
			if diff := cmp.Diff(want, &c.Spec.Template.Spec, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

// Copies of a template by controllers stay unchanged, regardless of the current settings (serving 10.3-1).
func TestCopiesOfTemplatesStayCopies(t *testing.T) {
	for name, created := range map[string]Settings{"defaults": DefaultSettings(), "links of the host": {Features: DefaultFeatures(), TimeoutSeconds: 1}} {
		s := newService()
		create(s, created)
		c := newConfiguration()
		c.OwnerReferences = controlledBy("Service", "hello")
		c.Spec = *s.Spec.ConfigurationSpec.DeepCopy()
		createConfiguration(c, chosen())
		if diff := cmp.Diff(s.Spec.ConfigurationSpec, c.Spec); diff != "" {
			t.Errorf("%s: configuration (-want +got):\n%s", name, diff)
		}
		c.Spec.Template.Spec.Containers[0].Image = "registry.example.com/hello:v2"
		want := c.Spec.DeepCopy()
		c.Spec.Template.SetUpdateDefaults(&s.Spec.Template, &c.ObjectMeta, chosen())
		if diff := cmp.Diff(want, &c.Spec); diff != "" {
			t.Errorf("%s: updated configuration (-want +got):\n%s", name, diff)
		}
		r := &Revision{ObjectMeta: metav1.ObjectMeta{Name: "hello-00001", OwnerReferences: controlledBy("Configuration", "hello")}}
		r.Spec = *s.Spec.Template.Spec.DeepCopy()
		r.Spec.SetCreateDefaults(&r.ObjectMeta, chosen())
		if diff := cmp.Diff(s.Spec.Template.Spec, r.Spec); diff != "" {
			t.Errorf("%s: revision (-want +got):\n%s", name, diff)
		}
	}
}

// A Service with another controller, such as an event source, is not a copy.
func TestServicesOfOtherControllersGetDefaults(t *testing.T) {
	s := newService()
	s.OwnerReferences = controlledBy("Function", "hello")
	s.OwnerReferences[0].APIVersion = "functions.example.com/v1"
	create(s, chosen())
	if got := *s.Spec.Template.Spec.TimeoutSeconds; got != 120 {
		t.Errorf("timeoutSeconds is %d", got)
	}
}

// Decoding only applies settings to fields that are never stored empty: stored objects do not change because a
// setting did.
func TestDecodingBySettings(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	RegisterSettings(scheme, chosen)
	services, configurations := &ServiceList{Items: []Service{*newService()}}, &ConfigurationList{Items: []Configuration{*newConfiguration()}}
	s, c := newService(), newConfiguration()
	for _, obj := range []runtime.Object{s, c, services, configurations} {
		scheme.Default(obj)
	}
	want := newService()
	SetDefaults_Service(want)
	want.Spec.Template.Spec.ContainerConcurrency, want.Spec.Template.Spec.TimeoutSeconds = ptr.To[int64](5), ptr.To[int64](120)
	for name, got := range map[string]ConfigurationSpec{
		"service": s.Spec.ConfigurationSpec, "configuration": c.Spec,
		"services": services.Items[0].Spec.ConfigurationSpec, "configurations": configurations.Items[0].Spec,
	} {
		if diff := cmp.Diff(want.Spec.ConfigurationSpec, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(want.Spec.Traffic, s.Spec.Traffic); diff != "" {
		t.Errorf("traffic (-want +got):\n%s", diff)
	}
}

// containerConcurrency is bounded by the operator's limit (serving 9.4.2-4).
func TestValidateConcurrencyBySettings(t *testing.T) {
	const refused = "because allow-container-concurrency-zero in config-defaults is off"
	for _, tc := range []struct {
		n         int64
		max       int64
		allowZero bool
		want      string
	}{
		{n: 0, max: 10, allowZero: true},
		{n: 0, max: 10, want: "must be between 1 and 10, inclusive, " + refused},
		{n: 10, max: 10},
		{n: 11, max: 10, want: "must be between 0 and 10, inclusive"},
		{n: 2000, max: 5000},
	} {
		st := DefaultSettings()
		st.MaxContainerConcurrency, st.AllowZeroContainerConcurrency = tc.max, tc.allowZero
		s := newService()
		s.Spec.Template.Spec.ContainerConcurrency = &tc.n
		create(s, st)
		faults := ValidateService(s, st)
		switch {
		case tc.want == "" && len(faults) > 0:
			t.Errorf("%d of %d: %v", tc.n, tc.max, faults)
		case tc.want != "" && (len(faults) != 1 || faults[0].Detail != tc.want || faults[0].Field != "spec.template.spec.containerConcurrency"):
			t.Errorf("%d of %d: got %v, want %q", tc.n, tc.max, faults, tc.want)
		}
	}
}

func TestValidateMaxScaleBySettings(t *testing.T) {
	st := DefaultSettings()
	st.MaxScaleLimit = 5
	for value, ok := range map[string]bool{"1": true, "5": true, "6": false, "0": false} {
		s := newService()
		s.Spec.Template.Annotations = map[string]string{MaxScaleAnnotationKey: value}
		create(s, st)
		faults := ValidateService(s, st)
		if ok != (len(faults) == 0) {
			t.Errorf("max-scale %s: %v", value, faults)
		}
		if !ok && faults[0].Detail != "must be between 1 and 5, inclusive, because of max-scale-limit in config-autoscaler" {
			t.Errorf("max-scale %s: %v", value, faults)
		}
	}
}
