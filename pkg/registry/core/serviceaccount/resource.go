// Package serviceaccount holds the rules of core/v1 ServiceAccounts for a server without a host cluster.
package serviceaccount

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
)

// Resource describes ServiceAccounts. They have no tokens; only serviceAccountName of a Revision refers to them.
func Resource() core.Resource[*corev1.ServiceAccount] {
	return core.Resource[*corev1.ServiceAccount]{
		Plural: "serviceaccounts", Singular: "serviceaccount", ShortNames: []string{"sa"},
		New:     func() *corev1.ServiceAccount { return &corev1.ServiceAccount{} },
		NewList: func() runtime.Object { return &corev1.ServiceAccountList{} },
		Name:    apivalidation.NameIsDNSSubdomain,
		Warnings: func(a *corev1.ServiceAccount) []string {
			if len(a.ImagePullSecrets) == 0 {
				return nil
			}
			return []string{duckv1.Unused(field.NewPath("imagePullSecrets"), "no image is pulled")}
		},
	}
}
