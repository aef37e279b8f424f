package serving

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestPrivateRegistry covers images that require a password: with a pull secret of the Pod, or of its service account, the tag
// is resolved and the image runs; without one the Revision reports the kubelet's reason.
func TestPrivateRegistry(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "private", nil)
	image, err := s.PrivateAppImage()
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "pull"},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: s.DockerConfig()},
	})
	secrets := []corev1.LocalObjectReference{{Name: "pull"}}
	s.apply(t, &corev1.ServiceAccount{
		TypeMeta:         metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta:       metav1.ObjectMeta{Namespace: s.namespace, Name: "puller"},
		ImagePullSecrets: secrets,
	})
	private := container(func(c *corev1.Container) { c.Image = image })
	for name, change := range map[string]option{
		"by-pod":     pod(func(spec *corev1.PodSpec) { spec.ImagePullSecrets = secrets }),
		"by-account": pod(func(spec *corev1.PodSpec) { spec.ServiceAccountName = "puller" }),
	} {
		t.Run(name, func(t *testing.T) {
			service := s.deploy(t, s.app(name, private, change))
			if got := s.get(t, service.Status.URL); got != "Hello World!\n" {
				t.Errorf("it answers %q", got)
			}
			repository, _, _ := strings.Cut(image, ":v1")
			if got := s.revision(t, service).Status.ContainerStatuses; len(got) != 1 || !strings.HasPrefix(got[0].ImageDigest, repository+"@sha256:") {
				t.Errorf("status.containerStatuses is %+v, want a digest", got)
			}
		})
	}
	t.Run("without", func(t *testing.T) {
		s.apply(t, s.app("without", private))
		eventually(t, s.Admin.Knative.ServingV1().Services(s.namespace), "without", "reports that the image cannot be fetched", func(service *servingv1.Service) error {
			ready := service.Status.Conditions.Get(duckv1.ConditionReady)
			if ready == nil || ready.Status != corev1.ConditionFalse || !strings.Contains(ready.Message, "Unable to fetch image \""+image) {
				return fmt.Errorf("its conditions are %+v", service.Status.Conditions)
			}
			return nil
		})
	})
}
