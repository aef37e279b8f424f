// Package revision implements the API resource revisions.serving.knative.dev.
package revision

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes Revisions. Only controllers create them. Their spec never changes (serving 5.3-1), not even when the
// defaults change.
func Resource(controllers identity.Controllers, settings func() servingv1.Settings) *registry.Resource[*servingv1.Revision, servingv1.RevisionSpec, servingv1.RevisionStatus] {
	return &registry.Resource[*servingv1.Revision, servingv1.RevisionSpec, servingv1.RevisionStatus]{
		GroupVersion: servingv1.SchemeGroupVersion,
		Plural:       "revisions",
		Singular:     "revision",
		ShortNames:   []string{"rev"},
		Categories:   []string{"all", "knative", "serving"},
		New:          func() *servingv1.Revision { return &servingv1.Revision{} },
		NewList:      func() runtime.Object { return &servingv1.RevisionList{} },
		Spec:         func(r *servingv1.Revision) *servingv1.RevisionSpec { return &r.Spec },
		Status:       func(r *servingv1.Revision) *servingv1.RevisionStatus { return &r.Status },
		Common:       common,
		Controllers:  controllers,
		AllowCreate: func(ctx context.Context, r *servingv1.Revision) error {
			if controllers.Made(ctx) {
				return nil
			}
			return apierrors.NewForbidden(servingv1.Resource("revisions"), r.Name, errors.New(
				"Revisions come from Configurations and cannot be created directly; create or change a Service or a Configuration instead"))
		},
		DefaultOnCreate: func(r *servingv1.Revision) {
			r.Spec.SetCreateDefaults(&r.ObjectMeta, settings())
			r.Spec.SetDefaults()
		},
		Validate: func(_ context.Context, r *servingv1.Revision) field.ErrorList {
			return servingv1.ValidateRevision(r, settings())
		},
		ValidateUpdate: func(_ context.Context, r, old *servingv1.Revision) field.ErrorList {
			return servingv1.ValidateRevisionUpdate(r, old)
		},
		Columns: columns(),
	}
}

func columns() []registry.Column[*servingv1.Revision] {
	columns := []registry.Column[*servingv1.Revision]{
		{Name: "Config Name", Type: "string", Description: "The Configuration that created the Revision.", Value: func(r *servingv1.Revision) any {
			return r.Labels[servingv1.ConfigurationLabelKey]
		}},
		{Name: "Generation", Type: "string", Description: "The generation of the Configuration from which the Revision was created.", Value: func(r *servingv1.Revision) any {
			return r.Labels[servingv1.ConfigurationGenerationLabelKey]
		}},
	}
	columns = append(columns, registry.ReadyColumns(common)...)
	return append(columns,
		registry.Column[*servingv1.Revision]{Name: "Actual Replicas", Type: "integer", Description: "The number of ready instances.", Value: func(r *servingv1.Revision) any {
			return replicas(r.Status.ActualReplicas)
		}},
		registry.Column[*servingv1.Revision]{Name: "Desired Replicas", Type: "integer", Description: "The number of instances that the autoscaler requests.", Value: func(r *servingv1.Revision) any {
			return replicas(r.Status.DesiredReplicas)
		}},
	)
}

// replicas returns the value of a table cell, nil if unset.
func replicas(n *int32) any {
	if n == nil {
		return nil
	}
	return int64(*n)
}

func common(r *servingv1.Revision) *duckv1.Status { return &r.Status.Status }
