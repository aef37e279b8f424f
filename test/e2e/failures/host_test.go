package failures

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// withCPU sets the CPU request of the container.
func withCPU(quantity string) change {
	return container(func(c *corev1.Container) {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(quantity)}
	})
}

// quota sets a quota for the Pods of the namespace, and waits until it is effective.
func (s *space) quota(hard corev1.ResourceList) {
	s.Helper()
	quotas := node.Host.CoreV1().ResourceQuotas(s.name)
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "pods"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if _, err := quotas.Create(s.Context(), quota, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	harness.Eventually(s, "the quota is in force", func() error {
		quota, err := quotas.Get(s.Context(), quota.Name, metav1.GetOptions{})
		if err == nil && len(quota.Status.Hard) == 0 {
			err = fmt.Errorf("status %v", quota.Status)
		}
		return err
	})
}

// TestQuota creates Services that exceed the quota. They are accepted, because the quota may have room later.
func TestQuota(t *testing.T) {
	tests := map[string]struct {
		hard  corev1.ResourceList
		parts []string
	}{
		"pods": {corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}, []string{"exceeded quota: pods", "limited: pods=0"}},
		"cpu": {
			corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse("10m")},
			[]string{"exceeded quota: pods", "limited: requests.cpu=10m"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, nil)
			s.quota(test.hard)
			s.create("app", withCPU("20m"))
			s.fails("app", failure{resources, "FailedCreate", test.parts})
			t.Logf("reported after %v", time.Since(s.began))
			if err := node.Host.CoreV1().ResourceQuotas(s.name).Delete(t.Context(), "pods", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			s.began = time.Now()
			s.ready("app")
		})
	}
}

// TestLimits creates Services whose requests can never be satisfied. They are rejected.
func TestLimits(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	s.quota(corev1.ResourceList{corev1.ResourceRequestsCPU: resource.MustParse("1")})
	s.refused(s.newService("app"), "failed quota: pods: must specify requests.cpu")

	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")},
	}}}}
	if _, err := node.Host.CoreV1().LimitRanges(s.name).Create(t.Context(), limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the limits are in force", func() error {
		return s.hostRefuses(&corev1.Pod{Spec: corev1.PodSpec{Containers: s.newService("app", withCPU("200m")).Spec.Template.Spec.Containers}})
	})
	s.refused(s.newService("app", withCPU("200m")), "spec.template", "maximum cpu usage per Container is 100m, but limit is 200m")
	s.create("app", withCPU("20m"))
	s.ready("app")
}

// hostRefuses reports whether the host rejects a Pod now.
func (s *space) hostRefuses(pod *corev1.Pod) error {
	pod.Name = "probe"
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].Name = "app"
	}
	_, err := node.Host.CoreV1().Pods(s.name).Create(s.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return refusal(err)
}

// refusal converts the result of a write into a check that it is rejected.
func refusal(err error) error {
	if err == nil {
		return errors.New("it is accepted")
	}
	return nil
}

// TestPodSecurity runs Services in a namespace of the restricted Pod Security level. Violations in the template are rejected,
// violations of the image are in the status, and all others run.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	s := newSpace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	s.refused(s.newService("root", container(func(c *corev1.Container) {
		c.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To[int64](0)}
	})), "spec.template", `violates PodSecurity "restricted:latest"`, "runAsUser=0")
	s.refused(s.newService("any-user", container(func(c *corev1.Container) {
		c.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: ptr.To(false)}
	})), "spec.template", `violates PodSecurity "restricted:latest"`, "runAsNonRoot")

	s.create("image", withImage(rootImage(t)))
	s.fails("image", failure{resources, "CreateContainerConfigError", []string{"container has runAsNonRoot and image will run as root"}})
	t.Logf("reported after %v", time.Since(s.began))

	s.create("app")
	s.answers(s.ready("app"), "Hello World!")
}

// rootImage returns the reference of the sample application as an image that runs as root.
func rootImage(t *testing.T) string {
	t.Helper()
	from, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	app, err := remote.Image(from, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	file, err := app.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := *file.Config.DeepCopy()
	config.User = ""
	if app, err = mutate.Config(app, config); err != nil {
		t.Fatal(err)
	}
	to := from.Context().Tag("root")
	if err := remote.Write(to, app, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return to.String()
}

// policy rejects objects of the namespace for which a CEL expression is false, and waits until it is effective.
func (s *space) policy(resource, group, expression, message string, probe func() error) {
	s.Helper()
	admission := node.Host.AdmissionregistrationV1()
	name := s.name + "-" + resource
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec = admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: rule(group, resource),
		}}},
		Validations: []admissionregistrationv1.Validation{{Expression: expression, Message: message}},
	}
	if _, err := admission.ValidatingAdmissionPolicies().Create(s.Context(), policy, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = admission.ValidatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
	binding.Spec = admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName:        name,
		ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		MatchResources:    &admissionregistrationv1.MatchResources{NamespaceSelector: s.selector()},
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(s.Context(), binding, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = admission.ValidatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	harness.Eventually(s, "the policy is in force", probe)
}

// rule matches the creation of a resource.
func rule(group, resource string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}
}

// selector selects the namespace.
func (s *space) selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.name}}
}
