// Package configmap holds the rules of core/v1 ConfigMaps for a server without a host cluster.
package configmap

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// systemNamespace is the namespace of the operator's settings.
const systemNamespace = "knative-system"

// Resource describes ConfigMaps.
func Resource() core.Resource[*corev1.ConfigMap] {
	return core.Resource[*corev1.ConfigMap]{
		Plural: "configmaps", Singular: "configmap", ShortNames: []string{"cm"},
		New:            func() *corev1.ConfigMap { return &corev1.ConfigMap{} },
		NewList:        func() runtime.Object { return &corev1.ConfigMapList{} },
		Name:           apivalidation.NameIsDNSSubdomain,
		ValidateObject: validate,
		Warnings:       warn,
		ValidateChange: func(obj, old *corev1.ConfigMap) field.ErrorList {
			return core.ValidateImmutable(obj.Immutable, old.Immutable, map[string][2]any{
				"data": {obj.Data, old.Data}, "binaryData": {obj.BinaryData, old.BinaryData},
			})
		},
		Columns: []registry.Column[*corev1.ConfigMap]{{
			Name: "Data", Type: "string", Description: "Number of keys in data and binaryData.",
			Value: func(c *corev1.ConfigMap) any { return int64(len(c.Data) + len(c.BinaryData)) },
		}},
	}
}

// warn returns a warning for each key of the operator's settings that has no effect.
func warn(c *corev1.ConfigMap) []string {
	if c.Namespace != systemNamespace {
		return nil
	}
	var warnings []string
	for _, key := range settings.Unused(c.Name, c.Data) {
		warnings = append(warnings, duckv1.Unused(field.NewPath("data").Key(key.Key), key.Reason))
	}
	return warnings
}

func validate(c *corev1.ConfigMap) field.ErrorList {
	var errs field.ErrorList
	size := 0
	data, binary := field.NewPath("data"), field.NewPath("binaryData")
	for key, value := range c.Data {
		for _, msg := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(data.Key(key), key, msg))
		}
		if _, ok := c.BinaryData[key]; ok {
			errs = append(errs, field.Invalid(data.Key(key), key, "may not be a key of binaryData too"))
		}
		size += len(value)
	}
	for key, value := range c.BinaryData {
		for _, msg := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(binary.Key(key), key, msg))
		}
		size += len(value)
	}
	if size > core.MaxDataSize {
		errs = append(errs, field.TooLong(data, "", core.MaxDataSize))
	}
	return errs
}
