package failures

import (
	"context"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// aPod is a Pod of the sample application.
func (s *space) aPod(labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: s.newService("").Spec.Template.Spec.Containers},
	}
}

// TestPolicy checks policies of the host that reject the Pods of Revisions: the template is rejected if the dry run shows it,
// otherwise the status reports it.
func TestPolicy(t *testing.T) {
	revision := map[string]string{"serving.knative.dev/revision": "any"}
	t.Run("of templates", func(t *testing.T) {
		t.Parallel()
		s := newSpace(t, nil)
		s.policy("pods", "", `'team' in object.metadata.labels && object.metadata.labels['serving.knative.dev/service'] == 'app'`,
			"every Pod must have a team, and be of app", func() error { return s.hostRefuses(s.aPod(revision)) })
		s.refused(s.newService("app"), "spec.template", "every Pod must have a team, and be of app")
		s.create("app", func(template *servingv1.RevisionTemplateSpec) { template.Labels = map[string]string{"team": "a"} })
		s.answers(s.ready("app"), "Hello World!")
	})
	t.Run("of Pods", func(t *testing.T) {
		t.Parallel()
		s := newSpace(t, nil)
		s.policy("pods", "", "!has(object.metadata.ownerReferences)", "Pods may have no owner", func() error {
			pod := s.aPod(revision)
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "any", UID: "any"}}
			return s.hostRefuses(pod)
		})
		s.create("app")
		s.fails("app", failure{resources, "FailedCreate", []string{"Pods may have no owner"}})
		t.Logf("reported after %v", time.Since(s.began))
	})
	t.Run("of Deployments", func(t *testing.T) {
		t.Parallel()
		s := newSpace(t, nil)
		s.policy("deployments", "apps", "object.spec.replicas > 3", "at least four", func() error {
			deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: revision},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: revision}, Spec: s.aPod(nil).Spec},
			}}
			deployment.Spec.Template.Spec.Containers[0].Name = "app"
			_, err := node.Host.AppsV1().Deployments(s.name).Create(s.Context(), deployment, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return refusal(err)
		})
		s.create("app")
		s.fails("app", failure{resources, "FailedCreate", []string{"at least four"}})
		t.Logf("reported after %v", time.Since(s.began))
	})
	t.Run("of a webhook that does not answer", func(t *testing.T) {
		t.Parallel()
		s := newSpace(t, nil)
		webhooks := node.Host.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: s.name},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name:                    "pods.example.com",
				ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/pods")},
				Rules:                   []admissionregistrationv1.RuleWithOperations{rule("", "pods")},
				NamespaceSelector:       s.selector(),
				FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
				SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
				AdmissionReviewVersions: []string{"v1"},
			}},
		}
		if _, err := webhooks.Create(t.Context(), webhook, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = webhooks.Delete(context.Background(), s.name, metav1.DeleteOptions{}) })
		harness.Eventually(t, "the webhook is in force", func() error { return s.hostRefuses(s.aPod(nil)) })
		s.create("app")
		s.fails("app", failure{resources, "FailedCreate", []string{`failed calling webhook "pods.example.com"`}})
		t.Logf("reported after %v", time.Since(s.began))
	})
}
