// Package namespace holds the rules of core/v1 Namespaces for a server without a host cluster.
package namespace

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
)

// Resource describes Namespaces.
func Resource() core.Resource[*corev1.Namespace] {
	return core.Resource[*corev1.Namespace]{
		Plural: "namespaces", Singular: "namespace", ShortNames: []string{"ns"},
		ClusterScoped: true,
		New:           func() *corev1.Namespace { return &corev1.Namespace{} },
		NewList:       func() runtime.Object { return &corev1.NamespaceList{} },
		PrepareForCreate: func(n *corev1.Namespace) {
			n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
				n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		},
		PrepareForUpdate: func(n, old *corev1.Namespace) {
			n.Spec, n.Status = old.Spec, old.Status
		},
		CanonicalizeObject: setNameLabel,
		Name:               apivalidation.ValidateNamespaceName,
		ValidateObject:     validateFinalizers,
		ResetFields:        fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
		SelectableFields: func(n *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase), "name": n.Name}
		},
		Columns: []registry.Column[*corev1.Namespace]{{
			Name: "Status", Type: "string", Description: "The status of the namespace.",
			Value: func(n *corev1.Namespace) any { return string(n.Status.Phase) },
		}},
	}
}

// statusResource describes the subresource status.
func statusResource() core.Resource[*corev1.Namespace] {
	r := Resource()
	r.PrepareForUpdate = func(n, old *corev1.Namespace) { n.Spec = old.Spec }
	r.ValidateChange = func(n, _ *corev1.Namespace) field.ErrorList {
		want := corev1.NamespaceActive
		if n.DeletionTimestamp != nil {
			want = corev1.NamespaceTerminating
		}
		if n.Status.Phase != want {
			return field.ErrorList{field.Invalid(field.NewPath("status", "phase"), n.Status.Phase,
				"must be 'Terminating' if the Namespace is being deleted, 'Active' otherwise")}
		}
		return nil
	}
	r.ResetFields = fieldpath.NewSet(fieldpath.MakePathOrDie("spec"))
	return r
}

// finalizeResource describes the subresource finalize, the only one that changes the finalizers of the spec.
func finalizeResource() core.Resource[*corev1.Namespace] {
	r := Resource()
	r.PrepareForUpdate = func(n, old *corev1.Namespace) { n.Status = old.Status }
	return r
}

// setNameLabel sets the label that selects a Namespace by name.
func setNameLabel(n *corev1.Namespace) {
	if n.Name == "" {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

func validateFinalizers(n *corev1.Namespace) field.ErrorList {
	var errs field.ErrorList
	for i, finalizer := range n.Spec.Finalizers {
		at := field.NewPath("spec", "finalizers").Index(i)
		errs = append(errs, apivalidation.ValidateFinalizerName(string(finalizer), at)...)
		if finalizer != corev1.FinalizerKubernetes && !strings.Contains(string(finalizer), "/") {
			errs = append(errs, field.Invalid(at, finalizer, "must be 'kubernetes' or a qualified name such as 'example.com/name'"))
		}
	}
	return errs
}
