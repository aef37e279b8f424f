package resources

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

func service() *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "hello", UID: "uid",
		Labels: map[string]string{"team": "a"},
		Annotations: map[string]string{
			"note":                                       "x",
			corev1.LastAppliedConfigAnnotation:           "{}",
			servingv1.RolloutDurationAnnotationKey:       "90s",
			servingv1.InvocationAnnotationKey:            servingv1.InvocationRBAC,
			servingv1.RolloutDurationLegacyAnnotationKey: "90s",
			servingv1.LastModifierAnnotationKey:          "joe",
		},
	}}
	s.Spec.Template.Annotations = map[string]string{servingv1.MinScaleAnnotationKey: "1"}
	s.Spec.Template.Spec.Containers = []corev1.Container{{Image: "hello"}}
	s.Spec.Traffic = []servingv1.TrafficTarget{
		{LatestRevision: ptr.To(true), Percent: ptr.To[int64](90)},
		{RevisionName: "hello-00001", LatestRevision: ptr.To(false), Percent: ptr.To[int64](10), Tag: "old"},
	}
	return s
}

// Labels and annotations are copied, except for kubectl's, and the label of the Service is added (serving 7.1-2
// to 7.1-4, 9.1.1-1, 9.1.1-2). Annotations about rollouts are copied to the Route only.
func TestMetadata(t *testing.T) {
	labels := map[string]string{"team": "a", servingv1.ServiceLabelKey: "hello"}
	for name, test := range map[string]struct {
		meta        metav1.ObjectMeta
		annotations map[string]string
	}{
		"Configuration": {Configuration(service()).ObjectMeta, map[string]string{
			"note":                              "x",
			servingv1.LastModifierAnnotationKey: "joe",
		}},
		"Route": {Route(service()).ObjectMeta, map[string]string{
			"note":                                       "x",
			servingv1.LastModifierAnnotationKey:          "joe",
			servingv1.RolloutDurationAnnotationKey:       "90s",
			servingv1.InvocationAnnotationKey:            servingv1.InvocationRBAC,
			servingv1.RolloutDurationLegacyAnnotationKey: "90s",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := metav1.ObjectMeta{
				Namespace: "default", Name: "hello", Labels: labels, Annotations: test.annotations,
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "hello", UID: "uid",
					Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
				}},
			}
			if diff := cmp.Diff(want, test.meta); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
		})
	}
}

// The template is the Configuration's, the traffic the Route's (serving 9.1.2-1, 9.1.2-2).
func TestSpec(t *testing.T) {
	s := service()
	if diff := cmp.Diff(s.Spec.ConfigurationSpec, Configuration(s).Spec); diff != "" {
		t.Errorf("Configuration (-want +got):\n%s", diff)
	}
	want := []servingv1.TrafficTarget{
		{ConfigurationName: "hello", LatestRevision: ptr.To(true), Percent: ptr.To[int64](90)},
		{RevisionName: "hello-00001", LatestRevision: ptr.To(false), Percent: ptr.To[int64](10), Tag: "old"},
	}
	if diff := cmp.Diff(want, Route(s).Spec.Traffic); diff != "" {
		t.Errorf("traffic (-want +got):\n%s", diff)
	}
	s.Spec.Traffic = nil
	want = []servingv1.TrafficTarget{{ConfigurationName: "hello", LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)}}
	if diff := cmp.Diff(want, Route(s).Spec.Traffic); diff != "" {
		t.Errorf("no traffic (-want +got):\n%s", diff)
	}
}

// Creating or updating children does not change the Service, which listers share.
func TestNoSharing(t *testing.T) {
	s := service()
	c, r := Configuration(s), Route(s)
	UpdateConfiguration(c, s).Spec.Template.Annotations["x"] = "y"
	c.Labels["x"], c.Annotations["x"], c.Spec.Template.Annotations["x"] = "y", "y", "y"
	c.Spec.Template.Spec.Containers[0].Image = "y"
	r.Labels["x"], r.Annotations["x"] = "y", "y"
	r.Spec.Traffic[0].Tag = "y"
	if diff := cmp.Diff(service(), s); diff != "" {
		t.Errorf("the Service changed (-want +got):\n%s", diff)
	}
}
