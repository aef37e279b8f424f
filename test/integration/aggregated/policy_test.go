package aggregated

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// matching matches writes of a resource in one namespace.
func matching(namespace string, rule admissionregistrationv1.RuleWithOperations) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{
		NamespaceSelector: in(namespace),
		ResourceRules:     []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: rule}},
	}
}

// validatePolicy validates writes of a resource in a namespace by a CEL expression until the test ends.
func validatePolicy(t *testing.T, namespace string, rule admissionregistrationv1.RuleWithOperations, expression, message string) {
	t.Helper()
	client := host.Host.AdmissionregistrationV1()
	name := "test-" + namespace
	_, err := client.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy:    ptr.To(admissionregistrationv1.Fail),
			MatchConstraints: matching(namespace, rule),
			Validations:      []admissionregistrationv1.Validation{{Expression: expression, Message: message}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.ValidatingAdmissionPolicyBindings().Delete(context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := client.ValidatingAdmissionPolicies().Delete(context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// mutatePolicy changes objects of a resource in a namespace by a CEL expression until the test ends.
func mutatePolicy(t *testing.T, namespace string, rule admissionregistrationv1.RuleWithOperations, expression string) {
	t.Helper()
	client := host.Host.AdmissionregistrationV1()
	name := "test-" + namespace
	_, err := client.MutatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			FailurePolicy:    ptr.To(admissionregistrationv1.Fail),
			MatchConstraints: matching(namespace, rule),
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression},
			}},
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.MutatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.MutatingAdmissionPolicyBindings().Delete(context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := client.MutatingAdmissionPolicies().Delete(context(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
