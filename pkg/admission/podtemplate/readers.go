package podtemplate

import (
	"slices"
	"strings"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// readers are the webhooks and admission policies of the host. They may refuse a Pod because of any field, whereas Kubernetes itself accepts
// all images, values of variables, arguments and commands.
type readers struct {
	informers []cache.SharedIndexInformer
	known     atomic.Pointer[knownReaders]
}

// knownReaders is the answer of exist in an epoch.
type knownReaders struct {
	epoch uint64
	exist bool
}

// watch uses the informers of a factory.
func (r *readers) watch(host informers.SharedInformerFactory) {
	admission := host.Admissionregistration().V1()
	r.informers = []cache.SharedIndexInformer{
		admission.MutatingWebhookConfigurations().Informer(),
		admission.ValidatingWebhookConfigurations().Informer(),
		admission.MutatingAdmissionPolicies().Informer(),
		admission.MutatingAdmissionPolicyBindings().Informer(),
		admission.ValidatingAdmissionPolicies().Informer(),
		admission.ValidatingAdmissionPolicyBindings().Informer(),
	}
}

// exist reports whether a webhook or a policy may read the fields of Pods. It is true while some are unknown. A new epoch begins whenever one changes.
func (r *readers) exist(epoch uint64) bool {
	if known := r.known.Load(); known != nil && known.epoch == epoch {
		return known.exist
	}
	if len(r.informers) == 0 {
		return true
	}
	exist := false
	for _, informer := range r.informers {
		if !informer.HasSynced() {
			return true
		}
		exist = exist || slices.ContainsFunc(informer.GetStore().List(), readsPods)
	}
	r.known.Store(&knownReaders{epoch, exist})
	return exist
}

// readsPods reports whether a webhook configuration or an admission policy may read the fields of new Pods. A binding does not without its policy.
func readsPods(obj any) bool {
	switch o := obj.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		return slices.ContainsFunc(o.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return slices.ContainsFunc(w.Rules, matchesPods) })
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		return slices.ContainsFunc(o.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
			return slices.ContainsFunc(w.Rules, matchesPods)
		})
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		return constrainsPods(o.Spec.MatchConstraints)
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return constrainsPods(o.Spec.MatchConstraints) && readsObject(&o.Spec)
	}
	return false
}

// constrainsPods reports whether a policy with these constraints may be for new Pods.
func constrainsPods(m *admissionregistrationv1.MatchResources) bool {
	return m == nil || slices.ContainsFunc(m.ResourceRules, func(r admissionregistrationv1.NamedRuleWithOperations) bool { return matchesPods(r.RuleWithOperations) })
}

// matchesPods reports whether a rule may be for new Pods.
func matchesPods(r admissionregistrationv1.RuleWithOperations) bool {
	resources := []string{string(corev1.ResourcePods), "*", "*/*"}
	return slices.ContainsFunc(r.APIGroups, func(group string) bool { return group == corev1.GroupName || group == "*" }) &&
		slices.ContainsFunc(r.Resources, func(resource string) bool { return slices.Contains(resources, resource) }) &&
		slices.ContainsFunc(r.Operations, func(o admissionregistrationv1.OperationType) bool {
			return o == admissionregistrationv1.Create || o == admissionregistrationv1.OperationAll
		})
}

// readsObject reports whether an expression of a policy may use the object: its variable is "object". This server's own policy for Pods uses
// the request only.
func readsObject(spec *admissionregistrationv1.ValidatingAdmissionPolicySpec) bool {
	var expressions []string
	for _, c := range spec.MatchConditions {
		expressions = append(expressions, c.Expression)
	}
	for _, v := range spec.Variables {
		expressions = append(expressions, v.Expression)
	}
	for i := range spec.Validations {
		expressions = append(expressions, spec.Validations[i].Expression)
	}
	// They refuse nothing, but their errors may.
	for _, a := range spec.AuditAnnotations {
		expressions = append(expressions, a.ValueExpression)
	}
	return slices.ContainsFunc(expressions, func(expression string) bool { return strings.Contains(expression, "object") })
}

// removeValues removes from a Pod what nothing but readers judges: images, literal values of variables, arguments and commands. Whether an image is
// a valid reference was validated before.
func removeValues(pod *corev1.Pod) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Image, c.Command, c.Args = "", nil, nil
			for j := range c.Env {
				// Kubernetes accepts a value or a source, not both.
				if c.Env[j].ValueFrom == nil {
					c.Env[j].Value = ""
				}
			}
		}
	}
}
