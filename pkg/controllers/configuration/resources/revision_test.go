package resources

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Names are the user's, or made from name and generation, and valid in any case (serving 7.2-3).
func TestRevisionName(t *testing.T) {
	long := strings.Repeat("a", 53) + "-bcdefghi"
	for name, test := range map[string]struct {
		configuration, template string
		generation              int64
		want                    string
	}{
		"chosen":          {"hello", "hello-blue", 7, "hello-blue"},
		"generated":       {"hello", "", 7, "hello-00007"},
		"six digits":      {"hello", "", 123456, "hello-123456"},
		"just fits":       {strings.Repeat("a", 57), "", 1, strings.Repeat("a", 57) + "-00001"},
		"does not fit":    {long, "", 1, strings.Repeat("a", 48) + "-06ecfd9f-00001"},
		"dash at the cut": {strings.Repeat("a", 47) + "-" + strings.Repeat("b", 15), "", 1, strings.Repeat("a", 47) + "-6500aaf9-00001"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Name: test.configuration, Generation: test.generation}}
			c.Spec.Template.Name = test.template
			got := RevisionName(c)
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if faults := validation.IsDNS1035Label(got); len(faults) > 0 {
				t.Errorf("%q: %v", got, faults)
			}
		})
	}
}

// A Revision has its template's metadata and spec, and labels of its origin (serving 7.2-4, 9.2.1-3,
// 9.2.1-4), but not the Configuration's metadata (serving 7.2-6, 9.2.1-1).
func TestRevision(t *testing.T) {
	c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "hello", UID: "uid", Generation: 3,
		Labels:      map[string]string{"own": "x", servingv1.ServiceLabelKey: "hello"},
		Annotations: map[string]string{"own": "x", servingv1.CreatorAnnotationKey: "jane", servingv1.LastModifierAnnotationKey: "joe"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "hello", UID: "service-uid", Controller: ptr.To(true),
		}},
	}}
	c.Spec.Template.Labels = map[string]string{"team": "a", servingv1.ConfigurationLabelKey: "forged"}
	c.Spec.Template.Annotations = map[string]string{servingv1.MinScaleAnnotationKey: "1"}
	c.Spec.Template.Spec.Containers = []corev1.Container{{Name: "user-container", Image: "hello"}}
	want := &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "hello-00003",
			Labels: map[string]string{
				"team":                                        "a",
				"serving.knative.dev/configuration":           "hello",
				"serving.knative.dev/configurationUID":        "uid",
				"serving.knative.dev/configurationGeneration": "3",
				"serving.knative.dev/service":                 "hello",
				"serving.knative.dev/serviceUID":              "service-uid",
				"serving.knative.dev/routingState":            "pending",
			},
			Annotations: map[string]string{
				"autoscaling.knative.dev/min-scale":        "1",
				"serving.knative.dev/routingStateModified": "2026-03-01T12:00:00Z",
				"serving.knative.dev/creator":              "joe",
				"serving.knative.dev/lastModifier":         "joe",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "serving.knative.dev/v1", Kind: "Configuration", Name: "hello", UID: "uid",
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: c.Spec.Template.Spec,
	}
	now := time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("CET", 3600))
	if diff := cmp.Diff(want, Revision(c, now)); diff != "" {
		t.Errorf("Revision (-want +got):\n%s", diff)
	}
}
