package v1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestValidateService covers serving 10.2-2.
func TestValidateService(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Service)
		want   []fault
	}{
		{name: "plain", change: func(*Service) {}},
		{
			name: "10.2-2: configurationName is not for Services",
			change: func(s *Service) {
				s.Spec.Traffic = []TrafficTarget{{ConfigurationName: "x", Percent: ptr.To[int64](100)}}
			},
			want: []fault{forbidden("spec.traffic[0].configurationName", "may not be set in a Service")},
		},
		{
			name: "all faults at once",
			change: func(s *Service) {
				s.Name = "Hello"
				s.Annotations = map[string]string{MinScaleAnnotationKey: "1"}
				s.Spec.Template.Annotations = map[string]string{MinScaleAnnotationKey: "x"}
				s.Spec.Template.Spec.NodeName = "n"
				s.Spec.Template.Spec.TimeoutSeconds = ptr.To[int64](-1)
				s.Spec.Template.Spec.Containers[0].Image = ""
				s.Spec.Traffic = []TrafficTarget{{Percent: ptr.To[int64](1), URL: "http://x"}}
			},
			want: []fault{
				invalid("metadata.name", ""),
				forbidden("metadata.annotations[autoscaling.knative.dev/min-scale]", ""),
				invalid("spec.template.metadata.annotations[autoscaling.knative.dev/min-scale]", ""),
				forbidden("spec.template.spec.nodeName", ""),
				invalid("spec.template.spec.timeoutSeconds", ""),
				required("spec.template.spec.containers[0].image", ""),
				forbidden("spec.traffic[0].url", ""),
				invalid("spec.traffic", "must sum to 100"),
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

func TestNothingIsNotAService(t *testing.T) {
	checkFaults(t, ValidateService(&Service{}, DefaultSettings()),
		required("metadata.name", ""), required("metadata.namespace", ""), required("spec.template.spec.containers", ""))
}

func TestOwnRevisionNameMustChangeWithTheTemplate(t *testing.T) {
	old := newService()
	old.Spec.Template.Name = "hello-v1"
	old.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
	SetDefaults_Service(old)
	for _, tc := range []struct {
		name   string
		change func(*Service)
		want   []string
	}{
		{name: "nothing changes", change: func(*Service) {}},
		{name: "traffic changes", change: func(s *Service) { s.Spec.Traffic[0].Tag = "a" }},
		{name: "name changes too", change: func(s *Service) {
			s.Spec.Template.Name = "hello-v2"
			s.Spec.Template.Spec.Containers[0].Image = "x"
		}},
		{name: "name removed", change: func(s *Service) {
			s.Spec.Template.Name = ""
			s.Spec.Template.Spec.Containers[0].Image = "x"
		}},
		{
			name:   "image changes",
			change: func(s *Service) { s.Spec.Template.Spec.Containers[0].Image = "x" },
			want: []string{
				"must change when the template changes (-old +new):\n",
				`-spec.containers[0].image: "registry.example.com/hello:v1"` + "\n", `+spec.containers[0].image: "x"`,
			},
		},
		{
			name: "variable and annotation change",
			change: func(s *Service) {
				s.Spec.Template.Spec.Containers[0].Env = nil
				s.Spec.Template.Annotations = map[string]string{WindowAnnotationKey: "10s"}
			},
			want: []string{`-spec.containers[0].env[0].name: "A"`, `+metadata.annotations[autoscaling.knative.dev/window]: "10s"`},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := old.DeepCopy()
			tc.change(s)
			c, oldC := newConfiguration(), newConfiguration()
			c.Spec, oldC.Spec = s.Spec.ConfigurationSpec, old.Spec.ConfigurationSpec
			got := ValidateServiceUpdate(s, old, DefaultSettings())
			gotC := ValidateConfigurationUpdate(c, oldC, DefaultSettings())
			if tc.want == nil {
				checkFaults(t, got)
				checkFaults(t, gotC)
				return
			}
			checkFaults(t, got, invalid("spec.template.metadata.name", tc.want[0]))
			checkFaults(t, gotC, invalid("spec.template.metadata.name", tc.want[0]))
			for _, part := range tc.want {
				if len(got) == 1 && !strings.Contains(got[0].Detail, part) {
					t.Errorf("detail %q lacks %q", got[0].Detail, part)
				}
			}
		})
	}
}

func TestUpdatesAreCheckedInFull(t *testing.T) {
	s := newService()
	s.Spec.Template.Spec.Containers[0].Image = ""
	SetDefaults_Service(s)
	want := required("spec.template.spec.containers[0].image", "")
	checkFaults(t, ValidateServiceUpdate(s, newService(), DefaultSettings()), want)
	checkFaults(t, ValidateServiceUpdate(s, s.DeepCopy(), DefaultSettings()), want)

	// An object that a later rule made invalid can still lose its finalizers.
	s.DeletionTimestamp = &metav1.Time{}
	checkFaults(t, ValidateServiceUpdate(s, s.DeepCopy(), DefaultSettings()))
	checkFaults(t, ValidateServiceUpdate(s, newService(), DefaultSettings()), want)
}
