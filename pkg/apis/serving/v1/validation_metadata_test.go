package v1

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestNamesAreDNS1035Labels(t *testing.T) {
	const label = "must consist of lower case alphanumeric characters or '-', start with an alphabetic character"
	for _, tc := range []struct {
		name string
		meta metav1.ObjectMeta
		want []fault
	}{
		{name: "good", meta: metav1.ObjectMeta{Name: "a-1", Namespace: "default"}},
		{name: "starts with a digit", meta: metav1.ObjectMeta{Name: "1a", Namespace: "default"}, want: []fault{invalid("metadata.name", label)}},
		{name: "dots", meta: metav1.ObjectMeta{Name: "a.b", Namespace: "default"}, want: []fault{invalid("metadata.name", label)}},
		{name: "too long", meta: metav1.ObjectMeta{Name: strings.Repeat("a", 64), Namespace: "default"}, want: []fault{invalid("metadata.name", "63")}},
		{name: "none", meta: metav1.ObjectMeta{Namespace: "default"}, want: []fault{required("metadata.name", "")}},
		{name: "no namespace", meta: metav1.ObjectMeta{Name: "a"}, want: []fault{required("metadata.namespace", "")}},
		{
			name: "good prefix", meta: metav1.ObjectMeta{Name: "a-x7f", GenerateName: "a-", Namespace: "default"},
		},
		{
			name: "bad prefix", meta: metav1.ObjectMeta{Name: "a", GenerateName: "A_", Namespace: "default"},
			want: []fault{invalid("metadata.generateName", label)},
		},
		{
			name: "invalid label and annotation",
			meta: metav1.ObjectMeta{
				Name: "a", Namespace: "default",
				Labels: map[string]string{"a b": "c"}, Annotations: map[string]string{"c d": ""},
			},
			want: []fault{invalid("metadata.labels", ""), invalid("metadata.annotations", "")},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, c, r, rev := newService(), newConfiguration(), newRoute(), newRevision()
			s.ObjectMeta, c.ObjectMeta, r.ObjectMeta, rev.ObjectMeta = tc.meta, tc.meta, tc.meta, tc.meta
			SetDefaults_Service(s)
			SetDefaults_Configuration(c)
			r.Spec.Traffic = []TrafficTarget{{ConfigurationName: "a", Percent: ptr.To[int64](100)}}
			checkFaults(t, ValidateService(s, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateConfiguration(c, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateRoute(r, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateRevision(rev, DefaultSettings()), tc.want...)
		})
	}
}

func TestAnnotationsOnTheObjectItself(t *testing.T) {
	const path = "metadata.annotations"
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		want        []fault
	}{
		{name: "others", annotations: map[string]string{"example.com/a": "b", "autoscaling.knative.dev.example.com/a": "b"}},
		{
			name: "autoscaling belongs on the template, known or not",
			annotations: map[string]string{
				"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/anything": "x",
			},
			want: []fault{
				forbidden(path+"[autoscaling.knative.dev/min-scale]", "must be put under spec.template.metadata.annotations"),
				forbidden(path+"[autoscaling.knative.dev/anything]", "must be put under spec.template.metadata.annotations"),
			},
		},
		{name: "durations", annotations: map[string]string{RolloutDurationAnnotationKey: "10m", ProgressDeadlineAnnotationKey: "0s"}},
		{name: "callers by permission", annotations: map[string]string{InvocationAnnotationKey: "rbac"}},
		{name: "all callers", annotations: map[string]string{InvocationAnnotationKey: "open"}},
		{
			name:        "unknown callers",
			annotations: map[string]string{InvocationAnnotationKey: "RBAC"},
			want:        []fault{{field.ErrorTypeNotSupported, path + "[serving.knative.dev/invocation]", `supported values: "open", "rbac"`}},
		},
		{
			name:        "bad durations",
			annotations: map[string]string{RolloutDurationAnnotationKey: "10", ProgressDeadlineAnnotationKey: "-1s"},
			want: []fault{
				invalid(path+"[serving.knative.dev/rollout-duration]", "must be a duration"),
				invalid(path+"[serving.knative.dev/progress-deadline]", "must be greater than or equal to 0s"),
			},
		},
		{
			name:        "precision",
			annotations: map[string]string{RolloutDurationAnnotationKey: "1.5s", ProgressDeadlineAnnotationKey: "100ms"},
			want: []fault{
				invalid(path+"[serving.knative.dev/rollout-duration]", "whole seconds"),
				invalid(path+"[serving.knative.dev/progress-deadline]", "whole seconds"),
			},
		},
		{
			name:        "older spelling",
			annotations: map[string]string{"serving.knative.dev/rolloutDuration": "soon"},
			want:        []fault{invalid(path+"[serving.knative.dev/rolloutDuration]", "must be a duration")},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, c, r := newService(), newConfiguration(), newRoute()
			s.Annotations, c.Annotations, r.Annotations = tc.annotations, tc.annotations, tc.annotations
			SetDefaults_Service(s)
			SetDefaults_Configuration(c)
			SetDefaults_Route(r)
			checkFaults(t, ValidateService(s, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateServiceUpdate(s, s, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateConfiguration(c, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateConfigurationUpdate(c, c, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateRoute(r, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateRouteUpdate(r, r, DefaultSettings()), tc.want...)
		})
	}
}

// serving 9.1.1-2: the label names the owner of a Configuration or Route, so only the owner may set it.
func TestOwnerLabels(t *testing.T) {
	wrongGroup := controlledBy("Service", "hello")
	wrongGroup[0].APIVersion = "v1"
	notController := controlledBy("Service", "hello")
	notController[0].Controller = nil
	const path, message = "metadata.labels[serving.knative.dev/service]", "may only name the Service that controls this object"
	for _, tc := range []struct {
		name   string
		value  string
		owners []metav1.OwnerReference
		want   []fault
	}{
		{name: "owned", value: "hello", owners: controlledBy("Service", "hello")},
		{name: "no owner", value: "hello", want: []fault{invalid(path, message)}},
		{name: "other name", value: "other", owners: controlledBy("Service", "hello"), want: []fault{invalid(path, message)}},
		{name: "other kind", value: "hello", owners: controlledBy("Route", "hello"), want: []fault{invalid(path, message)}},
		{name: "core Service", value: "hello", owners: wrongGroup, want: []fault{invalid(path, message)}},
		{name: "owner without control", value: "hello", owners: notController, want: []fault{invalid(path, message)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, r := newConfiguration(), newRoute()
			c.Labels = map[string]string{ServiceLabelKey: tc.value}
			c.OwnerReferences = tc.owners
			r.ObjectMeta = *c.ObjectMeta.DeepCopy()
			SetDefaults_Configuration(c)
			SetDefaults_Route(r)
			checkFaults(t, ValidateConfiguration(c, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateRoute(r, DefaultSettings()), tc.want...)

			unlabelled := c.DeepCopy()
			unlabelled.Labels = nil
			checkFaults(t, ValidateConfigurationUpdate(c, unlabelled, DefaultSettings()), tc.want...)
			// An unchanged label may outlive its owner; otherwise orphaning would be impossible.
			checkFaults(t, ValidateConfigurationUpdate(c, c.DeepCopy(), DefaultSettings()))
		})
	}
}

// serving 9.2.1-3
func TestRevisionOwnerLabel(t *testing.T) {
	r := newRevision()
	r.Labels = map[string]string{ConfigurationLabelKey: "hello"}
	want := invalid("metadata.labels[serving.knative.dev/configuration]", "may only name the Configuration")
	checkFaults(t, ValidateRevision(r, DefaultSettings()), want)
	unlabelled := r.DeepCopy()
	unlabelled.Labels = nil
	checkFaults(t, ValidateRevisionUpdate(r, unlabelled), want)
	checkFaults(t, ValidateRevisionUpdate(r, r.DeepCopy()))

	r.OwnerReferences = controlledBy("Configuration", "hello")
	checkFaults(t, ValidateRevision(r, DefaultSettings()))
}

func TestVisibility(t *testing.T) {
	for value, want := range map[string][]fault{
		"cluster-local": nil,
		"private":       {notSupported("metadata.labels[networking.knative.dev/visibility]", `"cluster-local"`)},
	} {
		s, r := newService(), newRoute()
		s.Labels = map[string]string{"networking.knative.dev/visibility": value}
		r.Labels = s.Labels
		SetDefaults_Service(s)
		SetDefaults_Route(r)
		checkFaults(t, ValidateService(s, DefaultSettings()), want...)
		checkFaults(t, ValidateRoute(r, DefaultSettings()), want...)
	}
}

func TestWhoMadeAndChangedAnObject(t *testing.T) {
	const creator, modifier = "serving.knative.dev/creator", "serving.knative.dev/lastModifier"
	old := newService()
	old.Annotations = map[string]string{creator: "ann", modifier: "ann"}
	SetDefaults_Service(old)
	for _, tc := range []struct {
		name   string
		change func(*Service)
		want   []fault
	}{
		{name: "nothing", change: func(*Service) {}},
		{
			name:   "creator",
			change: func(s *Service) { s.Annotations[creator] = "bob" },
			want:   []fault{invalid("metadata.annotations[serving.knative.dev/creator]", "immutable")},
		},
		{
			name:   "creator dropped",
			change: func(s *Service) { delete(s.Annotations, creator) },
			want:   []fault{invalid("metadata.annotations[serving.knative.dev/creator]", "immutable")},
		},
		{
			name:   "modifier alone",
			change: func(s *Service) { s.Annotations[modifier] = "bob" },
			want:   []fault{invalid("metadata.annotations[serving.knative.dev/lastModifier]", "may not change unless the spec changes")},
		},
		{
			name: "modifier with the spec",
			change: func(s *Service) {
				s.Annotations[modifier] = "bob"
				s.Spec.Template.Spec.ContainerConcurrency = ptr.To[int64](1)
			},
		},
		{
			name: "an owned object has its owner's annotations",
			change: func(s *Service) {
				s.OwnerReferences = controlledBy("Configuration", "x")
				s.Annotations[creator], s.Annotations[modifier] = "bob", "bob"
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := old.DeepCopy()
			tc.change(s)
			checkFaults(t, ValidateServiceUpdate(s, old, DefaultSettings()), tc.want...)
		})
	}
}

func TestOwnRevisionName(t *testing.T) {
	const path = "spec.template.metadata."
	for _, tc := range []struct {
		name   string
		change func(*Service)
		want   []fault
	}{
		{name: "prefixed", change: func(s *Service) { s.Spec.Template.Name = "hello-v1" }},
		{name: "not prefixed", change: func(s *Service) { s.Spec.Template.Name = "v1" }, want: []fault{invalid(path+"name", "must start with 'hello-'")}},
		{name: "the object's name", change: func(s *Service) { s.Spec.Template.Name = "hello" }, want: []fault{invalid(path+"name", "must start with 'hello-'")}},
		{name: "not a label", change: func(s *Service) { s.Spec.Template.Name = "hello-V1" }, want: []fault{invalid(path+"name", "lower case")}},
		{name: "no suffix after the dash", change: func(s *Service) { s.Spec.Template.Name = "hello-" }, want: []fault{invalid(path+"name", "end with an alphanumeric")}},
		{
			name:   "object with a generated name",
			change: func(s *Service) { s.GenerateName, s.Name, s.Spec.Template.Name = "hello-", "hello-x7f", "hello-v1" },
			want:   []fault{forbidden(path+"name", "may not be set when metadata.generateName")},
		},
		{
			name:   "both name and prefix of the object",
			change: func(s *Service) { s.GenerateName, s.Spec.Template.Name = "hel", "hello-v1" },
		},
		{
			name:   "with a prefix of the revision",
			change: func(s *Service) { s.Spec.Template.Name, s.Spec.Template.GenerateName = "hello-v1", "hello-" },
			want:   []fault{forbidden(path+"name", "may not be set together with generateName")},
		},
		{name: "bad prefix", change: func(s *Service) { s.Spec.Template.GenerateName = "Hello-" }, want: []fault{invalid(path+"generateName", "lower case")}},
		{
			name: "invalid labels and annotations",
			change: func(s *Service) {
				s.Spec.Template.Labels = map[string]string{"a": "not a value"}
				s.Spec.Template.Annotations = map[string]string{"not a key": "", ProgressDeadlineAnnotationKey: "x"}
			},
			want: []fault{
				invalid(path+"labels", ""), invalid(path+"annotations", ""),
				invalid(path+"annotations[serving.knative.dev/progress-deadline]", "must be a duration"),
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newService()
			tc.change(s)
			SetDefaults_Service(s)
			checkFaults(t, ValidateService(s, DefaultSettings()), tc.want...)
		})
	}
}

// Once the generated name is known, a revision name can begin with it.
func TestOwnRevisionNameAfterNameGeneration(t *testing.T) {
	old := newService()
	old.Name, old.GenerateName = "hello-x7f", "hello-"
	SetDefaults_Service(old)
	s := old.DeepCopy()
	s.Spec.Template.Name = "hello-x7f-v1"
	checkFaults(t, ValidateServiceUpdate(s, old, DefaultSettings()))
	s.Spec.Template.Name = "hello-v1"
	checkFaults(t, ValidateServiceUpdate(s, old, DefaultSettings()), invalid("spec.template.metadata.name", "must start with 'hello-x7f-'"))
}
