package v1

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// fault is an expected field.Error.
type fault struct {
	kind field.ErrorType
	path string
	// message is a part of the detail.
	message string
}

func invalid(path, message string) fault   { return fault{field.ErrorTypeInvalid, path, message} }
func forbidden(path, message string) fault { return fault{field.ErrorTypeForbidden, path, message} }
func required(path, message string) fault  { return fault{field.ErrorTypeRequired, path, message} }
func duplicate(path string) fault          { return fault{field.ErrorTypeDuplicate, path, ""} }
func notFound(path string) fault           { return fault{field.ErrorTypeNotFound, path, ""} }
func notSupported(path, message string) fault {
	return fault{field.ErrorTypeNotSupported, path, message}
}

// checkFaults compares faults in any order: type and path exactly, the message by its part.
func checkFaults(t *testing.T, got field.ErrorList, want ...fault) {
	t.Helper()
	byPath := func(a, b fault) int {
		return strings.Compare(a.path+" "+string(a.kind), b.path+" "+string(b.kind))
	}
	want = slices.Clone(want)
	slices.SortStableFunc(want, byPath)
	var found []fault
	for _, err := range got {
		found = append(found, fault{err.Type, err.Field, err.Detail})
	}
	slices.SortStableFunc(found, byPath)
	for i := range found {
		if i < len(want) && strings.Contains(found[i].message, want[i].message) {
			found[i].message = want[i].message
		}
	}
	if diff := cmp.Diff(want, found, cmp.AllowUnexported(fault{})); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// newService returns a Service that is valid before defaulting.
func newService() *Service {
	return &Service{
		ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "default"},
		Spec: ServiceSpec{ConfigurationSpec: ConfigurationSpec{Template: RevisionTemplateSpec{
			Spec: RevisionSpec{PodSpec: corev1.PodSpec{
				Containers: []corev1.Container{{Image: "registry.example.com/hello:v1"}},
			}},
		}}},
	}
}

func newConfiguration() *Configuration {
	return &Configuration{ObjectMeta: newService().ObjectMeta, Spec: newService().Spec.ConfigurationSpec}
}

func newRoute() *Route {
	return &Route{ObjectMeta: newService().ObjectMeta}
}

func newRevision() *Revision {
	r := &Revision{ObjectMeta: newService().ObjectMeta, Spec: newService().Spec.Template.Spec}
	r.Name = "hello-00001"
	r.Spec.SetDefaults()
	return r
}

// controlledBy returns the owner reference of an object's controller.
func controlledBy(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: SchemeGroupVersion.String(), Kind: kind, Name: name, UID: "1", Controller: ptr.To(true),
	}}
}

// templateCase is a test of the spec of a Service's template.
type templateCase struct {
	name string
	// change modifies a valid spec before defaulting, tamper after it.
	change, tamper func(*RevisionSpec)
	features       func(*Features)
	// want has paths relative to spec.template.spec.
	want []fault
}

func runTemplateCases(t *testing.T, cases []templateCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			s, st := newService(), DefaultSettings()
			if tc.features != nil {
				tc.features(&st.Features)
			}
			if tc.change != nil {
				tc.change(&s.Spec.Template.Spec)
			}
			SetDefaults_Service(s)
			if tc.tamper != nil {
				tc.tamper(&s.Spec.Template.Spec)
			}
			want := slices.Clone(tc.want)
			for i := range want {
				want[i].path = "spec.template.spec." + want[i].path
			}
			checkFaults(t, ValidateService(s, st), want...)
		})
	}
}

// container returns a change of the only container.
func container(change func(*corev1.Container)) func(*RevisionSpec) {
	return func(s *RevisionSpec) { change(&s.Containers[0]) }
}
