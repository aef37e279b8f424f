// Package route implements the API resource routes.serving.knative.dev.
package route

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Resource describes Routes. The settings at the time of a write supply the limits.
func Resource(controllers identity.Controllers, settings func() servingv1.Settings) *registry.Resource[*servingv1.Route, servingv1.RouteSpec, servingv1.RouteStatus] {
	return &registry.Resource[*servingv1.Route, servingv1.RouteSpec, servingv1.RouteStatus]{
		GroupVersion: servingv1.SchemeGroupVersion,
		Plural:       "routes",
		Singular:     "route",
		ShortNames:   []string{"rt"},
		Categories:   []string{"all", "knative", "serving"},
		New:          func() *servingv1.Route { return &servingv1.Route{} },
		NewList:      func() runtime.Object { return &servingv1.RouteList{} },
		Spec:         func(r *servingv1.Route) *servingv1.RouteSpec { return &r.Spec },
		Status:       func(r *servingv1.Route) *servingv1.RouteStatus { return &r.Status },
		Common:       common,
		Controllers:  controllers,
		Default:      servingv1.SetDefaults_Route,
		Warnings:     func(r *servingv1.Route) []string { return servingv1.WarnRoute(r, settings()) },
		Validate: func(_ context.Context, r *servingv1.Route) field.ErrorList {
			return servingv1.ValidateRoute(r, settings())
		},
		ValidateUpdate: func(_ context.Context, r, old *servingv1.Route) field.ErrorList {
			return servingv1.ValidateRouteUpdate(r, old, settings())
		},
		Columns: append([]registry.Column[*servingv1.Route]{
			{Name: "URL", Type: "string", Description: "URL of the application.", Value: func(r *servingv1.Route) any {
				return r.Status.URL
			}},
		}, registry.ReadyColumns(common)...),
	}
}

func common(r *servingv1.Route) *duckv1.Status { return &r.Status.Status }
